"""Prompts whose messages follow one another: what the fast path lets through, the rule finds nothing in."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.formats import FORMATS
from contracts.rules.order import prompt_order
from contracts.rules.prompts import out_of_order
from contracts.shard import Row
from fixtures.corruptions.rows import codec
from tests.bodies.proven_rows import BASE, batch_of, context

CTX = context(FORMATS["kimi_k2"], codec())
NOTHING: dict[str, Any] = dict.fromkeys(("reasoning_content", "tool_calls", "tool_call_id", "name"))
TEXTS = st.sampled_from(("a", "b", "ab", "a b", " a ", "", "é", "e\u0301", "<think>", "ok", "ok"))


def row_of(messages: list[tuple[str, str]], prompt: str) -> Row:
    said = [{**NOTHING, "role": role, "content": text} for role, text in messages]
    return {**BASE, "messages": said, "prompt_token_ids": codec().encode(prompt)}


@st.composite
def rows(draw: st.DrawFn) -> Row:
    roles = st.sampled_from(("user", "assistant", "tool", "system", "developer"))
    messages = draw(st.lists(st.tuples(roles, TEXTS), min_size=1, max_size=6))
    parts = [text for _, text in messages[:-1]]
    shuffled = draw(st.sampled_from((parts, parts, parts, parts[::-1], parts[1:])))
    return row_of(messages, draw(st.sampled_from(("", " ", "|", "a"))).join(shuffled))


@settings(max_examples=80, deadline=None)
@given(st.lists(rows(), min_size=1, max_size=12))
def test_prompts_that_are_let_through_are_in_order(drawn: list[Row]) -> None:
    for row, odd in zip(drawn, out_of_order(batch_of(drawn), CTX).to_list(), strict=True):
        assert odd or list(prompt_order(row, CTX)) == []


def test_texts_that_come_again_and_empty_ones_need_no_look() -> None:
    turns = [("user", "go on"), ("assistant", ""), ("tool", "ok"), ("assistant", "next"), ("tool", "ok")]
    prompt = "".join(f"{role}: {text}\n" for role, text in turns)
    good = row_of([*turns, ("assistant", "done")], prompt)
    bad = row_of([turns[0], turns[3], turns[2], turns[4], ("assistant", "done")], prompt)
    assert out_of_order(batch_of([good, bad, good]), CTX).to_list() == [False, True, False]
    assert [rule for rule, *_ in prompt_order(bad, CTX)] == ["prompt-order"]
