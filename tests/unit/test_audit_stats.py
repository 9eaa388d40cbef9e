"""What an audit counts while it reads: the same however rows are cut, whole, and bounded.

Place in the flow: tests `contracts.stats` over frames made here.
"""

from __future__ import annotations

import pickle
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from contracts.stats import EXAMPLES, NAMES, OTHERS, Stats

SCHEMA = {
    "completion_tokens": pl.Int32,
    "prompt_tokens": pl.Int32,
    "reasoning_content": pl.String,
    "content": pl.String,
    "finish_reason": pl.String,
    "verdict": pl.String,
    "losses": pl.List(pl.String),
}
ROWS = st.fixed_dictionaries(
    {
        "completion_tokens": st.one_of(st.none(), st.integers(-3, 2**31 - 1)),
        "prompt_tokens": st.integers(0, 300),
        "reasoning_content": st.one_of(st.none(), st.text(max_size=20)),
        "content": st.one_of(st.none(), st.text(max_size=20)),
        "finish_reason": st.one_of(st.none(), st.sampled_from(["stop", "length"])),
        "verdict": st.sampled_from(["exact", "lossy"]),
        "losses": st.lists(st.sampled_from(["a", "b", "c"]), max_size=2),
    }
)


def frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA)


@given(st.lists(ROWS, min_size=1, max_size=20), st.integers(0, 20))
def test_cut_and_merged_the_counts_are_the_same(rows: list[dict[str, Any]], cut: int) -> None:
    whole, one, two = Stats(), Stats(), Stats()
    whole.add("s", 0, frame(rows))
    one.add("s", 0, frame(rows[:cut]))
    two.add("s", min(cut, len(rows)), frame(rows[cut:]))
    one.merge(pickle.loads(pickle.dumps(two)))
    assert one.to_json() == whole.to_json()


@given(st.lists(ROWS, min_size=1, max_size=20))
def test_every_row_is_in_one_bin_that_holds_its_length(rows: list[dict[str, Any]]) -> None:
    stats = Stats()
    stats.add("s", 0, frame(rows))
    told = stats.to_json()["lengths"]
    texts = [row["content"] for row in rows]
    lengths = [len(text.encode()) for text in texts if text is not None]
    bins = told["content"]["bins"]
    assert sum(count for _, _, count in bins) == len(lengths) == len(rows) - told["content"]["absent"]
    for low, high, count in bins:
        assert count == sum(low <= length <= high for length in lengths)
    tokens = [max(row["completion_tokens"], 0) for row in rows if row["completion_tokens"] is not None]
    assert told["response"]["total"] == sum(tokens)
    assert told["response"]["longest"] == max(tokens, default=0)


def test_names_and_examples_are_capped_and_nothing_is_lost() -> None:
    stats = Stats()
    base = dict.fromkeys(SCHEMA)
    for part in range(3):
        rows = [
            {**base, "finish_reason": f"r{part}-{row}", "verdict": "exact", "losses": [f"loss {row}"]}
            for row in range(200)
        ]
        stats.add(f"s{part}", 0, frame(rows))
    told = stats.to_json()
    assert sum(told["finish_reasons"].values()) == 600
    assert len(told["finish_reasons"]) <= NAMES + 1 and told["finish_reasons"][OTHERS] >= 500
    assert len(told["examples"]) == NAMES
    assert all(len(places) == EXAMPLES for places in told["examples"].values())
    assert told["verdicts_by_shard"] == {f"s{part}": {"exact": 200} for part in range(3)}
