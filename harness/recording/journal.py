"""The journal: finished captures in frames on disk; a crash costs at most the frame that was being written.

Place in the flow: under the store. Imports `contracts.errors` and the standard library only.

A segment is an append-only file of frames; a frame is `SGJ1`, the payload's length and CRC-32 (two 32-bit
little-endian numbers), and the payload. One commit writes one frame and fsyncs, so that after a crash only
the last frame can be torn: it is cut off. Anything else that is wrong is damage, and is told instead of cut.
Plain appends and fsync are all that it asks of the file system: no locks on byte ranges, no memory maps.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import ShardgateError

MAGIC = b"SGJ1"
_HEAD = struct.Struct("<4sII")
LONGEST = 1 << 30
"""Bytes of a payload at most; a length beyond it is no length that was written here."""


class JournalDamaged(ShardgateError):
    """A journal holds something that a crash can't have left."""


@dataclass(frozen=True, slots=True)
class Frames:
    """What a segment holds: the payloads, and the offset where the last whole frame ends."""

    payloads: tuple[bytes, ...]
    end: int


def frame(payload: bytes) -> bytes:
    """Return the bytes that stand for one payload."""
    return _HEAD.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


def read_segment(path: Path) -> Frames:
    """Read a segment up to its torn tail, if it has one.

    Raises:
        JournalDamaged: a whole frame follows one that is broken, so that no crash explains it.
    """
    data = path.read_bytes()
    payloads: list[bytes] = []
    end = 0
    for payload, after in _frames(data, 0):
        payloads.append(payload)
        end = after
    if end < len(data):
        _refuse_damage(path, data, end)
    return Frames(tuple(payloads), end)


def _frames(data: bytes, at: int) -> Iterator[tuple[bytes, int]]:
    while at + _HEAD.size <= len(data):
        magic, length, crc = _HEAD.unpack_from(data, at)
        after = at + _HEAD.size + length
        if magic != MAGIC or length > LONGEST or after > len(data):
            return
        payload = data[at + _HEAD.size : after]
        if zlib.crc32(payload) != crc:
            return
        yield payload, after
        at = after


def _refuse_damage(path: Path, data: bytes, end: int) -> None:
    at = data.find(MAGIC, end + 1)
    while at >= 0:
        if next(_frames(data, at), None) is not None:
            raise JournalDamaged(
                what="the run's journal is damaged",
                where=f"{path}, byte {end}",
                why=f"a frame is broken and a whole one follows at byte {at}; a crash tears only the last",
                remedy="look for faults of the disk; to go on without what is lost, start a new run folder",
            )
        at = data.find(MAGIC, at + 1)


class Segment:
    """An open segment: recovered when it was there, appended to, synced with every frame."""

    def __init__(self, path: Path) -> None:
        """Open or create it; a torn tail is cut off. `payloads` are those that were there.

        Raises:
            JournalDamaged: see `read_segment`.
        """
        self.path = path
        found = read_segment(path) if path.exists() else Frames((), 0)
        self.payloads = found.payloads
        self.size = found.end
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(self._file, self.size)
            os.fsync(self._file)
            sync_folder(path.parent)
        except BaseException:
            self.close()
            raise

    def append(self, payload: bytes) -> None:
        """Write one frame and sync it. When it can't be written, nothing of it stays.

        Raises:
            OSError: the disk is full or gone.
        """
        data = memoryview(frame(payload))
        at = self.size
        try:
            while data:
                wrote = os.pwrite(self._file, data, at)
                at += wrote
                data = data[wrote:]
            os.fsync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.size)
            raise
        self.size = at

    def close(self) -> None:
        """Close the file. Safe to call again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def sync_folder(folder: Path) -> None:
    """Make names made or removed in a folder lasting."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
