"""Rows into shards while they come: one shard after the other, whole or not there, in bounded memory.

Place in the flow: under import and repair. Imports digests and shard of `contracts`; pyarrow in functions.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from contracts.digests import NAME_COLUMNS
from contracts.shard import (
    CONSTANT_COLUMNS,
    RUN_COLUMNS,
    Row,
    shard_metadata,
    table_of,
    write_table,
)

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_BATCH = 256
ROWS_PER_SHARD = 10_000
BYTES_PER_SHARD = 256 << 20


class ShardWriter:
    """A context manager; `add` rows, and find the shards' names in `paths` when it is left.

    Rows become Arrow columns every `ROWS_PER_BATCH`, a shard at `ROWS_PER_SHARD` rows or `BYTES_PER_SHARD`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        format_name: str,
        strength: str,
        stem: str = "part",
        metadata: dict[str, str] | None = None,
        single: str | None = None,
    ) -> None:
        self._folder, self._format, self._strength, self._stem = folder, format_name, strength, stem
        self._more, self._single = metadata or {}, single
        self._pending: list[Row] = []
        self._tables: list[pa.Table] = []
        self._held = 0
        self.rows = 0
        self.paths: list[Path] = []

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._roll()

    def add(self, row: Row) -> None:
        """Take one row.

        Raises:
            ShardError: it does not fit the schema; it is left out, and the next may come.
        """
        table_of([row], self._strength)
        self.take(row)

    def take(self, row: Row) -> None:
        """Take one row that is known to fit the schema."""
        self._pending.append(row)
        self.rows += 1
        if len(self._pending) >= ROWS_PER_BATCH:
            self._settle()
            full = self._held >= ROWS_PER_SHARD or sum(t.nbytes for t in self._tables) >= BYTES_PER_SHARD
            if full and self._single is None:
                self._roll()

    def _settle(self) -> None:
        if self._pending:
            self._tables.append(table_of(self._pending, self._strength))
            self._held += len(self._pending)
            self._pending = []

    def _roll(self) -> None:
        import pyarrow as pa

        self._settle()
        if not self._tables:
            return
        table = pa.concat_tables(self._tables).unify_dictionaries()
        named = table.select([*NAME_COLUMNS, *CONSTANT_COLUMNS, *RUN_COLUMNS]).to_pylist()
        metadata = shard_metadata(named, format_name=self._format, strength=self._strength)
        path = self._folder / (self._single or f"{self._stem}-{len(self.paths):05d}.parquet")
        write_table(path, table.replace_schema_metadata({**metadata, **self._more}))
        self.paths.append(path)
        self._tables, self._held = [], 0
