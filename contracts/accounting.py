"""Which rows a set holds, as one number that does not depend on their order; and what they say in sum.

Place in the flow: under certifying, deriving and verifying. Imports the standard library; numpy and pyarrow
inside functions.

A row's digest is SHA-256 over all of its columns, whatever they are. A set's digest is the sum of its rows'
digests modulo 2^256: the digests of two parts add up to that of the whole, a row lost, doubled or changed
shows, and no order is kept. It accounts for rows; against somebody who means harm the files' own SHA-256 and
the signature stand.

A row's bytes are made column by column in Arrow's memory, never value by value in Python; one call a row is
left, that of SHA-256.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from contracts.segments import FileDigest

MODULUS = 1 << 256


@dataclass(frozen=True, slots=True)
class RowSet:
    """How many rows, and the sum of their digests."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: RowSet) -> RowSet:
        return RowSet(self.rows + other.rows, (self.total + other.total) % MODULUS)

    @property
    def hex(self) -> str:
        """Return the digest as 64 hexadecimal digits."""
        return f"{self.total:064x}"


def row_set(table: pa.Table) -> RowSet:
    """Return the count and the digest of a table's rows."""
    import numpy as np

    words = row_digests(table).view(">u8")  # n rows, 4 words, the highest first
    # 32-bit halves, so that a sum of up to 2^32 rows fits 64 bits.
    low, high = (words & np.uint64(0xFFFFFFFF)).sum(axis=0), (words >> np.uint64(32)).sum(axis=0)
    total = 0
    for part in range(4):
        total += (int(high[part]) << 32) + int(low[part]) << (64 * (3 - part))
    return RowSet(table.num_rows, total % MODULUS)


def row_digests(table: pa.Table) -> np.ndarray[Any, Any]:
    """Return the SHA-256 of each row, shape [rows, 32], uint8. Columns enter by name, sorted."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    names = sorted(table.column_names)
    head = hashlib.sha256("\n".join(names).encode()).digest()
    count = table.num_rows
    if count == 0:
        return np.zeros((0, 32), np.uint8)
    each = np.arange(count + 1, dtype=np.int64)
    fixed: list[Any] = []
    parts: list[pa.Array] = []
    for name in names:
        column = table[name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
        _leaves(column, each, fixed, parts, listed=False)
    block = np.ascontiguousarray(np.concatenate(fixed, axis=1))
    rows = [_binary(block.reshape(-1), each * block.shape[1]), *parts]
    joined = pc.binary_join_element_wise(*rows, pa.scalar(b"", pa.large_binary()))
    ends = np.frombuffer(joined.buffers()[1], np.int64)[: count + 1]
    data, sha256 = memoryview(joined.buffers()[2]), hashlib.sha256
    start = sha256(head)
    out = []
    for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        digest = start.copy()
        digest.update(data[first:last])
        out.append(digest.digest())
    return np.frombuffer(b"".join(out), np.uint8).reshape(count, 32)


def _leaves(
    array: pa.Array, owner: np.ndarray[Any, Any], fixed: list[Any], parts: list[pa.Array], *, listed: bool
) -> None:
    """Add what an array holds: row r of the table owns its elements owner[r] to owner[r + 1].

    One element a row goes into `fixed`, arrays [rows, bytes]; what is `listed`, inside of lists, into
    `parts`, binary arrays. Which of the two the type alone decides: a row's bytes depend on no other row.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type

    def add(values: np.ndarray[Any, Any]) -> None:
        """Add fixed-width values, one an element."""
        width = values.dtype.itemsize
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), width)
        if not listed:
            fixed.append(raw)
        else:
            parts.append(_binary(raw.reshape(-1), owner * width))

    if pa.types.is_dictionary(kind):
        _leaves(array.dictionary_decode(), owner, fixed, parts, listed=listed)
        return
    add(array.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = pc.fill_null(array.value_lengths(), 0).cast(pa.int64()).to_numpy(zero_copy_only=False)
        add(lengths)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        _leaves(array.flatten(), ends[owner], fixed, parts, listed=True)
    elif pa.types.is_struct(kind):
        for child in array.flatten():
            _leaves(child, owner, fixed, parts, listed=listed)
    elif pa.types.is_fixed_size_binary(kind):
        _leaves(array.cast(pa.binary()), owner, fixed, parts, listed=listed)
    elif pa.types.is_boolean(kind):
        add(pc.fill_null(array, False).cast(pa.uint8()).to_numpy(zero_copy_only=False))
    elif pa.types.is_timestamp(kind):
        add(pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False))
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        add(pc.fill_null(array, 0).to_numpy(zero_copy_only=False))
    else:
        large = array.cast(pa.large_string() if pa.types.is_string(kind) else pa.large_binary())
        text = pa.concat_arrays([pc.fill_null(large, "" if pa.types.is_string(kind) else b"")])
        ends = np.frombuffer(text.buffers()[1], np.int64, len(text) + 1, text.offset * 8)
        add(np.diff(ends))
        data = text.buffers()[2]
        raw = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        parts.append(_binary(raw, ends[owner]))


