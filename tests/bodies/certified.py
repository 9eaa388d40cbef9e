"""Certified sets for the tests: real rows, audited and certified, in several shards and row groups.

Place in the flow: test data. Imports `contracts` and `fixtures.corruptions.rows`.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from contracts import audit, write_shard
from contracts.shard import Row, seal
from fixtures.corruptions.rows import CLEAN, codec, rows_of

CASES = CLEAN[:8]
EACH = len(CASES)


def rows_in(number: int) -> list[Row]:
    """The rows of shard `number`: one of each clean case, told from other shards' by id and sample index."""
    rows = rows_of(CASES, first=100 * number)
    return [seal({**row, "sample_index": number}) for row in rows]


def write_grouped(path: Path, rows: list[Row], size: int) -> None:
    """Write a shard in row groups of `size` rows."""
    write_shard(path, rows, format_name="kimi_k2")
    table = pq.read_table(path)
    with path.open("wb") as handle, pq.ParquetWriter(handle, table.schema) as writer:
        for first in range(0, table.num_rows, size):
            writer.write_table(table.slice(first, size))


def certified_set(folder: Path, shards: int = 3, *, size: int = 2, bad: bool = False, first: int = 0) -> Path:
    """A certified folder of `shards` shards in row groups of `size`; with `bad`, the last has a bad row."""
    for number in range(first, first + shards):
        rows = rows_in(number)
        if bad and number == first + shards - 1:
            rows[2] = seal({**rows[2], "completion_tokens": rows[2]["completion_tokens"] + 1})
        write_grouped(folder / "shards" / f"{number}.parquet", rows, size)
    result = audit([folder], codec=codec(), certify=folder, checked_by="the suite")
    assert result.certificate, result.note or result.findings
    return folder


def ids(table: pa.Table) -> list[str]:
    """The rows' ids, in order."""
    return list(table["sample_id"].to_pylist())
