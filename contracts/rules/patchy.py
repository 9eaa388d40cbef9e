"""Data-set rule: what one way of asking gives for some rows it gives for all; a lost column shows as nulls.

Place in the flow: rules. Imports registry and tape of `contracts`; polars while a check runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from contracts.rules.registry import RULES, Context, RuleSpec, set_check
from contracts.rules.tape import Hits

if TYPE_CHECKING:
    import polars as pl

COLUMNS = ("output_logprobs", "response_text_raw", "request_id")


@set_check(
    RuleSpec(
        "column-patchy",
        "a column that the rows of one transport mostly have is null in some of them",
        "look for the writer that lost it; trainers take such rows as having no value",
        scope="set",
        kind="quality",
        report="DeepSpec#29, SpecForge resume",
        strengths=("token",),
    ),
)
class Patchy:
    """Counts, by transport and column, the rows that have a value and those that have none."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame."""
        import polars as pl

        if not context.active(RULES["column-patchy"]):
            return
        told = frame.group_by("transport", maintain_order=True).agg(
            pl.len().alias("rows"), *(pl.col(name).null_count() for name in COLUMNS)
        )
        for row in told.iter_rows(named=True):
            for name in COLUMNS:
                self._count(str(row["transport"]), name, row["rows"], row[name])

    def _count(self, transport: str, name: str, rows: int, nulls: int) -> None:
        known = self._counts.get((transport, name), (0, 0))
        self._counts[transport, name] = known[0] + rows, known[1] + nulls

    def merge(self, other: Self) -> None:
        """Take over what was seen of the shards that come after."""
        for (transport, name), (rows, nulls) in other._counts.items():
            self._count(transport, name, rows, nulls)

    def finish(self) -> Hits:
        """Return a hit per column that fewer than half of a transport's rows lack."""
        return [
            ("column-patchy", "", None, None, f"{name} is null in {nulls} of {rows} rows over {transport}")
            for (transport, name), (rows, nulls) in sorted(self._counts.items())
            if 0 < nulls * 2 < rows
        ]
