"""Every column under every generic mutation: each changed row is told, or stands below with the reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts import audit, write_shard
from contracts.records import Finding
from contracts.shard import Row, arrow_schema, seal
from fixtures.corruptions.of_requests import second_turn
from fixtures.corruptions.rows import CLEAN, ODD, codec, rows_of
from fixtures.corruptions.sweep import MUTATIONS, Spoiled, spoiled

DIGESTS = ("prompt_sha256", "content_sha256")
"""Made again after each mutation; that they are checked is `prompt-digest` and `content-digest`."""

NAME = "any word is a name; the shard's own digest of names tells that it was changed (`names-changed`)"
NUMBER = "any number may be a true one; the digest of names tells that it was changed (`names-changed`)"
TIME = "any time of the run may be the true one; the digest of names tells that it was changed"
SPELLING = "the same JSON value in another spelling"
TEMPLATE = "only the chat template tells (`prompt-differs`, where it is at hand)"
MODEL = "only the model tells (claim `model`, by replay)"
OF_THE_SET = "told once for the set (`column-patchy`)"
EITHER = "in tool mode servers leave it out, and say the end token or not"

SILENT: Mapping[str, Mapping[str, str]] = {
    "sample_id": dict.fromkeys(("truncated", "last-character-gone"), NAME),
    "conversation_id": dict.fromkeys(("another-rows", "truncated", "last-character-gone"), NAME),
    "source_dataset": dict.fromkeys(("truncated", "last-character-gone"), NAME),
    "source_row_index": dict.fromkeys(("another-rows", "more", "less", "zero"), NUMBER),
    "sample_index": dict.fromkeys(("another-rows", "more", "less", "zero"), NUMBER),
    "turn_index": dict.fromkeys(("another-rows", "more", "less", "zero"), NUMBER),
    "parent_sample_id": dict.fromkeys(("null", "another-rows"), "a row may name no parent"),
    "tools": {
        **dict.fromkeys(("json-spaced", "json-sorted", "json-reversed", "json-ascii", "padded"), SPELLING),
        "case-folded": TEMPLATE,
    },
    "prompt_token_ids": {"one-off": TEMPLATE},
    "loss_mask": dict.fromkeys(("null", "another-rows"), "the mask of null is the response's own"),
    "output_logprobs": {"null": OF_THE_SET, **dict.fromkeys(("reversed", "shifted"), MODEL)},
    "response_text_raw": {"null": OF_THE_SET},
    "finish_reason": {"another-rows": "`stop` and `tool_calls` differ by the transport alone"},
    "matched_stop": {"null": EITHER, "another-rows": EITHER, "padded": SPELLING},
    "reasoning_tokens": {
        "null": "not every engine counts them",
        "zero": "SGLang says 0 where it does not count",
        **dict.fromkeys(("more", "less"), "engines count with the closer or without it"),
        "another-rows": "null and 0: not every engine counts them",
    },
    "template_kwargs": dict.fromkeys(("padded", "json-spaced", "json-sorted", "json-reversed"), SPELLING),
    "sampling_params": dict.fromkeys(("padded", "json-spaced", "json-sorted", "json-reversed"), SPELLING),
    "request_id": {
        "null": OF_THE_SET,
        "truncated": NAME,
        "last-character-gone": NAME,
    },
    "created_at": dict.fromkeys(("another-rows", "more", "less", "zero"), TIME),
}
"""Column → mutation → why no rule can tell all rows that it changed."""


def good_rows() -> list[Row]:
    """Return rows that have something in every column, and a second turn."""
    rows = rows_of((*CLEAN, *ODD))
    for number, row in enumerate(rows):
        tokens = len(row["response_token_ids"])
        row["output_logprobs"] = [-((7 * n + number) % 13) / 10 - 0.01 for n in range(tokens)]
    for row in rows[:3]:
        row["loss_mask"] = [{"start": row["prompt_tokens"], "length": row["completion_tokens"]}]
    closer = codec().token_id("</think>")
    rows[0]["reasoning_tokens"] = rows[0]["response_token_ids"].index(closer)
    child = second_turn(rows, 0)
    child["loss_mask"] = [{"start": child["prompt_tokens"], "length": child["completion_tokens"]}]
    return [seal(row) for row in rows]


GOOD = good_rows()
COLUMNS = [field.name for field in arrow_schema() if field.name not in DIGESTS]


def findings(folder: Path, rows: list[Row]) -> list[Finding]:
    path = write_shard(folder / "a.parquet", rows, format_name="kimi_k2")
    return list(audit([path], codec=codec()).findings)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    """What is told of the good rows, odd as some are: (rule, case)."""
    found = findings(tmp_path_factory.mktemp("good"), GOOD)
    return {(one.rule, GOOD[one.row]["conversation_id"]) for one in found if one.row is not None}


def untold(folder: Path, some: list[Spoiled], usual: set[tuple[str, str]]) -> dict[str, list[str]]:
    """Return mutation → the cases of which nothing is told that was not told before."""
    rules: dict[int, set[str]] = defaultdict(set)
    for found in findings(folder, [*GOOD, *(one.row for one in some)]):
        if found.row is not None:
            rules[found.row].add(found.rule)
    out: dict[str, list[str]] = {}
    for number, one in enumerate(some):
        fresh = {rule for rule in rules[len(GOOD) + number] if (rule, one.case) not in usual}
        if not fresh:
            out.setdefault(one.mutation, []).append(one.case)
    return out


@pytest.mark.parametrize("column", COLUMNS)
def test_each_mutation_of_each_column_is_told(
    tmp_path: Path, usual: set[tuple[str, str]], column: str
) -> None:
    some = list(spoiled(GOOD, column))
    assert some, "no mutation changes the column: the rows have nothing in it"
    left = untold(tmp_path, some, usual)
    known = SILENT.get(column, {})
    assert {name: cases for name, cases in left.items() if name not in known} == {}
    assert known.keys() - left.keys() <= {"less", "zero", "another-rows", "json-ascii", "more"}, "told by now"


def test_what_is_silent_is_a_column_and_a_mutation() -> None:
    assert set(SILENT) <= set(COLUMNS)
    assert {name for known in SILENT.values() for name in known} <= set(MUTATIONS)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_two_columns_mutated_at_once_hide_nothing(
    tmp_path: Path, usual: set[tuple[str, str]], data: st.DataObject
) -> None:
    """A row that one mutation spoils is told whatever another column's mutation does to it as well."""
    first, second = data.draw(st.permutations(COLUMNS), label="columns")[:2]
    one = data.draw(st.sampled_from(list(spoiled(GOOD, first, victims=2))), label="first")
    both = [two for two in spoiled([one.row, *GOOD], second, victims=1) if two.case == one.case]
    if one.mutation in SILENT.get(first, {}) or not both:
        return
    some = [Spoiled(one.mutation, one.case, seal({**both[0].row, first: one.row[first]}))]
    assert untold(tmp_path, some, usual) == {}
