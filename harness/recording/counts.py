"""What a shard's rows look like, counted once when it is written: the run's report needs no second reading.

Place in the flow: under the store. Imports `contracts`; polars inside functions. A count is plain JSON of a
few kilobytes, kept in the manifest beside the shard's name; those of several shards are merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    *("completion_tokens", "prompt_tokens", "reasoning_content", "content", "finish_reason", "verdict"),
    *("losses", "created_at"),
)
"""The columns that are counted."""

EXAMPLES = 3
"""Rows remembered for each named loss over the whole run."""


def counts_of(table: pa.Table, file: str) -> dict[str, Any]:
    """Return what a shard's rows look like; `file` names it in the places of examples.

    `verdicts`, `losses` and `finish_reasons` by name; `lengths` as `contracts.stats` tells them; `minutes` as
    [minute since 1970, answers, response tokens], an answer counted when it came; `examples`: loss → rows.
    """
    import polars as pl

    from contracts.stats import Stats

    frame = pl.DataFrame(pl.from_arrow(table.select(COLUMNS)))
    stats = Stats()
    stats.add(file, 0, frame)
    told = stats.to_json()
    losses: Counter[str] = Counter(frame["losses"].explode().drop_nulls().to_list())
    minutes = (
        frame.group_by((pl.col("created_at").dt.epoch("s") // 60).alias("minute"))
        .agg(pl.len().alias("rows"), pl.col("completion_tokens").sum().alias("tokens"))
        .sort("minute")
    )
    return {
        "verdicts": told["verdicts_by_shard"][file],
        "losses": dict(losses.most_common()),
        "finish_reasons": told["finish_reasons"],
        "lengths": told["lengths"],
        "minutes": [list(one) for one in minutes.iter_rows()],
        "examples": {loss: [row for _, row in places] for loss, places in told["examples"].items()},
    }


@dataclass(slots=True)
class Counts:
    """Counts over a run. `examples` holds (shard file, row) for each loss; `minutes` is sorted when read."""

    rows: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    lengths: dict[str, dict[str, Any]] = field(default_factory=dict)
    minutes: dict[int, tuple[int, int]] = field(default_factory=dict)
    examples: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Return the response tokens of all rows."""
        return sum(tokens for _, tokens in self.minutes.values())

    def add(self, file: str, rows: int, counts: Mapping[str, Any]) -> None:
        """Take in one shard's counts."""
        self.rows += rows
        self.verdicts.update(counts["verdicts"])
        self.losses.update(counts["losses"])
        self.finish_reasons.update(counts["finish_reasons"])
        for name, lengths in counts["lengths"].items():
            known = self.lengths.get(name)
            self.lengths[name] = lengths if known is None else _merged(known, lengths)
        for minute, answers, tokens in counts["minutes"]:
            before = self.minutes.get(minute, (0, 0))
            self.minutes[minute] = before[0] + answers, before[1] + tokens
        for loss, places in counts["examples"].items():
            kept = self.examples.setdefault(loss, [])
            kept += [(file, row) for row in places][: EXAMPLES - len(kept)]


def merged(shards: Iterable[tuple[str, int, Mapping[str, Any]]]) -> Counts:
    """Return the counts of (file, rows, counts) of a run's shards, in order."""
    every = Counts()
    for file, rows, counts in shards:
        every.add(file, rows, counts)
    return every


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    bins = {low: [low, high, rows] for low, high, rows in one["bins"]}
    for low, high, rows in other["bins"]:
        bins.setdefault(low, [low, high, 0])[2] += rows
    return {
        "unit": one["unit"],
        **{name: one[name] + other[name] for name in ("present", "absent", "total")},
        "longest": max(one["longest"], other["longest"]),
        "bins": [bins[low] for low in sorted(bins)],
    }
