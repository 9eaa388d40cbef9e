"""Data-set rules: the same findings however rows are shuffled, cut into shards, and checked in processes."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts import write_shard
from contracts.formats import FORMATS
from contracts.records import Profile
from contracts.rules import SET_CHECKS
from contracts.rules.registry import Context, SetCheck
from contracts.shard import Row, seal
from fixtures.corruptions.rows import CLEAN, codec, rows_of

GOOD = rows_of(CLEAN)
SETTINGS = settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow], deadline=None)
Hits = list[tuple[str, str, int | None, str | None, str]]


def context(shard: str) -> Context:
    return Context(Profile.DRAFT, shard, FORMATS["kimi_k2"], codec())


def fill(checks: Sequence[SetCheck], path: Path, per_frame: int = 3) -> None:
    frame = pl.read_parquet(path)
    for first in range(0, len(frame), per_frame):
        for check in checks:
            check.add(context(str(path)), first, frame[first : first + per_frame])


def in_one_go(paths: Sequence[Path]) -> Hits:
    checks = [check() for check in SET_CHECKS]
    for path in paths:
        fill(checks, path)
    return [hit for check in checks for hit in check.finish()]


def merged(paths: Sequence[Path]) -> Hits:
    """Each shard in checks of its own, as a process has them, merged in order."""
    whole: list[SetCheck] = [check() for check in SET_CHECKS]
    for path in paths:
        own: list[SetCheck] = [check() for check in SET_CHECKS]
        fill(own, path, 2)
        for check, part in zip(whole, pickle.loads(pickle.dumps(own)), strict=True):
            check.merge(part)
    return [hit for check in whole for hit in check.finish()]


def spoiled(data: st.DataObject) -> list[Row]:
    """Draw a set with any of the faults that only the whole set shows."""
    rows = copy.deepcopy(GOOD)
    for kind in data.draw(st.lists(st.sampled_from(sorted(FAULTS)), max_size=4)):
        FAULTS[kind](rows, data.draw(st.integers(0, len(GOOD) - 1)))
    return [seal(row) for row in rows]


def _append(rows: list[Row], at: int, **changes: Any) -> None:
    rows.append({**copy.deepcopy(rows[at]), **changes})


FAULTS = {
    "same id": lambda rows, at: _append(rows, at, sample_index=9, request_id=None),
    "same sample": lambda rows, at: _append(rows, at, sample_id=f"n{len(rows)}", request_id=None),
    "same event": lambda rows, at: _append(rows, at, sample_id=f"n{len(rows)}", sample_index=len(rows)),
    "other model": lambda rows, at: rows[at].update(target_revision="1" * 40),
    "no parent": lambda rows, at: rows[at].update(parent_sample_id="nobody"),
    "parent of its own": lambda rows, at: rows[at].update(parent_sample_id=rows[at]["sample_id"]),
    "other tail": lambda rows, at: rows[at].update(prompt_token_ids=[*rows[at]["prompt_token_ids"], 5]),
}


def shards(folder: str, rows: Sequence[Row], cuts: Sequence[int]) -> list[Path]:
    edges = [0, *sorted(set(cuts)), len(rows)]
    parts = [list(rows[a:b]) for a, b in pairwise(edges) if a < b]
    return [
        write_shard(Path(folder) / f"{n}.parquet", part, format_name="kimi_k2")
        for n, part in enumerate(parts)
    ]


@SETTINGS
@given(data=st.data())
def test_merged_checks_say_what_one_check_says(data: st.DataObject) -> None:
    rows = spoiled(data)
    with TemporaryDirectory() as folder:
        paths = shards(folder, rows, data.draw(st.lists(st.integers(1, len(rows) - 1), max_size=3)))
        assert merged(paths) == in_one_go(paths)


@SETTINGS
@given(data=st.data())
def test_shuffled_rows_give_the_same_findings(data: st.DataObject) -> None:
    """Which of two rows is told as the repeat goes by their order; how many of which rule does not."""
    rows = spoiled(data)
    other = data.draw(st.permutations(rows))
    found = []
    for order, cuts in ((rows, [3]), (other, data.draw(st.lists(st.integers(1, len(rows) - 1), max_size=3)))):
        with TemporaryDirectory() as folder:
            hits = merged(shards(folder, order, cuts))
        # What a set is held against is its first row's value: the other rules' counts go by the order.
        by_the_first = ("provenance-not-constant", "request-shared")
        found.append(Counter(rule for rule, *_ in hits if rule not in by_the_first))
    assert found[0] == found[1]


def test_clean_sets_are_silent(tmp_path: Path) -> None:
    assert merged(shards(str(tmp_path), GOOD, [2, 5])) == []


def test_repeats_of_a_prompt_are_told_from_rows_counted_twice(tmp_path: Path) -> None:
    row = rows_of(CLEAN)[0]
    again = {**row, "sample_id": "other", "sample_index": 1, "request_id": "another"}
    assert merged(shards(str(tmp_path), [row, seal(again)], [])) == [], "n > 1, the same short answer twice"
    later = {**again, "request_id": row["request_id"]}
    twice = merged(shards(str(tmp_path), [row, seal(later)], [1]))
    assert [(rule, at, name) for rule, _, at, name, _ in twice] == [("row-twice", 0, "other")]
    sampling = '{"temperature":1.0,"n":2,"mode":"tools","stream":false}'
    pair = [seal({**one, "sampling_params": sampling}) for one in (row, later)]
    assert merged(shards(str(tmp_path), pair, [])) == [], "one request with n = 2 has one id and one time"


def test_the_row_and_the_other_one_are_named(tmp_path: Path) -> None:
    rows = rows_of(CLEAN)[:3]
    rows.append(seal({**rows[1], "created_at": rows[1]["created_at"] + timedelta(1), "content": "x"}))
    paths = shards(str(tmp_path), rows, [2])
    hits = [hit for hit in merged(paths) if hit[0] == "sample-id-twice"]
    first, second = sorted(hits, key=lambda hit: str(hit[1]))
    assert first[1:4] == (str(paths[0]), 1, "kimi_k2-0001") and f"{paths[1]}, row 1" in first[4]
    assert second[1:4] == (str(paths[1]), 1, "kimi_k2-0001") and f"{paths[0]}, row 1" in second[4]
