"""The formats against the parsers that the installed SGLang registers; two families' parsers together."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import ShardgateError
from contracts.formats import FORMATS, Format, format_for, format_named
from contracts.losses import LOSSES, worst
from contracts.records import Judgement, ThinkingMode, Verdict
from contracts.unmapped import UNMAPPED_REASONING, UNMAPPED_TOOLS
from harness import judge
from harness.models import codec_for
from harness.strategies import Stream, disturbed_streams
from tests.conftest import need

REASONING = {name for fmt in FORMATS.values() for name in fmt.reasoning_parsers}
TOOLS = {name for fmt in FORMATS.values() for name in fmt.tool_parsers}
PAIRS = sorted((a, b) for a in REASONING for b in TOOLS)


def test_every_registered_name_is_mapped_or_said_not_to_be() -> None:
    need("sglang")
    from harness.parsers import registered_parsers

    reasoning, tools = (set(names) for names in registered_parsers())
    assert reasoning - REASONING - set(UNMAPPED_REASONING) == set(), "new reasoning parsers"
    assert tools - TOOLS - set(UNMAPPED_TOOLS) == set(), "new tool-call parsers"
    assert (REASONING | set(UNMAPPED_REASONING)) - reasoning == set(), "reasoning parsers that are gone"
    assert (TOOLS | set(UNMAPPED_TOOLS)) - tools == set(), "tool-call parsers that are gone"


def test_no_name_is_both() -> None:
    assert REASONING & set(UNMAPPED_REASONING) == set()
    assert TOOLS & set(UNMAPPED_TOOLS) == set()


@pytest.mark.parametrize("names", [("beam", None), (None, "beam"), ("qwen3", "nobody"), ("", "qwen25")])
def test_a_name_without_a_format_is_told(names: tuple[str | None, str | None]) -> None:
    with pytest.raises(ShardgateError, match="no format is mapped"):
        format_for(*names)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_a_format_says_what_it_is(fmt: Format) -> None:
    assert fmt.models and fmt.end_tokens and fmt.safe_grammar and fmt.origin
    assert fmt.reasoning_parsers or fmt.tool_parsers
    assert bool(fmt.opener) == bool(fmt.closer) == bool(fmt.reasoning_parsers)
    assert (fmt.tools is None) == (not fmt.tool_parsers)
    assert not fmt.call_end or fmt.call_end in fmt.end_tokens


def test_any_pair_of_names_composes() -> None:
    for pair in PAIRS:
        fmt = format_for(*pair)
        assert fmt is not None
        assert pair[0] in fmt.reasoning_parsers and pair[1] in fmt.tool_parsers
        assert format_named(fmt.name) == fmt


def test_a_pair_of_two_families_has_the_thinking_of_one_and_the_calls_of_the_other() -> None:
    fmt = format_for("deepseek-r1", "qwen25")
    assert fmt is not None
    assert (fmt.opener, fmt.forcing) == (FORMATS["deepseek_r1"].opener, FORMATS["deepseek_r1"].forcing)
    assert fmt.tools == FORMATS["qwen3"].tools
    assert set(FORMATS["qwen3"].end_tokens) < set(fmt.end_tokens)


def _ask(stream: Stream, fmt: Format, pair: tuple[str, str], chunks: list[int] | None) -> Judgement:
    return judge(
        stream.ids,
        tokenizer=codec_for(fmt),
        reasoning_parser=pair[0],
        tool_parser=pair[1],
        tools=stream.tools,
        finish_reason=stream.finish_reason,
        thinking_mode=stream.thinking_mode,
        chunks=chunks,
    )


@given(data=st.data())
@settings(max_examples=40)
def test_a_composed_pair_names_its_losses(data: st.DataObject) -> None:
    need("sglang")
    pair = data.draw(st.sampled_from(PAIRS))
    fmt = format_for(*pair)
    assert fmt is not None
    codec = codec_for(fmt)
    stream = data.draw(disturbed_streams(fmt, codec))
    chunks = data.draw(st.none() | st.lists(st.integers(1, 9), max_size=20))
    judgement = _ask(stream, fmt, pair, chunks)
    assert judgement.verdict is worst(judgement.losses)
    assert all(LOSSES[loss.name].remedy for loss in judgement.losses)
    assert sum(count for _, count in judgement.segments) == len(stream.ids)
    if judgement.verdict is Verdict.EXACT:
        assert codec.encode(judgement.rebuilt_text or "") == list(stream.ids)


@given(data=st.data())
@settings(max_examples=15)
def test_a_composed_pair_is_sound(data: st.DataObject) -> None:
    need("sglang")
    pair = data.draw(st.sampled_from(PAIRS))
    fmt = format_for(*pair)
    assert fmt is not None
    codec = codec_for(fmt)
    end = tuple(codec.encode(fmt.end_tokens[0]))
    words = [tuple(codec.encode(text)) for text in ("a", "\n", *fmt.markers)]
    bodies = data.draw(st.lists(st.lists(st.sampled_from(words), max_size=6), min_size=20, max_size=30))
    seen: dict[tuple[str | None, str | None, str], tuple[int, ...]] = {}
    for body in bodies:
        stream = Stream((*sum(body, ()), *end), ThinkingMode.THINKING, "stop", None)
        judgement = _ask(stream, fmt, pair, None)
        if judgement.verdict is Verdict.EXACT:
            key = (judgement.reasoning_content, judgement.content, str(judgement.tool_calls))
            assert seen.setdefault(key, stream.ids) == stream.ids
