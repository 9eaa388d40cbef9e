"""How a capture run stands, as data: what its folder says, and what the rows of its shards look like.

Place in the flow: between `harness.recording`, which reads it from a folder, and the reports, which show it.
Imports the standard library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXAMPLES = 3
"""Rows remembered for each named loss over the whole run."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard that is whole: its file under `shards/`, rows, bytes, SHA-256; what its rows look like."""

    file: str
    segment: int
    rows: int
    bytes: int
    sha256: str
    counts: dict[str, Any] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class Standing:
    """A run as its folder tells it. `counts` are over all shards, `summary` is the last start's own.

    `starts`: one mapping for each start that came to an end (one that was killed tells nothing any more).
    `failures`: reasons of what failed for good, as `failed.jsonl` lists it.
    """

    folder: Path
    state: str
    settings: Mapping[str, Any]
    server: str
    summary: Mapping[str, Any]
    starts: tuple[Mapping[str, Any], ...]
    shards: tuple[Shard, ...]
    counts: Counts
    failures: Mapping[str, int]
    unrolled: int
    """Bytes of the journal that are in no shard yet."""
    certificate: bool
