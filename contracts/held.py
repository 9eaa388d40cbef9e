"""One writer at a time for a folder.

Place in the flow: under certifying, deriving, exporting. Imports the standard library, `contracts.errors`.

The lock is the kernel's, on the folder itself: it leaves no file behind and ends with its process, however
that ends. On a file system that knows no locks nothing is held.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.errors import ShardgateError


class FolderHeld(ShardgateError):
    """Another process is writing into the folder."""


@contextmanager
def folder_held(folder: Path) -> Iterator[None]:
    """Hold `folder`, made where it is missing, until the block ends.

    Raises:
        FolderHeld: another process holds it.
        ShardgateError: it can't be made or read.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ShardgateError(
            "the folder can't be written into", where=str(folder), why=str(error), remedy="name another one"
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise FolderHeld(
                    "another process is writing into this folder",
                    where=str(folder),
                    why="a certificate that two wrote would speak of neither's files",
                    remedy="wait until it has ended, or write into another folder",
                ) from error
        yield
    finally:
        os.close(handle)
