"""One child process with all that it starts: its log, its process group, and the watchdog that ends it.

Place in the flow: below everything that is booted: SGLang, its router, a command run against them. Imports
`harness.server.guard` and the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from harness.server import guard


def private_log(path: Path) -> IO[bytes]:
    """Open a log anew that only its owner can read: SGLang logs its settings, its API keys among them."""
    log = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")
    told = os.fstat(log.fileno())
    if stat.S_ISREG(told.st_mode) and told.st_uid == os.geteuid():
        # A file that was there keeps its mode when it is opened; one on a foreign file system may refuse.
        with contextlib.suppress(OSError):
            os.fchmod(log.fileno(), 0o600)
    return log


class Watchdog:
    """The process that ends a group when we are gone, by Ctrl-C, SIGTERM or even SIGKILL.

    Somebody may kill it; ending the group from here does not need it, so nothing here raises for that.
    """

    def __init__(self, grace: float, first: int = signal.SIGINT) -> None:
        """Start it. What is started next must have `variables` in its environment.

        `first` is the signal that asks the group to end, `grace` seconds before SIGKILL.
        """
        self.marker = uuid.uuid4().hex
        words = (str(os.getpid()), self.marker, str(grace), str(int(first)))
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, *words],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def variables(self) -> dict[str, str]:
        """What marks a process as one of this group, also when it has left it."""
        return {guard.MARKER: self.marker}

    @property
    def pid(self) -> int | None:
        """Its process id; None once it was released."""
        return None if self._process is None else self._process.pid

    def tell(self, words: str) -> None:
        """Say the group's number, or `done`."""
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(f"{words}\n".encode())
            self._process.stdin.flush()

    def release(self) -> None:
        """Close the pipe and wait for its end; unless it was told `done` it finishes the work first."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            # What a killed watchdog never read is still in the buffer, and closing would write it.
            with contextlib.suppress(OSError, ValueError):
                process.stdin.close()
        process.wait()


class GuardedProcess:
    """A process in a group of its own, logging into `log_path`; ended with the group, or when we are gone."""

    def __init__(
        self, command: Sequence[str], log_path: Path, *, env: Mapping[str, str], grace: float = 10.0
    ) -> None:
        """Start it. `grace` is the seconds between SIGINT and SIGKILL at the end."""
        self._grace = grace
        self._lock = threading.Lock()
        self._log = private_log(log_path)
        self.watchdog: Watchdog | None = None
        try:
            self.watchdog = Watchdog(grace)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env={**env, **self.watchdog.variables},
                start_new_session=True,
            )
        except BaseException:
            self._release()
            raise
        self.watchdog.tell(str(self._process.pid))

    @property
    def pid(self) -> int:
        """The process id, which is also the process group's."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """End the process and everything that it started. Safe to call again."""
        with self._lock:
            try:
                marker = self.watchdog.marker if self.watchdog is not None else ""
                guard.end_group(self._process.pid, marker, self._grace)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=10)
                if self.watchdog is not None:
                    self.watchdog.tell("done")
            finally:
                self._release()

    def _release(self) -> None:
        try:
            if self.watchdog is not None:
                self.watchdog.release()
        finally:
            self._log.close()
