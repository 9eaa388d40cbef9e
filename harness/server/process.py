"""One child process with all that it starts: its log, its process group, and the watchdog that ends it.

Place in the flow: below what is booted beside SGLang itself (the router). Imports `harness.server.guard` and
the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from harness.server import guard


class GuardedProcess:
    """A process in a group of its own, logging into `log_path`; ended with the group, or when we are gone."""

    def __init__(
        self, command: Sequence[str], log_path: Path, *, env: Mapping[str, str], grace: float = 10.0
    ) -> None:
        """Start it. `grace` is the seconds between SIGINT and SIGKILL at the end."""
        self._grace = grace
        self._marker = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._guard: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = log_path.open("wb")
        watcher = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), self._marker, str(grace)]
        try:
            self._guard = subprocess.Popen(watcher, stdin=subprocess.PIPE, start_new_session=True)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env={**env, guard.MARKER: self._marker},
                start_new_session=True,
            )
        except BaseException:
            self._release()
            raise
        self._tell(f"{self._process.pid}\n")

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
                guard.end_group(self._process.pid, self._marker, self._grace)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=10)
                self._tell("done\n")
            finally:
                self._release()

    def _tell(self, words: str) -> None:
        if self._guard is None or self._guard.stdin is None:
            return
        # Somebody may have killed the watchdog; ending the process does not need it.
        with contextlib.suppress(OSError):
            self._guard.stdin.write(words.encode())
            self._guard.stdin.flush()

    def _release(self) -> None:
        # Without the word `done`, the end of the pipe has the watchdog finish the work.
        watcher, self._guard = self._guard, None
        if watcher is not None:
            if watcher.stdin is not None and not watcher.stdin.closed:
                with contextlib.suppress(OSError):
                    watcher.stdin.close()
            watcher.wait()
        self._log.close()
