"""What data-set rules remember of every row: a few numpy columns, some bytes a row, in the shards' order.

Place in the flow: under the data-set rules. Imports numpy, polars and pyarrow inside functions. Names of rows
are not kept: they are read from the shards again, for the rows that a finding is about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

Hits = list[tuple[str, str, int | None, str | None, str]]
SEEDS = (0x5AFE, 0xC0DE)


def hashed(frame: pl.DataFrame, *columns: str | pl.Expr) -> tuple[np.ndarray, np.ndarray]:
    """Return two 64-bit hashes (rows,) of the columns' values together: 16 bytes a row."""
    chosen = frame.select(columns)
    high, low = (chosen.hash_rows(seed=seed).to_numpy() for seed in SEEDS)
    return high, low


class Tape:
    """Columns of numbers, one value a row, appended frame by frame and shard by shard."""

    def __init__(self) -> None:
        self._parts: dict[str, list[np.ndarray]] = {}
        self._segments: list[tuple[str, int, int]] = []
        self.rows = 0

    def add(self, shard: str, first_row: int, columns: Mapping[str, np.ndarray], count: int) -> int:
        """Append one frame's values; return the running number of its first row."""
        before = self.rows
        self._segments.append((shard, first_row, count))
        for name, values in columns.items():
            self._parts.setdefault(name, []).append(values)
        self.rows += count
        return before

    def merge(self, other: Tape) -> int:
        """Append another tape; return the running number of its first row."""
        before = self.rows
        for name, parts in other._parts.items():
            self._parts.setdefault(name, []).extend(parts)
        self._segments.extend(other._segments)
        self.rows += other.rows
        return before

    def replace(self, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
        """Change a column's values, whatever was seen of it."""
        self._parts[name] = [change(part) for part in self._parts.get(name, [])]

    def column(self, name: str) -> np.ndarray:
        """Return one column (rows,)."""
        import numpy as np

        parts = self._parts.get(name, [])
        if len(parts) != 1:
            self._parts[name] = parts = [np.concatenate(parts) if parts else np.empty(0, np.int64)]
        return parts[0]

    def places(self, indices: Iterable[int]) -> dict[int, tuple[str, int]]:
        """Return (shard, row) of each running number."""
        import numpy as np

        starts = np.cumsum([0, *(count for _, _, count in self._segments)])
        out = {}
        for index in indices:
            at = int(np.searchsorted(starts, index, side="right")) - 1
            shard, first, _ = self._segments[at]
            out[int(index)] = (shard, first + int(index) - int(starts[at]))
        return out

    def named(self, indices: Iterable[int]) -> dict[int, tuple[str, int, str | None]]:
        """Return (shard, row, sample id) of each running number; ids are read from the shards."""
        places = self.places(indices)
        wanted: dict[str, list[int]] = {}
        for shard, row in places.values():
            wanted.setdefault(shard, []).append(row)
        names = {
            (shard, row): name
            for shard, rows in wanted.items()
            for row, name in zip(rows, sample_names(shard, rows), strict=True)
        }
        return {index: (shard, row, names[shard, row]) for index, (shard, row) in places.items()}


def sample_names(shard: str, rows: Sequence[int]) -> list[str | None]:
    """Return the sample ids of some rows of a shard; None where the file can't be read any more."""
    names = dict(read_again(shard, rows, "sample_id"))
    return [names.get(row) for row in rows]


def read_again(shard: str, rows: Collection[int], column: str) -> Iterator[tuple[int, Any]]:
    """Yield (row, value) of some rows of a shard, in order; a list's value is a polars series.

    A row group is held at a time. Nothing is yielded of a file that can't be read any more.
    """
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted, first = sorted(rows), 0
    try:
        with pq.ParquetFile(shard) as parquet:
            for group in range(parquet.num_row_groups):
                count = parquet.metadata.row_group(group).num_rows
                here = [row for row in wanted if first <= row < first + count]
                if here:
                    values = pl.Series(pl.from_arrow(parquet.read_row_group(group, [column]).column(0)))
                    yield from ((row, values[row - first]) for row in here)
                first += count
    except (OSError, pa.ArrowException):
        return


def repeats(high: np.ndarray, low: np.ndarray) -> list[tuple[int, int]]:
    """Return (row, first row of the same key) of every row but the first of its key, in row order."""
    import numpy as np

    # Sorting one half first tells good data apart at a third of the cost.
    ordered = np.sort(high)
    if not (ordered[1:] == ordered[:-1]).any():
        return []
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    same = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    fresh = np.concatenate([[True], ~same])
    firsts = order[np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))]
    later = ~fresh
    return sorted(zip(order[later].tolist(), firsts[later].tolist(), strict=True))


def find(high: np.ndarray, low: np.ndarray, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Return key → first row of that key, for those of the wanted keys that a row has."""
    import numpy as np

    if not wanted or not len(high):
        return {}
    order = np.argsort(high, kind="stable")
    ordered = high[order]
    out: dict[tuple[int, int], int] = {}
    for key in set(wanted):
        begin, end = (int(np.searchsorted(ordered, np.uint64(key[0]), side)) for side in ("left", "right"))
        rows = [int(row) for row in order[begin:end] if int(low[row]) == key[1]]
        if rows:
            out[key] = rows[0]
    return out


def text_of(value: Any) -> str:
    """Return a value as a message shows it."""
    text = "null" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
