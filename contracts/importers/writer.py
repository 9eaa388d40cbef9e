"""Rows into shards while they come: one shard after the other, whole or not there, in bounded memory.

Place in the flow: under import and repair. Imports batch_digests and shard of `contracts`; pyarrow and polars
in functions.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from contracts.shard import (
    CONSTANT_COLUMNS,
    NAMES_KEY,
    ROWS_PER_GROUP,
    RUN_COLUMNS,
    Row,
    arrow_schema,
    replace_file,
    shard_metadata,
    table_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_BATCH = 256
BYTES_PER_GROUP = 64 << 20
ROWS_PER_SHARD = 10_000
BYTES_PER_SHARD = 256 << 20
"""Sizes as Arrow columns, before compression."""


class ShardWriter:
    """A context manager; `take` rows, and find the shards' names in `paths` when it is left.

    Rows become Arrow columns every `ROWS_PER_BATCH`, a row group at `ROWS_PER_GROUP` or `BYTES_PER_GROUP`, a
    shard at `ROWS_PER_SHARD` or `BYTES_PER_SHARD`; with `single` all go to one shard of that name. A row
    group is what is held in memory.
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
        self._file: _Growing | None = None
        self.rows = 0
        self.paths: list[Path] = []

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._settle()
            self._roll()
        elif self._file is not None:
            self._file.drop()

    def take(self, row: Row) -> None:
        """Take one row that is known to fit the schema."""
        self._pending.append(row)
        self.rows += 1
        if len(self._pending) >= ROWS_PER_BATCH:
            self._settle()

    def take_table(self, table: pa.Table) -> None:
        """Take rows that are columns in the shard's schema already, as they were read from a shard."""
        self._settle()
        self.rows += table.num_rows
        self._add(table)

    def _settle(self) -> None:
        if self._pending:
            self._add(table_of(self._pending, self._strength))
            self._pending = []

    def _add(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        if self._file is None:
            name = self._single or f"{self._stem}-{len(self.paths):05d}.parquet"
            self._file = _Growing(self._folder / name, self._strength)
        self._file.add(table)
        if self._single is None and (
            self._file.rows >= ROWS_PER_SHARD or self._file.nbytes >= BYTES_PER_SHARD
        ):
            self._roll()

    def _roll(self) -> None:
        if self._file is not None:
            self._file.close(self._format, self._strength, self._more)
            self.paths.append(self._file.path)
            self._file = None


class _Growing:
    """One shard whose rows still come: they wait in a file beside it, since its head tells of all of them.

    What a parquet file says of its rows stands in its schema, which is written first.
    """

    def __init__(self, path: Path, strength: str) -> None:
        import pyarrow as pa

        self.path, self.rows, self.nbytes = path, 0, 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._schema = arrow_schema(strength)
        self._waiting = path.with_name(f".{path.name}.{os.getpid()}.rows.tmp")
        self._stream = pa.ipc.new_stream(str(self._waiting), self._schema)
        self._tables: list[pa.Table] = []
        self._lines: list[bytes] = []
        self._values: dict[str, set[Any]] = {name: set() for name in (*CONSTANT_COLUMNS, *RUN_COLUMNS)}

    def add(self, table: pa.Table) -> None:
        import polars as pl
        import pyarrow.compute as pc

        from contracts.batch_digests import name_lines
        from contracts.digests import NAME_COLUMNS

        named = pl.from_arrow(table.select(NAME_COLUMNS))
        assert isinstance(named, pl.DataFrame)
        self._lines += name_lines(named)
        for name, values in self._values.items():
            if len(values) < 2:  # a second value says that it is no constant
                values.update(pc.unique(table[name]).to_pylist())
        self._tables.append(table)
        self.rows += table.num_rows
        self.nbytes += table.nbytes
        held = sum(one.num_rows for one in self._tables), sum(one.nbytes for one in self._tables)
        if held[0] >= ROWS_PER_GROUP or held[1] >= BYTES_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._tables:
            table = pa.concat_tables(self._tables).unify_dictionaries().combine_chunks()
            self._stream.write_table(table.replace_schema_metadata(None))
            self._tables = []

    def close(self, format_name: str, strength: str, more: dict[str, str]) -> None:
        """Write the shard from what waits, its metadata first."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from contracts.batch_digests import names_digest

        self._flush()
        self._stream.close()
        alike = {name: next(iter(values)) for name, values in self._values.items() if len(values) == 1}
        metadata = shard_metadata([], format_name=format_name, strength=strength, constants=alike)
        schema = self._schema.with_metadata({**metadata, NAMES_KEY: names_digest(self._lines), **more})

        def fill(handle: Any) -> None:
            with (
                pa.memory_map(str(self._waiting)) as waiting,
                pa.ipc.open_stream(waiting) as stream,
                pq.ParquetWriter(handle, schema, compression="zstd", compression_level=1) as parquet,
            ):
                for batch in stream:
                    table = pa.Table.from_batches([batch]).replace_schema_metadata(schema.metadata)
                    parquet.write_table(table, row_group_size=ROWS_PER_GROUP)

        try:
            replace_file(self.path, fill)
        finally:
            self._waiting.unlink(missing_ok=True)

    def drop(self) -> None:
        """Leave nothing behind."""
        self._stream.close()
        self._waiting.unlink(missing_ok=True)
