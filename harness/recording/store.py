"""The run folder on disk: journal segments in, shards out, and what is done already.

Place in the flow: under the runner. Imports `contracts`, `harness.standing`, and counts, journal and
rows of this package; pyarrow inside functions. Everything here blocks; the runner calls it from a thread.

    journal/00007.log     finished captures that are in no shard yet
    journal/failures.log  failures of segments that became shards
    shards/part-00007.parquet   the rows of segment 7, whole or not there
    shards.json           which shards there are: rows, bytes, digest, counts; written after the shard itself

Segment n becomes shard n and nothing else does. A crash between any two steps leaves the segment there, and
the next start makes the same shard of it again; the segment is removed when the manifest names the shard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.errors import ShardgateError
from contracts.shard import CONSTANT_COLUMNS, RUN_COLUMNS, replace_file, shard_metadata, write_table
from harness.recording.counts import COLUMNS, counts_of
from harness.recording.journal import Segment, sync_folder
from harness.recording.rows import Failure, Group, decode, encode, failure_of, item_of
from harness.standing import Counts, Shard, merged

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "shards.json"
FAILED = "failed.jsonl"
DIVERGED = "turn-diverged"
"""Why a conversation's later turns were not asked for, while its earlier ones are captured."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a segment is closed and becomes a shard."""

    rows: int = 10_000
    bytes: int = 256 << 20


class DiskRefused(ShardgateError):
    """The run's folder can't be written any more."""


@contextmanager
def disk_told(folder: Path) -> Iterator[None]:
    """Tell what the disk says in the block as `DiskRefused`."""
    try:
        yield
    except OSError as error:
        raise DiskRefused(
            what="the run's folder can't be written",
            where=str(error.filename or folder),
            why=error.strerror or str(error),
            remedy="make room, then give the same command to go on from here",
        ) from error


