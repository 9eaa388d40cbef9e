"""Good rows cost no Python call each: what the row checks look at, counted on clean rows of all families."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from contracts.formats import FORMATS
from contracts.rowwise import _suspects
from contracts.rules import ROW_CHECKS
from contracts.rules.fidelity import judge_row
from contracts.rules.proven import not_proven
from contracts.rules.registry import BULK, DISTINCT, SUSPECTS, Batch
from contracts.shard import Row, seal
from fixtures.corruptions.families import CUT, TURNS, codec_of, family_rows
from fixtures.corruptions.rows import CLEAN, ODD, codec, rows_of
from tests.bodies.proven_rows import batch_of, context

ONCE_FOR_EACH_VALUE = {
    "template_switch": "switches and thinking modes: a few in a set",
    "json_columns": "tools and parameters: a few in a set",
    "sampling_bent": "constraints, parameters and tools: a few in a set",
}
"""Checks that are called, however many rows there are, once for each distinct value of what they read."""
ONCE_FOR_EACH_CALL = {
    "arguments-off-schema": "a JSON schema is checked value by value; each distinct list of calls once",
    "prompt_rendered": "a chat template renders one conversation; each distinct prompt once",
}
"""What a batch can't be asked at once: bounded by its distinct calls and (with a template) prompts."""
JUDGED = {
    "cut-inside-character": "it is named what was lost",
    "cut-inside-character-raw": "it is named what was lost",
    "stop-string": "a raw text is served without the stop string that its ids hold",
    "wrong-tool": "the arguments are no JSON object",
}
"""Odd rows that stay with the judge."""


def looked_at(batch: Batch, family: str) -> Counter[str]:
    ctx = context(FORMATS[family], codec_of(family))
    return Counter(
        {
            check.__name__: count  # type: ignore[attr-defined]
            for check in ROW_CHECKS
            if (count := int(_suspects(check, batch, ctx).sum()))
        }
    )


@pytest.mark.parametrize("family", sorted(FORMATS))
def test_no_check_looks_at_a_clean_row(family: str) -> None:
    """Calls, chains of agents and cuts among them."""
    rows = family_rows(family, (*TURNS, *CUT))
    assert any(row["tool_calls"] for row in rows) or FORMATS[family].tools is None
    assert looked_at(batch_of(rows), family) == Counter()


def test_every_row_check_says_what_it_must_see() -> None:
    """One without that is called for every row of every set."""
    assert [check for check in ROW_CHECKS if check not in SUSPECTS and check not in DISTINCT] == []
    names = {check.__name__ for check in ROW_CHECKS}  # type: ignore[attr-defined]
    assert set(ONCE_FOR_EACH_CALL) <= names | set(BULK)
    assert {check.__name__ for check in DISTINCT} == set(ONCE_FOR_EACH_VALUE)  # type: ignore[attr-defined]


def test_odd_rows_need_no_judge_but_where_something_was_lost() -> None:
    """Length cuts, another split, empty thinking: as ordinary as an answer."""
    cases = (*CLEAN, *ODD)
    rows = {case.name: row for case, row in zip(cases, rows_of(cases), strict=True)}
    assert rows["other-split"]["losses"] == ["noncanonical-split"]
    left = not_proven(batch_of(list(rows.values())), context(FORMATS["kimi_k2"], codec())).to_list()
    assert {name for name, one in zip(rows, left, strict=True) if one} == set(JUDGED)


def stopped(row: Row, text: str) -> Row:
    """The row as a stop string would have ended it: the ids hold it, the fields do not."""
    end = codec().token_id("<|im_end|>")
    assert row["response_token_ids"][-1] == end
    ids = codec().encode(row["response_text_raw"].removesuffix("<|im_end|>") + text)
    raw = codec().decode_bytes(ids).decode()
    changed = {"matched_stop": json.dumps(text), "response_token_ids": ids, "response_text_raw": raw}
    return seal({**row, **changed, "completion_tokens": len(ids)})


def test_a_parsed_row_that_a_stop_string_ended_needs_no_judge() -> None:
    fmt, row = FORMATS["kimi_k2"], rows_of(CLEAN[:1])[0]
    rows = [stopped(row, text) for text in (" END", "\n", "</think>")]
    ctx = context(fmt, codec())
    judged = [judge_row(one, fmt, codec()).verdict for one in rows]
    assert judged[0] == "exact" and judged[1:] != ["exact", "exact"]
    assert not_proven(batch_of(rows), ctx).to_list() == [verdict != "exact" for verdict in judged]
