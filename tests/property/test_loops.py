"""Repetition loops: found by blocks as by looking at every token, whatever stands around them."""

from __future__ import annotations

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.rules.quality import BLOCK, NEEDED, looping

IDS = st.lists(st.integers(0, 3), max_size=120)


def slowly(ids: list[int], least: int) -> bool:
    """Whether a part of at least `least` tokens repeats itself after a period, by the definition."""
    size = min(BLOCK, max(least // 2, NEEDED * 2))
    for period in range(1, size - NEEDED + 1):
        run = 0
        for n in range(period, len(ids)):
            run = run + 1 if ids[n] == ids[n - period] else 0
            if run and run + period >= least:
                return True
    return False


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(IDS, min_size=1, max_size=5), least=st.sampled_from([16, 24, 40, 64, 96]))
def test_blocks_find_what_every_token_shows(rows: list[list[int]], least: int) -> None:
    series = pl.Series("ids", rows, dtype=pl.List(pl.Int32))
    assert looping(series, least).to_list() == [slowly(row, least) for row in rows]


@settings(max_examples=300, deadline=None)
@given(
    pattern=st.lists(st.integers(0, 99), min_size=1, max_size=28),
    before=st.lists(st.integers(0, 999), max_size=200),
    more=st.integers(0, 90),
)
def test_a_loop_is_found_wherever_it_begins(pattern: list[int], before: list[int], more: int) -> None:
    loop = (pattern * 200)[: 96 + more]
    rows = [before, [*before, *loop, 7777], [8888, *loop[:95]] if len(set(pattern)) == len(pattern) else []]
    told = looping(pl.Series("ids", rows, dtype=pl.List(pl.Int32)), 96).to_list()
    assert told[1] and told == [slowly(row, 96) for row in rows]


def test_null_and_empty_rows_have_none() -> None:
    assert looping(pl.Series("ids", [None, [], [1] * 500], dtype=pl.List(pl.Int32)), 96).to_list() == [
        False,
        False,
        True,
    ]
