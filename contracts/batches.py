"""A shard's rows in batches of bounded size, whatever the size of its row groups.

Place in the flow: inside the scan. Imports pyarrow inside functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MAX_ROWS = 8192
MAX_BYTES = 48 << 20
"""Uncompressed bytes of a batch. The checks need some four times as much; more only costs page faults."""


def read_batches(
    parquet: pq.ParquetFile, *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
) -> Iterator[pa.Table]:
    """Yield all rows in order: small row groups several at a time, big ones in parts.

    The tables have no schema metadata: polars panics where it is no UTF-8, and needs none.
    """
    import pyarrow as pa

    metadata = parquet.metadata
    waiting: list[int] = []
    rows = size = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        count, weight = group.num_rows, max(group.total_byte_size, 0)
        if waiting and (rows + count > max_rows or size + weight > max_bytes):
            yield parquet.read_row_groups(waiting).replace_schema_metadata(None)
            waiting, rows, size = [], 0, 0
        if count > 2 * max_rows or (weight > 2 * max_bytes and count > 1):
            some = max(1, min(max_rows, max_bytes * count // max(weight, 1)))
            for batch in parquet.iter_batches(batch_size=some, row_groups=[index]):
                yield pa.Table.from_batches([batch]).replace_schema_metadata(None)
            continue
        waiting.append(index)
        rows, size = rows + count, size + weight
    if waiting:
        yield parquet.read_row_groups(waiting).replace_schema_metadata(None)
