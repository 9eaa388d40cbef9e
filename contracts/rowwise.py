"""The row checks over a batch: each sees only the rows that might break its rules.

Place in the flow: inside the scan. Imports the registry; polars and pyarrow inside functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from contracts.rules.own import RulesError
from contracts.rules.registry import DISTINCT, ROW_CHECKS, RULES, SUSPECTS, Batch, Context, RowCheck

if TYPE_CHECKING:
    import polars as pl

UNREADABLE = (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError)
"""What a check raises on a row that it can't read: a finding. Anything else is a fault of ours."""

ROWS_AT_ONCE = 256
"""Rows turned into Python objects at a time."""


def row_hits(batch: Batch, context: Context) -> Iterator[tuple[int, str, str | None, str, str | None]]:
    """Yield (row in the batch, rule, column, message, sample id) of each hit, in row order."""
    import numpy as np

    masks = [(check, _suspects(check, batch, context)) for check in ROW_CHECKS]
    masks = [(check, mask) for check, mask in masks if mask.any()]
    if not masks:
        return
    union = np.logical_or.reduce([mask.to_numpy() for _, mask in masks])
    places = np.flatnonzero(union)
    for start in range(0, len(places), ROWS_AT_ONCE):
        some = places[start : start + ROWS_AT_ONCE]
        for at, row in zip(some.tolist(), batch.table.take(some).to_pylist(), strict=True):
            for check, mask in masks:
                if mask[at]:
                    for rule, column, message in _hits(check, row, context):
                        yield at, rule, column, message, row.get("sample_id")


def _suspects(check: RowCheck, batch: Batch, context: Context) -> pl.Series:
    import polars as pl
    import pyarrow as pa

    try:
        if context.fast and check in DISTINCT:
            mask = _distinct(check, batch, context)
        elif context.fast and check in SUSPECTS:
            mask = SUSPECTS[check](batch, context)
        else:
            return pl.repeat(True, batch.frame.height, dtype=pl.Boolean, eager=True)
    except (*UNREADABLE, pl.exceptions.PolarsError, pa.ArrowException):
        # Rows that a batch can't be made of are read one by one, so that the odd one is named.
        return pl.repeat(True, batch.frame.height, dtype=pl.Boolean, eager=True)
    return mask.fill_null(True)


def _distinct(check: RowCheck, batch: Batch, context: Context) -> pl.Series:
    """Return the rows whose values in the check's columns break a rule, asking once for each combination."""
    import polars as pl

    names = list(DISTINCT[check])
    frame = batch.frame.select(names)
    kinds = frame.unique(maintain_order=True)
    broken = [any(True for _ in _hits(check, row, context)) for row in kinds.iter_rows(named=True)]
    if not any(broken):
        return pl.repeat(False, frame.height, dtype=pl.Boolean, eager=True)
    bad = kinds.filter(pl.Series(broken)).with_columns(_broken=pl.lit(True))
    joined = frame.join(bad, on=names, how="left", nulls_equal=True, maintain_order="left")
    return joined["_broken"].fill_null(False)


def _hits(check: RowCheck, row: Mapping[str, Any], context: Context) -> Iterator[tuple[str, str | None, str]]:
    """Yield what a check says of a row. That it can't read the row is a hit too: another rule is broken."""
    try:
        for rule, column, message in check(row, context):
            if context.active(RULES[rule]):
                yield rule, column, message
    except SystemExit as error:
        name = getattr(check, "__name__", "a check")
        raise RulesError(
            f"the check `{name}` ends the process", remedy="yield a hit for a broken rule, never exit"
        ) from error
    except UNREADABLE as error:
        name = getattr(check, "__name__", "check")
        yield "row-unreadable", None, f"{name} could not read the row: {one_line(error)}"


def one_line(error: BaseException) -> str:
    """Return an error's type and text in one line of at most 300 characters."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
