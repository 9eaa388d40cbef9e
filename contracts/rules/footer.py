"""A shard's own statistics: the footer's least and greatest values and null counts, held against the rows.

Place in the flow: inside the scan, batch by batch. Imports the registry; pyarrow in functions. Readers leave
out row groups by these numbers without looking at them: false ones make rows vanish from a filtered read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from contracts.rules.registry import RuleSpec, declare

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

declare(
    RuleSpec(
        "statistics-false",
        "the footer's statistics of a column are not true of its rows",
        "write it again with `contracts.shard.write_shard`; readers that filter would pass rows over",
        scope="file",
        report="PARQUET-251",
    )
)


@dataclass(slots=True)
class _Told:
    """What a row group's footer says of one column, and what was seen of it."""

    column: str
    group: int
    low: Any
    high: Any
    nulls: int | None
    seen: list[tuple[Any, Any]] = field(default_factory=list)
    seen_nulls: int = 0


class Footer:
    """Takes a shard's batches in order; `faults` says where its statistics are false.

    Compared are flat columns of numbers, times and texts, and the ids inside lists.
    """

    def __init__(self, metadata: pq.FileMetaData) -> None:
        self._ends: list[int] = []
        self._told: list[list[_Told]] = []
        self._first = 0
        end = 0
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            end += group.num_rows
            self._ends.append(end)
            self._told.append(
                [told for told in map(_told, _chunks(group), [index] * group.num_columns) if told]
            )

    def add(self, table: pa.Table) -> None:
        """Look at the next rows."""
        done = 0
        while done < table.num_rows:
            at = self._first + done
            index = next((n for n, end in enumerate(self._ends) if at < end), None)
            if index is None:
                return  # more rows than the footer tells, which the scan does
            count = min(self._ends[index] - at, table.num_rows - done)
            self._look(table.slice(done, count), self._told[index])
            done += count
        self._first += table.num_rows

    def _look(self, rows: pa.Table, told: list[_Told]) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        for one in told:
            name, _, inner = one.column.partition(".")
            values = rows[name]
            if inner:
                values = pc.list_flatten(values)
            elif pa.types.is_dictionary(values.type):
                one.seen_nulls += values.null_count
                values = values.unique().cast(pa.string()).drop_null()
            if not inner:
                one.seen_nulls += values.null_count
            found = pc.min_max(values)
            if found["min"].is_valid:
                one.seen.append((found["min"].as_py(), found["max"].as_py()))

    def faults(self) -> list[str]:
        """Return what is false, a text each."""
        return [text for told in self._told for one in told if (text := _fault(one))]


def _chunks(group: pq.RowGroupMetaData) -> list[pq.ColumnChunkMetaData]:
    return [group.column(index) for index in range(group.num_columns)]


_LISTS = ("prompt_token_ids", "response_token_ids")


def _told(chunk: pq.ColumnChunkMetaData, group: int) -> _Told | None:
    """Return what a column's statistics say, None where there are none or they are not compared."""
    path = chunk.path_in_schema.split(".")
    inner = path[0] in _LISTS
    if (len(path) > 1 and not inner) or not chunk.is_stats_set:
        return None
    statistics = chunk.statistics
    try:
        low, high = (statistics.min, statistics.max) if statistics.has_min_max else (None, None)
    except (ValueError, OverflowError, NotImplementedError):
        return None
    nulls = statistics.null_count if statistics.has_null_count and not inner else None
    return _Told(f"{path[0]}.element" if inner else path[0], group, low, high, nulls)


def _fault(one: _Told) -> str:
    """Return what is false of a column's statistics, "" where they hold; wider bounds are true."""
    where = f"{one.column} of row group {one.group}"
    if one.nulls is not None and one.nulls != one.seen_nulls:
        return f"{where}: {one.nulls} nulls told, {one.seen_nulls} there"
    for low, high in one.seen:
        try:
            if (one.low is not None and low < one.low) or (one.high is not None and high > one.high):
                return f"{where}: {one.low!r} to {one.high!r} told, {low!r} to {high!r} there"[:300]
        except TypeError:
            continue
    return ""
