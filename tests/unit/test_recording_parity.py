"""A prompt that is not what it should be gets its cause by name; a turn goes on from the one before, or not.

Place in the flow: none; `harness.recording.parity` on Kimi's own template and a real tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.formats import format_named
from contracts.given import Template
from contracts.records import Prompt, SegmentKind
from contracts.rendering import render
from fixtures.corruptions.rows import TEMPLATES, codec
from harness.recording.parity import CAUSES, Drift, Parity, ParityFile, Turn

TEMPLATE = Template((TEMPLATES / "kimi_k25.jinja").read_text(encoding="utf-8"))
FORMAT = format_named("kimi_k2")
assert FORMAT is not None
PARITY = Parity(codec(), FORMAT, TEMPLATE)
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
ASKED = Prompt(name="p", messages=({"role": "user", "content": "How many legs have spiders?"},))
CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
PARSED = {**CALL, "function": {"name": "f", "arguments": {"a": 1}}}
CALLED = replace(
    ASKED,
    tools=(TOOL,),
    messages=(
        *ASKED.messages,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "eight", "tool_call_id": "functions.f:0"},
    ),
)


def rendered(prompt: Prompt, tools: Any = None, template: Template = TEMPLATE, **kwargs: Any) -> str:
    messages = [dict(message) for message in prompt.messages]
    declared = tools if tools is not None else [dict(tool) for tool in prompt.tools or ()] or None
    return render(template, messages, declared, {**prompt.template_kwargs, **kwargs})


def drift(prompt: Prompt, made: str, used: str, parity: Parity = PARITY) -> Drift | None:
    return parity.prompt("id", prompt, codec().encode(made), codec().encode(used))


def without_end(text: str) -> str:
    return text[: text.rindex("<|im_assistant|>")]


SPOILS: dict[str, tuple[Prompt, Callable[[str], str]]] = {
    "bos-added": (ASKED, lambda text: "<|im_end|>" + text),
    "thinking-switch": (ASKED, lambda text: rendered(ASKED, thinking=False)),
    "system-prompt-added": (ASKED, lambda text: "<|im_system|>system<|im_middle|>Be kind.<|im_end|>" + text),
    "white-space-at-end": (ASKED, lambda text: text + "\n"),
    "generation-prompt": (ASKED, without_end),
    "other-tools-form": (
        replace(ASKED, tools=(TOOL,)),
        lambda text: rendered(ASKED, [{**TOOL, "defer_loading": None}]),
    ),
    "other-arguments-form": (
        CALLED,
        lambda text: rendered(
            replace(
                CALLED,
                messages=(
                    CALLED.messages[0],
                    {**CALLED.messages[1], "tool_calls": [PARSED]},
                    CALLED.messages[2],
                ),
            )
        ),
    ),
    "tools-left-out": (replace(ASKED, tools=(TOOL,)), lambda text: rendered(ASKED)),
    "differs": (ASKED, lambda text: text.replace("spiders", "ants")),
}


@pytest.mark.parametrize("cause", SPOILS)
def test_a_prompt_that_is_not_the_templates_has_its_cause(cause: str) -> None:
    prompt, spoil = SPOILS[cause]
    made = rendered(prompt)
    used = spoil(made)
    assert used != made and drift(prompt, made, made) is None
    found = drift(prompt, made, used)
    assert found is not None and found.cause == cause and cause in CAUSES
    ours, theirs = codec().encode(made), codec().encode(used)
    assert ours[: found.position] == theirs[: found.position]
    assert ours[found.position : found.position + 1] != theirs[found.position : found.position + 1]
    assert found.found == codec().decode_bytes(theirs[found.position : found.position + 8]).decode()


@pytest.mark.parametrize(
    ("there", "cause"),
    [("", "system-prompt-missing"), ("<|im_system|>system: Be brief.<|im_end|>", "other-system-prompt")],
)
def test_a_templates_own_system_prompt_that_is_not_there(there: str, cause: str) -> None:
    said = "{% for m in messages %}{{ m.content }}{% endfor %}"
    own = Template("{% if messages[0].role != 'system' %}<|im_system|>system: Hi<|im_end|>{% endif %}" + said)
    bare = Template(there + said)
    found = drift(
        ASKED, rendered(ASKED, template=own), rendered(ASKED, template=bare), Parity(codec(), FORMAT, own)
    )
    assert found is not None and found.cause == cause


def test_bos_twice_and_bos_missing() -> None:
    ids = codec().encode("<|im_end|>" + rendered(ASKED))
    doubled = PARITY.prompt("id", ASKED, ids, [ids[0], *ids])
    missing = PARITY.prompt("id", ASKED, ids, ids[1:])
    assert doubled is not None and (doubled.cause, doubled.position) == ("bos-doubled", 1)
    assert missing is not None and missing.cause == "bos-missing"


def test_the_same_text_in_other_tokens() -> None:
    made = codec().encode(rendered(ASKED))
    at = next(n for n, one in enumerate(made) if len(codec().decode_bytes([one])) > 3)
    word = codec().decode_bytes([made[at]]).decode()
    used = [*made[:at], *codec().encode(word[:1]), *codec().encode(word[1:]), *made[at + 1 :]]
    found = PARITY.prompt("id", ASKED, made, used)
    assert found is not None and (found.cause, found.position) == ("other-tokens", at)


def turn(reasoning: str, rest: str, kind: SegmentKind = SegmentKind.CONTENT) -> Turn:
    """Return an answered turn of `ASKED`: thinking, closer, the rest, the end token."""
    parts = [
        (SegmentKind.REASONING, codec().encode(reasoning)),
        (SegmentKind.CLOSER, codec().encode("</think>")),
        (kind, codec().encode(rest)),
        (SegmentKind.END, codec().encode("<|im_end|>")),
    ]
    ids = [one for _, part in parts for one in part]
    return Turn(codec().encode(rendered(ASKED)), ids, [(k, len(part)) for k, part in parts], reasoning)


def next_ids(before: Turn, change: Callable[[str], str] = lambda text: text) -> list[int]:
    """Return a prompt that goes on from a turn, changed."""
    text = codec().decode_bytes([*before.prompt_ids, *before.response_ids]).decode()
    return codec().encode(change(text) + "<|im_user|>user<|im_middle|>And ants?<|im_end|><|im_assistant|>")


CALLS = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>" \
    '{"a":1}<|tool_call_end|><|tool_calls_section_end|>'  # fmt: skip
TURNS: dict[str, tuple[Turn, Callable[[str], str]]] = {
    "reasoning-dropped": (turn("Spiders: 8.", "Eight."), lambda text: text.replace("Spiders: 8.", "")),
    "white-space-trimmed": (turn("r", "\n\nEight legs."), lambda text: text.replace("\n\nEight", "Eight")),
    "end-token": (turn("r", "Eight."), lambda text: text[: -len("<|im_end|>")] + "[EOS]"),
    "arguments-rewritten": (
        turn("r", CALLS, SegmentKind.TOOL_SECTION),
        lambda text: text.replace('{"a":1}', '{"a": 1}'),
    ),
    "earlier-turns": (turn("r", "Eight."), lambda text: text.replace("How many", "How few")),
    "opener-dropped": (turn("", "Eight."), lambda text: text.replace("<think>", "").replace("</think>", "")),
    "differs": (turn("r", "Eight legs."), lambda text: text.replace("Eight", "Nine")),
}


@pytest.mark.parametrize("cause", TURNS)
def test_a_turn_that_does_not_go_on_from_the_one_before_has_its_cause(cause: str) -> None:
    before, change = TURNS[cause]
    assert PARITY.turn("id", before, next_ids(before)) is None
    found = PARITY.turn("id", before, next_ids(before, change))
    assert found is not None and found.cause == cause and cause in CAUSES and found.kind == "turns"


@pytest.mark.parametrize(("place", "cause"), [(0, "other-tokens"), (-2, "split-at-boundary")])
def test_a_turn_that_comes_back_in_other_tokens(place: int, cause: str) -> None:
    """The sampler left the canonical split; the template encodes the text anew."""
    before = turn("r", "Spiders spiders")
    ids = list(before.response_ids)
    at = [n for n, one in enumerate(ids) if len(codec().decode_bytes([one])) > 3][0 if place == 0 else -2]
    word = codec().decode_bytes([ids[at]]).decode()
    if cause == "split-at-boundary":
        before = replace(before, response_ids=ids[:-1])  # cut by length: the split is the last thing there
        ids = ids[:-1]
        at = len(ids) - 1
        word = codec().decode_bytes([ids[at]]).decode()
    split = [*ids[:at], *codec().encode(word[:1]), *codec().encode(word[1:]), *ids[at + 1 :]]
    found = PARITY.turn("id", replace(before, response_ids=split), [*before.prompt_ids, *ids, 5, 6])
    assert found is not None and found.cause == cause


def test_what_is_found_is_a_line_each_even_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "parity.jsonl"
    path.write_bytes(b'{"sample_id": "cut off')
    found = drift(ASKED, rendered(ASKED), rendered(ASKED) + "\n")
    assert found is not None
    file = ParityFile(path)
    file.add([found, found])
    file.flush()
    file.flush()
    lines = path.read_text("utf-8").splitlines()
    assert len(lines) == 3 and json.loads(lines[1]) == json.loads(lines[2])
    assert json.loads(lines[2])["cause"] == "white-space-at-end"
