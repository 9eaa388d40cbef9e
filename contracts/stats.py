"""What an audit counts besides findings: lengths, finish reasons, verdicts by shard, and where to look.

Place in the flow: beside the rules, filled row group by row group during the scan. Imports the standard
library; polars only while it counts. Its size does not grow with the rows: lengths are kept in bins of powers
of two, names and examples are capped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

NAMES = 40
"""Distinct finish reasons (or verdicts) that are counted by name; a broken file may hold one per row."""
OTHERS = "(others)"
EXAMPLES = 3
"""Rows remembered for each named loss, the first ones met."""


@dataclass(slots=True)
class Lengths:
    """Lengths of one column. Bin 0 holds length 0, bin b the lengths from 2^(b-1) to 2^b - 1.

    `absent` counts the nulls, `total` sums the lengths, `longest` is their maximum.
    """

    unit: str
    bins: Counter[int] = field(default_factory=Counter)
    absent: int = 0
    total: int = 0
    longest: int = 0

    def add(self, lengths: pl.Series) -> None:
        """Count one row group's lengths; null is absent, a negative one (a broken row) counts as 0."""
        import polars as pl

        there = lengths.drop_nulls().cast(pl.Int64).clip(lower_bound=0)
        self.absent += len(lengths) - len(there)
        if not len(there):
            return
        self.total += int(there.sum())
        self.longest = max(self.longest, int(there.max()))  # type: ignore[arg-type]
        top = max(self.longest.bit_length(), 1)
        edges = pl.Series("edge", [1 << power for power in range(top)], dtype=pl.Int64)
        for number, count in edges.search_sorted(there, side="right").value_counts().iter_rows():
            self.bins[int(number)] += count

    def merge(self, other: Lengths) -> None:
        """Take over what another one counted."""
        self.bins.update(other.bins)
        self.absent += other.absent
        self.total += other.total
        self.longest = max(self.longest, other.longest)

    def to_json(self) -> dict[str, Any]:
        """Return unit, present, absent, total, longest and `bins`: [from, to, rows] up to the last used."""
        last = max(self.bins, default=-1)
        return {
            "unit": self.unit,
            "present": sum(self.bins.values()),
            "absent": self.absent,
            "total": self.total,
            "longest": self.longest,
            "bins": [[*bounds(number), self.bins[number]] for number in range(last + 1)],
        }


def bounds(number: int) -> tuple[int, int]:
    """Return the smallest and the largest length of a bin."""
    return (0, 0) if number == 0 else (1 << (number - 1), (1 << number) - 1)


@dataclass(slots=True)
class Stats:
    """What one or several shards' rows look like. It pickles, and merges in the order of the shards."""

    lengths: dict[str, Lengths] = field(
        default_factory=lambda: {
            "response": Lengths("tokens"),
            "prompt": Lengths("tokens"),
            "reasoning": Lengths("UTF-8 bytes"),
            "content": Lengths("UTF-8 bytes"),
        }
    )
    finish: Counter[str] = field(default_factory=Counter)
    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    examples: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    def add(self, shard: str, first_row: int, frame: pl.DataFrame) -> None:
        """Count one row group of a shard, whose first row is number `first_row`."""
        import polars as pl

        for name, column in (("response", "completion_tokens"), ("prompt", "prompt_tokens")):
            self.lengths[name].add(frame[column])
        for name, column in (("reasoning", "reasoning_content"), ("content", "content")):
            self.lengths[name].add(frame[column].str.len_bytes())
        _count(self.finish, frame["finish_reason"])
        _count(self.verdicts.setdefault(shard, Counter()), frame["verdict"])
        lossy = frame["losses"].list.len().fill_null(0) > 0
        if not lossy.any():
            return
        rows = pl.DataFrame({"row": lossy.arg_true(), "loss": frame["losses"].filter(lossy)})
        named = rows.explode("loss").drop_nulls()
        for (loss,), group in named.group_by(["loss"], maintain_order=True):
            kept = self.examples.get(str(loss), [])
            if len(kept) < EXAMPLES and (kept or len(self.examples) < NAMES):
                places = group["row"].head(EXAMPLES - len(kept)).to_list()
                self.examples[str(loss)] = kept + [(shard, first_row + at) for at in places]

    def merge(self, other: Stats) -> None:
        """Take over what was counted of the shards that come after."""
        for name, lengths in other.lengths.items():
            self.lengths[name].merge(lengths)
        _add(self.finish, other.finish)
        for shard, counts in other.verdicts.items():
            _add(self.verdicts.setdefault(shard, Counter()), counts)
        for loss, places in other.examples.items():
            kept = self.examples.get(loss, [])
            if kept or len(self.examples) < NAMES:
                self.examples[loss] = (kept + places)[:EXAMPLES]

    def to_json(self) -> Mapping[str, Any]:
        """Return `lengths`, `finish_reasons`, `verdicts_by_shard`, `examples`: loss → some [shard, row]."""
        return {
            "lengths": {name: lengths.to_json() for name, lengths in self.lengths.items()},
            "finish_reasons": dict(sorted(self.finish.items())),
            "verdicts_by_shard": {
                shard: dict(sorted(counts.items())) for shard, counts in self.verdicts.items()
            },
            "examples": {
                loss: [list(place) for place in places] for loss, places in sorted(self.examples.items())
            },
        }


def _count(counts: Counter[str], column: pl.Series) -> None:
    import polars as pl

    named = column.cast(pl.String).fill_null("(null)").value_counts(sort=True)
    _add(counts, dict(named.iter_rows()))


def _add(counts: Counter[str], more: Mapping[str, int]) -> None:
    for name, count in sorted(more.items(), key=lambda pair: (-pair[1], pair[0])):
        known = name in counts or len(counts) < NAMES
        counts[name if known else OTHERS] += count
