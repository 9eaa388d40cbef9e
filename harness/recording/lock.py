"""One run at a time in one folder, on any file system.

Place in the flow: under the store. Imports `contracts.errors` and the standard library only.

A lock is a file `lock.N` made with O_EXCL, which NFS and Lustre keep; N goes up by one whenever a dead
holder's lock is taken over. It tells host, boot, process and a count that the holder moves every few seconds.
A holder on this machine is dead when its process is gone; one on another machine when its count stands still
for several beats, whatever the two clocks say.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from contracts.errors import ShardgateError

BEAT = 5.0
"""Seconds between two beats of a holder."""
SILENCE = 25.0
"""Seconds of standing still after which a holder on another machine counts as dead."""


class Locked(ShardgateError):
    """Another run works in this folder."""


class LockLost(ShardgateError):
    """Somebody took this run's folder over while it stood still."""


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return ""


def _started(pid: int) -> str | None:
    """Return when a process began, in ticks since the boot; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except OSError:
            return ""
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return None if state in ("Z", "X") else rest[18]


class FolderLock:
    """The lock of one folder, held inside `with`; its beat runs in a thread.

    Raises on entry:
        Locked: another run holds it and lives.
    """

    def __init__(
        self, folder: Path, *, beat: float = BEAT, silence: float = SILENCE, host: str | None = None
    ) -> None:
        """`host` is this machine's name, where the system's own is not what tells machines apart."""
        self._folder = folder
        self._host = host or socket.gethostname()
        self._beat = beat
        self._silence = silence
        self._token = uuid.uuid4().hex
        self._path = folder / "lock.0"
        self._ended = threading.Event()
        self._lost = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        for _ in range(20):
            dead = self._dead_holders()
            if self._take(dead):
                break
            time.sleep(random.uniform(0.01, 0.2))  # two came at once: who waits less has it
        else:
            raise Locked("the run's lock can't be had", where=str(self._folder), why="others keep taking it")
        self._thread = threading.Thread(target=self._keep, name="lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if not self._lost and self._own():
            with contextlib.suppress(OSError):
                self._path.unlink()

    def check(self) -> None:
        """Raise `LockLost` when another run took the folder over."""
        if self._lost or not self._own():
            self._lost = True
            raise LockLost(
                "another run took this folder over",
                where=str(self._path),
                why="this process stood still for so long that it was taken for dead",
                remedy="let the other run finish; nothing that was committed is lost",
            )

    def _locks(self) -> dict[int, Path]:
        found = {}
        for path in self._folder.glob("lock.*"):
            if path.suffix[1:].isdigit():
                found[int(path.suffix[1:])] = path
        return dict(sorted(found.items()))

    def _dead_holders(self) -> set[Path]:
        """Return the locks of dead holders. Raises `Locked` for one that lives."""
        dead = set()
        for path in self._locks().values():
            said = _read(path)
            if said is None:
                said = self._watched(path)
            if said is not None and self._lives(path, said):
                raise Locked(
                    "another run works in this folder",
                    where=str(path),
                    why=f"process {said.get('pid')} on {said.get('host')} holds its lock",
                    remedy="wait for it or end it; a run of the same prompts elsewhere needs its own folder",
                )
            dead.add(path)
        return dead

    def _lives(self, path: Path, said: dict[str, Any]) -> bool:
        if said.get("host") == self._host:
            if said.get("boot") != _boot_id():
                return False
            began = _started(int(said.get("pid") or 0))
            return began is not None and began == said.get("began")
        return self._watched(path, said) is not None

    def _watched(self, path: Path, said: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return what a lock says once it moves; None when it stands still or goes."""
        until = time.monotonic() + self._silence
        while time.monotonic() < until:
            time.sleep(min(1.0, self._silence / 10))
            now = _read(path)
            if now is not None and now != said:
                return now
            if not path.exists():
                return None
        return None

    def _take(self, dead: set[Path]) -> bool:
        known = self._locks()
        number = max(known, default=-1) + 1
        self._path = self._folder / f"lock.{number}"
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(handle, "wb") as file:
            file.write(self._words(0))
            file.flush()
            os.fsync(file.fileno())
        others = set(self._locks().values()) - dead - {self._path}
        if others:
            self._path.unlink(missing_ok=True)
            return False
        for path in dead:
            path.unlink(missing_ok=True)
        return True

    def _words(self, count: int) -> bytes:
        said = {
            "token": self._token,
            "host": self._host,
            "boot": _boot_id(),
            "pid": os.getpid(),
            "began": _started(os.getpid()),
            "count": f"{count:012d}",
        }
        return json.dumps(said).encode() + b"\n"

    def _own(self) -> bool:
        said = _read(self._path)
        return said is not None and said.get("token") == self._token

    def _keep(self) -> None:
        count = 0
        while not self._ended.wait(self._beat):
            count += 1
            try:
                if not self._own():
                    self._lost = True
                    return
                # In place and of one length: a reader sees the old words or the new ones.
                with self._path.open("r+b") as file:
                    file.write(self._words(count))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                continue  # a full disk is the store's to tell; a beat left out is no loss of the lock


def _read(path: Path) -> dict[str, Any] | None:
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) else None