class Store:
    """An open run folder. One at a time, see `contracts.held`."""

    def __init__(self, folder: Path, format_name: str, limits: Limits | None = None) -> None:
        """Open or recover the folder.

        Raises:
            JournalDamaged: see `harness.recording.journal`.
            ShardgateError: a shard that the manifest names is gone or has other bytes.
        """
        self.folder = folder
        self._format = format_name
        self._limits = limits or Limits()
        self._journal = folder / "journal"
        self._shards = folder / "shards"
        for made in (self._journal, self._shards):
            made.mkdir(parents=True, exist_ok=True)
            for left in made.glob(".*.tmp"):
                left.unlink()  # what a killed run was writing beside
        self._manifest = {shard.segment: shard for shard in read_manifest(folder)}
        for shard in self._manifest.values():
            _refuse_changed(self._shards / shard.file, shard)
        self._failures = Segment(self._journal / "failures.log")
        self._failed = {
            one.sample_id: one for payload in self._failures.payloads for one in _failures(payload)
        }
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._number = 0
        self._segment: Segment | None = None
        self.done: set[str] = set()
        """Items of work that need not be asked again; for the start of a run, not kept up."""
        self.bad: tuple[Failure, ...] = ()
        """Rows that were no prompts, told in `failed.jsonl` before the failures."""
        self.captured = sum(shard.rows for shard in self._manifest.values())
        self._recover()

    def _recover(self) -> None:
        import pyarrow.parquet as parquet

        for shard in self._manifest.values():
            column = parquet.read_table(self._shards / shard.file, columns=["sample_id"])["sample_id"]
            self._note_captured(column.to_pylist())
        numbers = sorted(int(path.stem) for path in self._journal.glob("[0-9]*.log"))
        for number in numbers:
            if number in self._manifest:
                self._path(number).unlink()
        left = [number for number in numbers if number not in self._manifest]
        for number in left:
            self._open(number)
            if number != left[-1]:
                self._roll()
        if not left:
            self._open(1 + max([*numbers, *self._manifest], default=-1))
        self.done.update(one.item for one in self._failed.values())

    def _note_captured(self, samples: Sequence[str]) -> None:
        for sample in samples:
            self.done.add(item_of(sample))
            self._failed.pop(sample, None)

    def _path(self, number: int) -> Path:
        return self._journal / f"{number:05d}.log"

    def _open(self, number: int) -> None:
        self._number = number
        self._segment = Segment(self._path(number))
        self._tables, self._rows = [], 0
        for payload in self._segment.payloads:
            table, failed = decode(payload)
            self._failed.update((one.sample_id, one) for one in failed)
            if table is not None:
                self._keep(table)
                self._note_captured(table["sample_id"].to_pylist())

    def _keep(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._rows += table.num_rows
        self.captured += table.num_rows

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Return the shards that are whole, in order."""
        return tuple(self._manifest[number] for number in sorted(self._manifest))

    @property
    def failed(self) -> tuple[Failure, ...]:
        """Return the failures that no later start made good."""
        return tuple(self._failed.values())

    @property
    def failures(self) -> int:
        """Return how many there are of them."""
        return len(self._failed)

    def forget_failures(self) -> int:
        """Let failures be asked again; returns how many. One that is not asked stays recorded.

        A conversation that ended early keeps its rows, and its missing turns as they are: asked again whole,
        it would stand in the run twice.
        """
        kept = {one.item for one in self._failed.values() if one.reason == DIVERGED}
        again = {one.item for one in self._failed.values()} - kept
        self.done.difference_update(again)
        return len(again)

    def commit(self, groups: Sequence[Group]) -> None:
        """Make groups lasting: when this returns, they are captured or failed for good.

        Raises:
            ShardError: a row does not fit the shard's schema; nothing was written.
            OSError: the disk is full or gone; nothing of it stays.
        """
        assert self._segment is not None
        payload, table, failed = encode(groups)
        self._segment.append(payload)
        self._failed.update((one.sample_id, one) for one in failed)
        if table is not None:
            self._keep(table)
            if self._failed:
                for sample in table["sample_id"].to_pylist():
                    self._failed.pop(sample, None)
        if self._rows >= self._limits.rows or self._segment.size >= self._limits.bytes:
            self.roll()

    def roll(self) -> None:
        """Make the open segment a shard and begin the next one; a segment without rows stays."""
        if self._rows:
            self._roll()
            self._open(self._number + 1)
            # The journal has the failures from the moment on; people and the report read this file.
            self.write_failed(self.bad)

    def _roll(self) -> None:
        import pyarrow as pa

        assert self._segment is not None
        if self._rows:
            table = pa.concat_tables(self._tables).unify_dictionaries()
            name = f"part-{self._number:05d}.parquet"
            metadata = shard_metadata(table.select(_named()).to_pylist(), format_name=self._format)
            write_table(self._shards / name, table.replace_schema_metadata(metadata))
        if self._failed:
            # Before the segment goes: its failures must be somewhere at any moment.
            told = [asdict(one) for one in self._failed.values()]
            self._failures.append(json.dumps(told).encode())
        if self._rows:
            size, digest = _measured(self._shards / name)
            counts = counts_of(table, name)
            self._manifest[self._number] = Shard(name, self._number, table.num_rows, size, digest, counts)
            replace_json(self.folder / MANIFEST, {"shards": [asdict(shard) for shard in self.shards]})
        self._segment.close()
        self._path(self._number).unlink()
        sync_folder(self._journal)

    def write_failed(self, bad_lines: Iterable[Failure]) -> None:
        """Write `failed.jsonl` anew: the rows that were no prompts, then the failures as they stand."""
        lines = [json.dumps(asdict(one), ensure_ascii=False) for one in (*bad_lines, *self.failed)]
        text = "".join(f"{line}\n" for line in lines)
        replace_file(self.folder / FAILED, lambda handle: handle.write(text.encode("utf-8", "replace")))

    def close(self) -> None:
        """Close the files; what was committed stays."""
        self._failures.close()
        if self._segment is not None:
            self._segment.close()


def _named() -> list[str]:
    from contracts.digests import NAME_COLUMNS

    return [*NAME_COLUMNS, *CONSTANT_COLUMNS, *RUN_COLUMNS]


def _failures(payload: bytes) -> list[Failure]:
    return [failure_of(one) for one in json.loads(payload)]


def read_manifest(folder: Path) -> list[Shard]:
    """Return the shards that a run's manifest names, none where it has none yet.

    Raises:
        ShardgateError: no manifest of shardgate's is there.
    """
    path = folder / MANIFEST
    if not path.exists():
        return []
    try:
        return [Shard(**told) for told in json.loads(path.read_text("utf-8"))["shards"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ShardgateError(
            what="the run's manifest can't be read",
            where=str(path),
            why=str(error),
            remedy="restore the file from a copy; it is written by shardgate alone, whole or not at all",
        ) from error


def counted(folder: Path) -> Counts:
    """Return what the rows of a run's shards look like, over all starts.

    Raises:
        ShardgateError: see `read_manifest`; or a shard that it names can't be read.
    """
    return merged((shard.file, shard.rows, _counts(folder, shard)) for shard in read_manifest(folder))


def _counts(folder: Path, shard: Shard) -> dict[str, Any]:
    if shard.counts:
        return shard.counts
    import pyarrow as pa
    import pyarrow.parquet as parquet

    path = folder / "shards" / shard.file
    try:  # a manifest of an earlier version has no counts
        return counts_of(parquet.read_table(path, columns=list(COLUMNS)), shard.file)
    except (OSError, pa.ArrowException) as error:
        raise ShardgateError(
            what="a shard of the run can't be read", where=str(path), why=str(error), remedy="put it back"
        ) from error


def _measured(path: Path) -> tuple[int, str]:
    """Return a file's size in bytes and its SHA-256, hex."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def _refuse_changed(path: Path, shard: Shard) -> None:
    there = _measured(path) if path.is_file() else None
    if there != (shard.bytes, shard.sha256):
        raise ShardgateError(
            what="a shard of the run is gone or was changed",
            where=str(path),
            why="its bytes are not those that were written" if there else "there is no such file",
            remedy="put the shard back: going on without it would leave its rows out, or ask for them twice",
        )


def replace_json(path: Path, value: Any) -> None:
    """Write JSON beside, synced, renamed."""
    text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
    replace_file(path, lambda handle: handle.write(text.encode("utf-8", "replace")))