def _binary(raw: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> pa.Array:
    """Return the pieces of `raw` between consecutive ends as a binary array; nothing is copied."""
    import numpy as np
    import pyarrow as pa

    offsets = pa.py_buffer(np.ascontiguousarray(ends, np.int64))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(ends) - 1, [None, offsets, pa.py_buffer(np.ascontiguousarray(raw))]
    )


CLAIM_NAMES = ("captured", "text", "rebuilt", "tokens")


@dataclass(slots=True)
class Summary:
    """What a set's rows say in sum, added up table by table: count, digest, verdicts, claims, provenance."""

    rows: RowSet = field(default_factory=RowSet)
    verdicts: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    claims: dict[str, Counter[str]] = field(default_factory=dict)
    provenance: dict[str, set[str | None]] = field(default_factory=dict)

    def add(self, table: pa.Table) -> None:
        """Add the rows of a shard's table; all of a shard's columns must be there."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from contracts.shard import CONSTANT_COLUMNS, RUN_COLUMNS

        self.rows = self.rows + row_set(table)
        self.verdicts.update(_counts(table["verdict"]))
        self.losses.update(_counts(pc.list_flatten(table["losses"])))
        for name in CLAIM_NAMES:
            values = pc.struct_field(table["claims"], name).cast(pa.string())
            self.claims.setdefault(name, Counter()).update(_counts(pc.fill_null(values, "null")))
        for name in (*CONSTANT_COLUMNS, *RUN_COLUMNS):
            self.provenance.setdefault(name, set()).update(table[name].cast(pa.string()).unique().to_pylist())

    def merge(self, other: Summary) -> None:
        """Add what another summary has counted."""
        self.rows = self.rows + other.rows
        self.verdicts.update(other.verdicts)
        self.losses.update(other.losses)
        for name, counts in other.claims.items():
            self.claims.setdefault(name, Counter()).update(counts)
        for name, values in other.provenance.items():
            self.provenance.setdefault(name, set()).update(values)

    def predicate(self) -> dict[str, Any]:
        """Return the certificate's entries `verdicts`, `losses`, `claims` and `provenance`."""
        return {
            "verdicts": dict(sorted(self.verdicts.items())),
            "losses": dict(sorted(self.losses.items())),
            "claims": {name: dict(sorted(counts.items())) for name, counts in sorted(self.claims.items())},
            "provenance": {
                name: sorted(values, key=lambda value: (value is not None, value or ""))
                for name, values in sorted(self.provenance.items())
            },
        }


def _counts(values: Any) -> Mapping[str, int]:
    return {entry["values"]: entry["counts"] for entry in values.value_counts().to_pylist()}


def file_rows(path: Path, digest: FileDigest | None = None) -> RowSet:
    """Return the count and the digest of a parquet file's rows, row group by row group.

    With `digest`, only bytes that are the certified ones are read.

    Raises:
        AlteredBytes: they are not.
        OSError, pyarrow.ArrowException: the file can't be read.
    """
    import pyarrow.parquet as pq

    from contracts.segments import VerifiedFile

    found = RowSet()
    source = path.open("rb") if digest is None else VerifiedFile(path, digest.size, digest.segments)
    with source, pq.ParquetFile(source) as parquet:
        for index in range(parquet.num_row_groups):
            found = found + row_set(parquet.read_row_group(index, use_threads=False))
    return found
