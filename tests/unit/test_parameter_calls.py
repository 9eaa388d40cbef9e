"""Typed parameters: written as the families' encoders write them, read back, compared by meaning."""

from __future__ import annotations

import json

import pytest

from contracts.calls import ParameterCalls
from contracts.formats import FORMATS, Format
from tests.conftest import need

TYPED = [fmt for fmt in FORMATS.values() if isinstance(fmt.tools, ParameterCalls)]
ARGUMENTS = {
    "city": "Zürich\nAltstadt",
    "count": 3,
    "ratio": 0.5,
    "flag": True,
    "tags": ["a", 1],
    "none": None,
}


def syntax_of(fmt: Format) -> ParameterCalls:
    assert isinstance(fmt.tools, ParameterCalls)
    return fmt.tools


def test_dsml_is_what_deepseeks_encoder_writes() -> None:
    need("sglang")  # carries the encoder
    from sglang.srt.entrypoints.openai.encoding_dsv32 import encode_messages

    calls = [
        {"name": "f", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)},
        {"name": "g", "arguments": "{}"},
    ]
    answer = {
        "role": "assistant",
        "reasoning_content": "r",
        "content": "ok",
        "tool_calls": [{"type": "function", "function": call} for call in calls],
    }
    prompt = [{"role": "user", "content": "q"}]
    text = encode_messages([*prompt, answer], thinking_mode="thinking")
    fmt = FORMATS["deepseek_v32"]
    syntax = syntax_of(fmt)
    written = f"r{fmt.closer}ok{syntax.lead}{syntax.write(calls)}{fmt.end_tokens[0]}"
    assert text.endswith(f"{fmt.opener}{written}")


@pytest.mark.parametrize("fmt", TYPED, ids=lambda fmt: fmt.name)
def test_what_is_written_is_read(fmt: Format) -> None:
    syntax = syntax_of(fmt)
    given = json.dumps(ARGUMENTS, ensure_ascii=False)
    calls = [{"name": "f", "arguments": given}, {"name": "a.b-c_d", "arguments": "{}"}]
    raw = syntax.write(calls).encode()
    section = syntax.read(raw, [], 0, len(raw))
    assert [call.header for call in section.calls] == ["f", "a.b-c_d"]
    assert all(call.complete and call.canonical for call in section.calls)
    assert not section.between and not section.open and section.end == len(raw)
    for call, read in zip(calls, section.calls, strict=True):
        assert syntax.same_spelling(call["arguments"], read.arguments)
        assert syntax.same_meaning(call["arguments"], read.arguments)
    assert not syntax.same_meaning('{"city": "Bern"}', section.calls[0].arguments)


@pytest.mark.parametrize("fmt", TYPED, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("arguments", ["", "{", "[1]", "null", '{"x": "', '{"x": "\\ud800"}'])
def test_odd_arguments_are_written_somehow(fmt: Format, arguments: str) -> None:
    syntax = syntax_of(fmt)
    syntax.write([{"name": "f", "arguments": arguments}]).encode()
    assert not syntax.same_meaning(arguments, "x")
