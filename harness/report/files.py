"""Report files: written beside, synced, renamed; a path that can't be written is told before any work.

Place in the flow: under the reports that are files. Imports `contracts.errors` and `contracts.shard`.
"""

from __future__ import annotations

import os
from pathlib import Path

from contracts.errors import ShardgateError
from contracts.shard import replace_file


def write_report(path: Path, text: str, what: str) -> None:
    """Write `text` as UTF-8 to `path`; `what` names the report in an error.

    Raises:
        ShardgateError: the file can't be written.
    """
    try:
        # Half a surrogate pair, which JSON can carry, has no UTF-8 form.
        replace_file(path, lambda handle: handle.write(text.encode("utf-8", "backslashreplace")))
    except OSError as error:
        raise _refused(path, what, error.strerror or str(error)) from error


def check_writable(path: Path, what: str) -> None:
    """Raise `ShardgateError` where `path` can't be written to: an hour's audit must not end with that."""
    if path.is_dir():
        raise _refused(path, what, "it is a folder")
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise _refused(path, what, f"{folder} is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _refused(path, what, f"{folder} can't be written to")


def _refused(path: Path, what: str, why: str) -> ShardgateError:
    return ShardgateError(
        f"the {what} report could not be written",
        where=str(path),
        why=why,
        remedy="name a file in a folder that can be written to",
    )
