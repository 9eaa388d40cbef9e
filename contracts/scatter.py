"""Rows on their way into new shards: read in order or shuffled, cut into row groups and files.

Place in the flow: the second pass of deriving. Imports accounting, certified_set, derive and shard of
`contracts`; numpy and pyarrow inside functions.

The shuffle is over all rows, exact, and outside of memory: each row is dealt into a bucket file by its place
in the new order, and the buckets are ordered one by one. Memory holds one bucket (some 256 MB of rows, or a
200th part of the set where that is more); the disk holds the rows once more until the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.accounting import Summary
from contracts.certified_set import CertifiedSet, permutation
from contracts.derive import DerivedFile
from contracts.shard import METADATA_PREFIX, arrow_schema, replace_file

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

DERIVED_KEY = f"{METADATA_PREFIX}derived_from"
"""Metadata key of a derived shard: the SHA-256 of its sources' certificates, with commas."""
BUCKET_BYTES = 1 << 28
MAX_BUCKETS = 200


def chosen_rows(
    sources: Sequence[CertifiedSet], parts: Sequence[np.ndarray[Any, Any]], part: int
) -> Iterator[pa.Table]:
    """Yield the rows of one part in their order, a table per row group; groups without any are not read."""
    import numpy as np
    import pyarrow as pa

    for source, numbers in zip(sources, parts, strict=True):
        ends = np.cumsum([group.rows for group in source.groups])
        masks = np.split(numbers == part, ends[:-1])
        wanted = [(group, mask) for group, mask in zip(source.groups, masks, strict=True) if mask.any()]
        tables = source.read([group for group, _ in wanted])
        for table, (_, mask) in zip(tables, wanted, strict=True):
            yield table if mask.all() else table.filter(pa.array(mask))


def shuffled_rows(
    tables: Iterator[pa.Table], count: int, seeds: Sequence[int], work: Path
) -> Iterator[pa.Table]:
    """Yield all `count` rows in the order of the seeds, a table per bucket; `work` is a folder of its own."""
    import numpy as np
    import pyarrow as pa

    rank = np.empty(count, np.int64)
    rank[permutation(count, *seeds)] = np.arange(count)
    work.mkdir(parents=True)
    writers: dict[int, Any] = {}
    size = at = 0
    try:
        for table in tables:
            if not size:
                mean = max(1, table.nbytes // max(1, table.num_rows))
                size = max(1, BUCKET_BYTES // mean, -(-count // MAX_BUCKETS))
            own = rank[at : at + table.num_rows]
            at += table.num_rows
            plain = _undictionaried(table).append_column("rank", pa.array(own))
            order = np.argsort(own // size, kind="stable")
            numbers, starts = np.unique((own // size)[order], return_index=True)
            for number, places in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
                if number not in writers:
                    options = pa.ipc.IpcWriteOptions(compression="lz4")
                    path = work / f"{number}.arrows"
                    writers[number] = pa.ipc.new_stream(str(path), plain.schema, options=options)
                writers[number].write_table(plain.take(pa.array(places)))
        for writer in writers.values():
            writer.close()
        for number in sorted(writers):
            path = work / f"{number}.arrows"
            with pa.OSFile(str(path), "rb") as handle:
                bucket = pa.ipc.open_stream(handle).read_all()
            path.unlink()
            yield bucket.take(pa.array(np.argsort(bucket["rank"].to_numpy()))).drop_columns(["rank"])
    finally:
        for writer in writers.values():
            writer.close()
        shutil.rmtree(work, ignore_errors=True)


def write_shards(
    folder: Path,
    tables: Iterator[pa.Table],
    metadata: Mapping[str, str],
    strength: str,
    *,
    rows_per_shard: int,
    rows_per_group: int,
) -> tuple[list[DerivedFile], Summary]:
    """Write tables as shards `00000.parquet`, … in `folder`; returns them, and the summary of their rows."""
    groups = _regrouped(tables, rows_per_group)
    files: list[DerivedFile] = []
    whole = Summary()
    upcoming = next(groups, None)
    while upcoming is not None:
        path = folder / f"{len(files):05}.parquet"
        mine = Summary()

        def write(handle: Any, mine: Summary = mine) -> None:
            nonlocal upcoming
            upcoming = _write_one(handle, upcoming, groups, metadata, strength, rows_per_shard, mine)

        replace_file(path, write)
        files.append(DerivedFile(path, mine.rows.rows))
        whole.merge(mine)
    return files, whole


def _write_one(
    handle: Any,
    group: pa.Table | None,
    groups: Iterator[pa.Table],
    metadata: Mapping[str, str],
    strength: str,
    rows_per_shard: int,
    summary: Summary,
) -> pa.Table | None:
    """Fill one file with row groups, at least one; returns the first group of the next file."""
    import pyarrow.parquet as pq

    schema = arrow_schema(strength).with_metadata(dict(metadata))
    with pq.ParquetWriter(handle, schema, compression="zstd", compression_level=1) as writer:
        while group is not None:
            if summary.rows.rows and summary.rows.rows + group.num_rows > rows_per_shard:
                break
            fitted = _fitted(group, schema)
            summary.add(fitted)
            writer.write_table(fitted, row_group_size=fitted.num_rows)
            group = next(groups, None)
    return group


def _regrouped(tables: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """Yield tables of `size` rows, the last one shorter."""
    import pyarrow as pa

    held: list[pa.Table] = []
    rows = 0
    for table in tables:
        table = _undictionaried(table)
        while table.num_rows:
            piece = table.slice(0, size - rows)
            held.append(piece)
            rows, table = rows + piece.num_rows, table.slice(piece.num_rows)
            if rows == size:
                yield pa.concat_tables(held)
                held, rows = [], 0
    if held:
        yield pa.concat_tables(held)


def _undictionaried(table: pa.Table) -> pa.Table:
    """Return the table with strings for dictionaries, which differ from one row group to the next."""
    import pyarrow as pa

    fields = [
        pa.field(field.name, field.type.value_type, field.nullable)
        if pa.types.is_dictionary(field.type)
        else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return table.combine_chunks().cast(schema)
