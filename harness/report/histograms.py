"""The audit's charts as plain geometry: bars of lengths and of names, for inline SVG.

Place in the flow: under the HTML report. Imports the audit's summary and the text helpers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.audit_summary import count, share
from harness.report.text import safe

WIDTH = 360
BASE = 122
"""Where the bars stand, in SVG units from the top."""
TOP = 18
NAMED = 12


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its box in SVG units, its label, and how many rows it stands for."""

    x: float
    y: float
    width: float
    height: float
    label: str
    rows: int
    share: str
    marked: bool = False

    @property
    def middle(self) -> float:
        """Return the middle of the box, where a label stands."""
        return round(self.x + self.width / 2, 1)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: title, its bars, and in words what they show."""

    title: str
    bars: tuple[Bar, ...]
    words: str
    unit: str = ""
    tilted: bool = False


def length_chart(title: str, lengths: Mapping[str, Any]) -> Chart:
    """Return the histogram of one column's lengths, from `AuditResult.stats["lengths"]`."""
    bins: Sequence[Sequence[int]] = lengths["bins"]
    first = next((at for at, entry in enumerate(bins) if entry[2]), 0)
    pairs = [(_span(low, high), rows) for low, high, rows in bins[first:]]
    present, absent = lengths["present"], lengths["absent"]
    words = count(present, "row")
    if present:
        words += f", on average {lengths['total'] / present:,.0f}, at most {lengths['longest']:,}"
        words += f" {lengths['unit']}"
    if absent:
        words += f"; {count(absent, 'row')} without any"
    return Chart(title, _bars(pairs, present), words, lengths["unit"], tilted=len(pairs) > 7)


def name_chart(title: str, counts: Mapping[str, int]) -> Chart:
    """Return bars for counted names, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    pairs = [(safe(name, 14), rows) for name, rows in ordered[:NAMED]]
    rest = ordered[NAMED:]
    words = ", ".join(f"{safe(name, 40)} {rows:,}" for name, rows in ordered[:NAMED])
    if rest:
        pairs.append(("others", sum(rows for _, rows in rest)))
        words += f", {len(rest)} others"
    return Chart(title, _bars(pairs, sum(counts.values())), words, tilted=len(pairs) > 5)


def _bars(pairs: Sequence[tuple[str, int]], whole: int) -> tuple[Bar, ...]:
    if not pairs:
        return ()
    most = max(rows for _, rows in pairs) or 1
    step = min(WIDTH / len(pairs), 64)
    bars = []
    for at, (label, rows) in enumerate(pairs):
        # One row among a million still shows as a line.
        height = max(round((BASE - TOP) * rows / most, 1), 1.0) if rows else 0.0
        bars.append(
            Bar(
                x=round(at * step + step * 0.08, 1),
                y=round(BASE - height, 1),
                width=round(step * 0.84, 1),
                height=height,
                label=label,
                rows=rows,
                share=share(rows, whole),
            )
        )
    return tuple(bars)


def _span(low: int, high: int) -> str:
    if low == high:
        return str(low)
    # From 1,024 on, a bin's last length is told as the round number after it.
    return f"{low}–{high}" if high < 1024 else f"{_short(low)}–{_short(high + 1)}"


def _short(number: int) -> str:
    for power, suffix in ((40, "T"), (30, "G"), (20, "M"), (10, "k")):
        if number >= 1 << power:
            return f"{number >> power}{suffix}"
    return str(number)
