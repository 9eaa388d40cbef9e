"""One writer at a time for a folder, on any file system.

Place in the flow: under certifying, deriving, exporting, importing, and under the capture run. Imports the
standard library, `contracts.errors`.

`folder_held` is the kernel's lock on the folder itself: it leaves no file behind and ends with its process,
however that ends. NFS refuses it for folders, other file systems know none: there, and wherever a run of days
works, `FolderLock` is taken. It is a file `lock.N` made with O_EXCL, which NFS and Lustre keep; N goes up by
one whenever a dead holder's lock is taken over. It tells host, boot, process and a count that the holder
moves every few seconds. A holder on this machine is dead when its process is gone; one on another machine
when its count stands still for several beats, whatever the two clocks say.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from contracts.errors import ShardgateError

BEAT = 5.0
"""Seconds between two beats of a holder."""
SILENCE = 25.0
"""Seconds of standing still after which a holder on another machine counts as dead."""


class FolderHeld(ShardgateError):
    """Another process is writing into the folder."""


class LockLost(ShardgateError):
    """Somebody took the folder over while this process stood still, or took it away."""


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
    with contextlib.ExitStack() as held:
        held.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                held.enter_context(FolderLock(folder, what="another process is writing into this folder"))
            else:
                raise FolderHeld(
                    "another process is writing into this folder",
                    where=str(folder),
                    why="a certificate that two wrote would speak of neither's files",
                    remedy="wait until it has ended, or write into another folder",
                ) from error
        yield


class FolderLock:
    """The lock of one folder by a file in it, held inside `with`; its beat runs in a thread.

    Raises on entry:
        FolderHeld: another process holds it and lives; `what` is told then.
        OSError: the folder can't be written.
    """

    def __init__(
        self,
        folder: Path,
        *,
        what: str = "another run works in this folder",
        beat: float = BEAT,
        silence: float = SILENCE,
        host: str | None = None,
    ) -> None:
        """`host` is this machine's name, where the system's own is not what tells machines apart."""
        self._folder = folder
        self._what = what
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
            if self._take(self._dead_holders()):
                break
            time.sleep(random.uniform(0.01, 0.2))  # two came at once: who waits less has it
        else:
            raise FolderHeld(self._what, where=str(self._folder), why="others keep taking its lock")
        self._thread = threading.Thread(target=self._keep, name="lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(OSError):
            if not self._lost and self._own():
                self._path.unlink()

    def check(self) -> None:
        """Raise `LockLost` when another process took the folder over, or the folder was removed.

        Raises `OSError` when the lock can't be read, which is no loss of it.
        """
        if not self._lost and self._own():
            return
        self._lost = True
        if not self._folder.exists():
            raise LockLost(
                "the folder is gone",
                where=str(self._folder),
                why="it was removed or renamed while it was written into",
                remedy="put it back under its name, then give the same command to go on from there",
            )
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

    def _dead_holders(self) -> dict[Path, bytes]:
        """Return the locks of dead holders with what they say. Raises `FolderHeld` for one that lives."""
        dead = {}
        for path in self._locks().values():
            text = _read(path)
            if _said(text) is None:
                text = self._watched(path, text) or _read(path)
            if text is None:
                continue  # gone by itself
            said = _said(text)
            if said is not None and self._lives(path, text, said):
                raise FolderHeld(
                    self._what,
                    where=str(path),
                    why=f"process {said.get('pid')} on {said.get('host')} holds its lock",
                    remedy="wait for it or end it; a run of the same prompts elsewhere needs its own folder",
                )
            dead[path] = text
        return dead

    def _lives(self, path: Path, text: bytes, said: dict[str, Any]) -> bool:
        if said.get("host") == self._host:
            if said.get("boot") != _boot_id():
                return False
            began = _started(int(said.get("pid") or 0))
            return began is not None and began == said.get("began")
        return self._watched(path, text) is not None

    def _watched(self, path: Path, text: bytes | None) -> bytes | None:
        """Return what a lock says once that is something else; None when it stands still or goes."""
        until = time.monotonic() + self._silence
        while time.monotonic() < until:
            time.sleep(min(1.0, self._silence / 10))
            now = _read(path)
            if now is None:
                return None
            if now != text and _said(now) is not None:
                return now
        return None

    def _take(self, dead: dict[Path, bytes]) -> bool:
        taken = [*self._locks(), *(int(path.suffix[1:]) for path in dead)]
        self._path = self._folder / f"lock.{max(taken, default=-1) + 1}"
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self._words(0))
                file.flush()
                os.fsync(file.fileno())
        except OSError:  # a full disk: half a lock would hold up the next start
            self._path.unlink(missing_ok=True)
            raise
        # A dead lock's name may be a living one's by now: it is dead only while it says the same.
        dead = {path: text for path, text in dead.items() if _read(path) == text}
        if set(self._locks().values()) - dead.keys() - {self._path}:
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
        said = _said(_read(self._path))
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
                continue  # a full disk is the writer's to tell; a beat left out is no loss of the lock


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


def _read(path: Path) -> bytes | None:
    """Return what a lock says, None where it is gone. Raises `OSError` where it can't be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _said(text: bytes | None) -> dict[str, Any] | None:
    try:
        said = json.loads(text or b"")
    except ValueError:
        return None
    return said if isinstance(said, dict) else None
