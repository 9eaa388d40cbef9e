"""A shard's bytes in pieces with a digest each, and a file that serves verified bytes only.

Place in the flow: under audit, certificate and loader. Imports the standard library; pyarrow in functions.

A parquet file is cut at its row groups: one segment per row group, in order, the last one running to the
end of the file with the footer in it, or apart from it where there are none. Segments cover every byte.
"""

from __future__ import annotations

import hashlib
import io
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHUNK = 1 << 22
HELD = 256 << 20
"""Files of up to so many bytes lie in memory while they are checked."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes [offset, offset + length) of a file, their SHA-256 (hex), and the rows that start in them."""

    offset: int
    length: int
    sha256: str
    rows: int = 0


@dataclass(frozen=True, slots=True)
class FileDigest:
    """A whole file: size in bytes, SHA-256 (hex), and its segments in order."""

    size: int
    sha256: str
    segments: tuple[Segment, ...]

    @property
    def rows(self) -> int:
        """Return the number of rows in all segments."""
        return sum(segment.rows for segment in self.segments)


class AlteredBytes(ValueError):
    """A segment's bytes are not the ones of its digest."""


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256 (hex).

    Raises:
        OSError: the file can't be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def digest_file(path: Path) -> FileDigest:
    """Digest any file as one segment.

    Raises:
        OSError: the file can't be read.
    """
    size, whole = path.stat().st_size, file_sha256(path)
    return FileDigest(size, whole, (Segment(0, size, whole),))


def digest_shard(path: Path) -> FileDigest:
    """Digest a parquet file, whole and by row group, in one pass over its bytes.

    Only for a file whose row groups were read before: pyarrow 26 ends the process on column metadata that
    contradicts itself, where reading the rows gives an error.

    Raises:
        OSError: the file can't be read.
        pyarrow.ArrowException: it is no parquet file.
    """
    with path.open("rb") as handle:
        return _digested(handle, os.fstat(handle.fileno()).st_size)


def _digested(handle: Any, size: int, known: str | None = None) -> FileDigest:
    """Digest an open parquet file by row group, and whole where that digest is not known."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(handle) as parquet:
        cuts = _cuts(parquet.metadata, size)
    handle.seek(0)
    whole = hashlib.sha256()
    segments = []
    for start, end, rows in cuts:
        part, left = hashlib.sha256(), end - start
        while left and (block := handle.read(min(CHUNK, left))):
            part.update(block)
            if known is None:
                whole.update(block)
            left -= len(block)
        segments.append(Segment(start, end - start, part.hexdigest(), rows))
    return FileDigest(size, known or whole.hexdigest(), tuple(segments))


class CheckedFile:
    """A file while it is checked: the bytes that are digested are those that are read.

    A file of up to `HELD` bytes is read once, into memory; a bigger one is digested before it is read and
    after. `whole` is its digest as one segment.

    Raises:
        OSError: the file can't be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = _state(path)
        self._held = path.read_bytes() if path.stat().st_size <= HELD else None
        if self._held is None:
            self.whole = digest_file(path)
        else:
            size, sha256 = len(self._held), hashlib.sha256(self._held).hexdigest()
            self.whole = FileDigest(size, sha256, (Segment(0, size, sha256),))

    def open(self) -> Any:
        """Return the bytes as a file to read from."""
        return self._path.open("rb") if self._held is None else io.BytesIO(self._held)

    def digest(self) -> FileDigest | None:
        """Digest it by row group (see `digest_shard`); None where the file was changed meanwhile."""
        if self._held is None:
            after = digest_shard(self._path)
            return after if after.sha256 == self.whole.sha256 else None
        if _state(self._path) != self._state and file_sha256(self._path) != self.whole.sha256:
            return None
        return _digested(io.BytesIO(self._held), len(self._held), self.whole.sha256)


def _state(path: Path) -> tuple[int, int, int, int]:
    """Return what tells at no cost that a file was written to or replaced."""
    told = path.stat()
    return told.st_ino, told.st_size, told.st_mtime_ns, told.st_ctime_ns


def _cuts(metadata: Any, size: int) -> list[tuple[int, int, int]]:
    """Return (start, end, rows) of each segment; the footer is one of its own."""
    ends = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        end = 0
        for number in range(group.num_columns):
            column = group.column(number)
            first = column.data_page_offset
            if column.has_dictionary_page:
                first = min(first, column.dictionary_page_offset)
            end = max(end, first + column.total_compressed_size)
        ends.append((end, group.num_rows))
    cuts, start = [], 0
    for end, rows in ends:
        stop = min(max(end, start), size)
        cuts.append((start, stop, rows))
        start = stop
    cuts.append((start, size, 0))
    return cuts


class VerifiedFile(io.RawIOBase):
    """A read-only file that checks each segment against its digest before any byte of it is served.

    It keeps the file open, and the segment read last and the file's last one, a parquet file's footer, in
    memory: what was verified is what is read.
    """

    def __init__(self, path: Path, size: int, segments: Sequence[Segment]) -> None:
        super().__init__()
        self._path = path
        self._size = size
        self._segments = tuple(segments)
        self._starts = [segment.offset for segment in self._segments]
        self._handle = path.open("rb")
        self._at = 0
        self._cached: dict[int, bytes] = {}

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def size(self) -> int:
        """Return the certified size in bytes."""
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with verified bytes from the position on."""
        block = self.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` verified bytes from the position on.

        Raises:
            AlteredBytes: a segment is not what its digest says.
        """
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        parts = []
        first = bisect_right(self._starts, self._at) - 1
        for index in range(max(first, 0), len(self._segments)):
            segment = self._segments[index]
            if segment.offset >= end:
                break
            start = max(self._at, segment.offset)
            stop = min(end, segment.offset + segment.length)
            if start < stop:
                whole = self._segment(index)
                parts.append(whole[start - segment.offset : stop - segment.offset])
        block = b"".join(parts)
        self._at += len(block)
        return block

    def _segment(self, index: int) -> bytes:
        if index in self._cached:
            return self._cached[index]
        segment = self._segments[index]
        self._handle.seek(segment.offset)
        block = self._handle.read(segment.length)
        if hashlib.sha256(block).hexdigest() != segment.sha256:
            raise AlteredBytes(
                f"{self._path}: bytes {segment.offset} to {segment.offset + segment.length} were altered"
            )
        last = len(self._segments) - 1
        self._cached = {key: kept for key, kept in self._cached.items() if key == last}
        self._cached[index] = block
        return block

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._handle.close()
        super().close()
