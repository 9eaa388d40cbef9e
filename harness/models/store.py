"""Builds a folder into the cache once: locked, fsynced, renamed; found again by its fingerprint.

Place in the flow: under the models, before the server. Imports the standard library and `harness.paths`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.paths import cache_dir

Progress = Callable[[str], None]
"""Called with one line of text per step of a build."""


def fingerprint(*parts: str | bytes | Path) -> str:
    """16 hex digits over texts, bytes and files' contents, in order."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with part.open("rb") as file:
                piece = hashlib.file_digest(file, "sha256").digest()
        else:
            piece = hashlib.sha256(part.encode() if isinstance(part, str) else part).digest()
        digest.update(piece)
    return digest.hexdigest()[:16]


def materialize(
    name: str,
    key: str,
    build: Callable[[Path, Progress], None],
    cache: Path | None = None,
    on_progress: Progress | None = None,
) -> Path:
    """The folder `<cache>/models/<name>-<key>`, built by `build(folder, progress)` if it is not there.

    The folder appears whole or not at all, and at most one process builds it; others wait for it.
    `cache` defaults to `cache_dir()`. Whatever `build` raises is passed on, with nothing left behind.
    """
    tell = on_progress or (lambda _line: None)
    root = (cache or cache_dir()) / "models"
    folder = root / f"{name}-{key}"
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f".{name}-{key}.lock"):
        if folder.is_dir():
            return folder
        building = root / f".{name}-{key}.building"
        shutil.rmtree(building, ignore_errors=True)  # what a killed build left; the lock says nobody is at it
        building.mkdir()
        try:
            build(building, tell)
            _sync_tree(building)
            building.rename(folder)
            _sync(root)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        tell(f"{name}: ready in {folder}")
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
