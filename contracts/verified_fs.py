"""A read-only pyarrow file system over certified files: it opens nothing else, and serves verified bytes.

Place in the flow: under the loader, which imports it when a set is opened. Imports pyarrow.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystemHandler, FileType

from contracts.certificate import ShardAltered, ShardMissing, ShardUncertified
from contracts.segments import AlteredBytes, FileDigest, VerifiedFile

QUIET_S = 0.05
LONGEST_S = 10.0


class _Readers:
    """Ends what datasets read ahead before the interpreter goes.

    Arrow's threads read through Python; one that still wants to after the end waits for ever, and the exit
    waits for it. So from the exit on reads are refused, and the exit goes on when none has come for a while.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start anew, as a process does that was forked while others read."""
        self._lock = threading.Lock()
        self._inside = 0
        self._last = 0.0
        self._over = False

    def __enter__(self) -> None:
        with self._lock:
            self._last = time.monotonic()
            if self._over:
                raise OSError("the program is ending")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            self._last = time.monotonic()

    def end(self) -> None:
        """Refuse reads from now on; returns when those under way have ended."""
        if not self._last:
            return
        self._over, began = True, time.monotonic()
        while time.monotonic() - began < LONGEST_S:
            with self._lock:
                since = max(self._last, began)
                if not self._inside and time.monotonic() - since > QUIET_S:
                    return
            time.sleep(QUIET_S / 5)


_READERS = _Readers()
atexit.register(_READERS.end)
os.register_at_fork(after_in_child=_READERS.renew)


class CertifiedFile(VerifiedFile):
    """A verified file that tells an altered segment in the loader's words."""

    def __init__(self, path: Path, digest: FileDigest) -> None:
        try:
            super().__init__(path, digest.size, digest.segments)
        except OSError as error:
            raise ShardMissing(
                "a certified shard can't be opened",
                where=str(path),
                why=error.strerror or str(error),
                remedy="copy it back from where it was certified",
            ) from error

    def read(self, size: int | None = -1, /) -> bytes:
        try:
            return super().read(size)
        except AlteredBytes as error:
            raise ShardAltered(
                "a certified shard was altered",
                where=str(self._path),
                why=str(error),
                remedy="copy it again from where it was certified, or audit it again",
            ) from error


class _AheadFile(CertifiedFile):
    """A certified file that Arrow's own threads may read."""

    def read(self, size: int | None = -1, /) -> bytes:
        with _READERS:
            return super().read(size)


class VerifiedFiles(FileSystemHandler):  # type: ignore[misc]
    """The handler of a `pyarrow.fs.PyFileSystem`: path → digest, and no other path exists."""

    def __init__(self, digests: Mapping[str, FileDigest]) -> None:
        self._digests = dict(digests)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerifiedFiles) and other._digests == self._digests

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._digests)))

    def get_type_name(self) -> str:
        """Return the file system's name."""
        return "shardgate-certified"

    def normalize_path(self, path: str) -> str:
        """Return the path as it is."""
        return path

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        """Return the certified size of each path; a path that is not certified does not exist."""
        return [
            FileInfo(path, FileType.File, size=self._digests[path].size)
            if path in self._digests
            else FileInfo(path, FileType.NotFound)
            for path in paths
        ]

    def get_file_info_selector(self, selector: Any) -> list[FileInfo]:
        """Return the certified files below a folder."""
        return self.get_file_info(
            [path for path in self._digests if Path(path).is_relative_to(selector.base_dir)]
        )

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Open a certified file for random access."""
        digest = self._digests.get(path)
        if digest is None:
            raise ShardUncertified("a file that is not certified was asked for", where=path)
        with _READERS:
            return pa.PythonFile(_AheadFile(Path(path), digest), mode="r")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """Open a certified file for reading on."""
        return self.open_input_file(path)

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        raise PermissionError("a certified set is read-only")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse
