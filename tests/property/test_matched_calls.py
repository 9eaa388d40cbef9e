"""Conversations with calls and results: what the fast path lets through, the tool rules find nothing in."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.formats import FORMATS
from contracts.rules.matched_calls import odd_calls
from contracts.rules.registry import SUSPECTS
from contracts.rules.structural import media
from contracts.rules.tools import tool_rules
from contracts.shard import Row
from fixtures.corruptions.rows import codec
from harness.odd_inputs import ARGUMENTS
from tests.bodies.proven_rows import BASE, DECLARED, batch_of, context

CTX = context(FORMATS["kimi_k2"], codec())
NOTHING: dict[str, Any] = dict.fromkeys(("reasoning_content", "tool_calls", "tool_call_id", "name"))
TOOLS = json.dumps([{"type": "function", "function": {"name": name}} for name in ("f", "g")])


def said(role: str, **more: Any) -> dict[str, Any]:
    return {**NOTHING, "role": role, "content": "", **more}


IDS = st.sampled_from(("a", "b", "c", "functions.f:0", "functions.f:1"))


@st.composite
def calls(draw: st.DrawFn, ids: list[str] | None = None) -> str:
    made = []
    for call_id in draw(st.lists(IDS, max_size=3)) if ids is None else ids:
        name, arguments = (
            draw(st.sampled_from("ffffgh")),
            draw(st.sampled_from(('{"x": 1}',) * 5 + ARGUMENTS)),
        )
        made.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
    text = json.dumps(made, ensure_ascii=draw(st.booleans()))
    spoilt = (text.replace('"name"', '"name": "g", "name"', 1), text.replace("function", "tool", 1), text[1:])
    return draw(st.sampled_from((text,) * 12 + spoilt + ("null", "[]", "")))


@st.composite
def turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A conversation: mostly calls that are answered one to one, in any order, sometimes something odd."""
    out = [said("user")]
    free = [f"functions.f:{n}" for n in range(9)]
    for _ in range(draw(st.integers(0, 3))):
        ids = [free.pop(0) for _ in range(draw(st.integers(0, 2)))]
        out.append(said("assistant", tool_calls=draw(calls(ids)) if ids else None))
        out += [said("tool", tool_call_id=one) for one in draw(st.permutations(ids))]
        if draw(st.booleans()):
            out.append(said("user"))
    out.append(said("assistant", tool_calls=draw(st.none() | calls(free[:1]) | calls())))
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        at = draw(st.integers(0, len(out) - 1))
        odd = draw(
            st.sampled_from(
                (
                    [],
                    [out[at], out[at]],
                    [said("tool", tool_call_id=draw(st.none() | IDS))],
                    [said("assistant", tool_calls=draw(calls()))],
                    [out[at], said("user")],
                )
            )
        )
        out[at : at + 1] = odd
    return out


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(turns(), st.sampled_from((TOOLS, TOOLS, TOOLS, DECLARED, None, "[", "[]"))), max_size=8
    )
)
def test_calls_that_are_let_through_break_no_tool_rule(drawn: list[tuple[list[dict[str, Any]], Any]]) -> None:
    rows: list[Row] = [
        {**BASE, "messages": m, "tools": t, "tool_calls": m[-1]["tool_calls"] if m else None}
        for m, t in drawn
    ]
    for row, odd in zip(rows, odd_calls(batch_of(rows)).to_list(), strict=True):
        assert odd or list(tool_rules(row, CTX)) == []


def test_calls_that_are_answered_one_to_one_need_no_look() -> None:
    def asked(*ids: str) -> dict[str, Any]:
        text = [
            {"id": i, "type": "function", "function": {"name": "f", "arguments": '{"x": "é"}'}} for i in ids
        ]
        return said("assistant", tool_calls=json.dumps(text))

    answers = [said("tool", tool_call_id=name) for name in ("b", "a")]
    messages = [
        said("user"),
        asked("a", "b"),
        *answers,
        asked("c"),
        said("tool", tool_call_id="c"),
        asked("d"),
    ]
    row = {**BASE, "messages": messages, "tools": TOOLS, "tool_calls": messages[-1]["tool_calls"]}
    cut = {**row, "messages": [*messages[:3], *messages[4:]]}
    assert odd_calls(batch_of([row, cut, row])).to_list() == [False, True, False]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(("image", "text", "file", "audio_url", "imag\\u0065", "ok")).map(
            lambda kind: f'[{{"type": "{kind}", "file": "x"}}]'
        )
        | st.sampled_from(
            ('[{"type":"image"}]', '[{"t\\u0079pe": "image"}]', '[{"type" : "file"}', "[{}]", "")
        ),
        min_size=1,
        max_size=4,
    )
)
def test_contents_that_are_let_through_are_no_media(contents: list[str]) -> None:
    rows: list[Row] = [
        {**BASE, "messages": [said("user", content=text), said("assistant")]} for text in contents
    ]
    for row, odd in zip(rows, SUSPECTS[media](batch_of(rows), CTX).to_list(), strict=True):
        assert odd or list(media(row, CTX)) == []


def test_a_list_of_objects_from_a_tool_is_no_suspect() -> None:
    row = {**BASE, "messages": [said("tool", content='[{"file": "a.py", "type": "dir"}]'), said("assistant")]}
    assert not SUSPECTS[media](batch_of([row]), CTX).any()
