"""Waiting for a started server: its log and its answers are followed until it is ready, dead, or out of time.

Place in the flow: between the launcher, which started the process, and readiness. Imports the stage's own
modules only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.server.failures import (
    BootFailed,
    BootTimeout,
    NotReady,
    ServerError,
    Unreachable,
    describe_exit,
    find_sign,
    from_log,
    telling_lines,
)
from harness.server.http import call
from harness.server.progress import BootProgress, LogFollower, Phase
from harness.server.ready import confirm, info, is_warm, prove_generation


@dataclass(frozen=True, slots=True)
class Boot:
    """A boot under way: what was started, where it logs and answers, how long it may take.

    `exit_code` gives the main process's exit code, None while it runs.
    """

    base_url: str
    api_key: str | None
    model_path: str
    flags: tuple[str, ...]
    version: str
    log_path: Path
    exit_code: Callable[[], int | None]
    started: float
    timeout: float
    on_progress: Callable[[BootProgress], None] | None = None


def read_log(path: Path) -> str:
    """All that a server has logged so far; empty where its log can't be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def log_error(path: Path, kind: type[ServerError], what: str, fallback: str, remedy: str = "") -> ServerError:
    """An error whose reason comes from the log; `fallback` and `remedy` where the log shows nothing known."""
    text = read_log(path)
    error = from_log(kind, what, f"log {path}", text, fallback)
    if remedy and find_sign(telling_lines(text)) is None:
        error.remedy = remedy
    return error


class Waiting:
    """The wait for one boot."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._log = LogFollower(boot.log_path)

    def until_ready(self) -> None:
        """Return when the server is ready in the sense of `harness.server.ready`; raise otherwise."""
        boot, log = self._boot, self._log
        deadline = boot.started + boot.timeout
        told = -1
        while True:
            lines = log.poll()
            now = log.progress()
            self._tell(also=now if int(now.elapsed) != told else None)
            told = int(now.elapsed)
            self._judge(lines)
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._error(
                    BootTimeout,
                    f"the server was not ready after {boot.timeout:g} s",
                    f"it got as far as: {now}",
                    remedy="raise the timeout if the log still moves; else see what its last lines wait for",
                )
            try:
                if self._answers():
                    self._tell()
                    self._prove(left)
                    break
            except Unreachable:
                # Refused while loading; reset when it dies, which the next turn finds out.
                pass
            time.sleep(0.25)
        log.advance(Phase.READY)
        self._tell()

    def _tell(self, also: BootProgress | None = None) -> None:
        if self._boot.on_progress is not None:
            for step in (*self._log.passed(), *([also] if also else ())):
                self._boot.on_progress(step)

    def _answers(self) -> bool:
        boot, log = self._boot, self._log
        if call(boot.base_url, "/model_info", timeout=5.0, api_key=boot.api_key).status != 200:
            return False
        log.advance(Phase.WARMUP)
        if log.phase is not Phase.CHECKING and not is_warm(boot.base_url, api_key=boot.api_key):
            return False
        log.advance(Phase.CHECKING)
        return True

    def _prove(self, seconds: float) -> None:
        boot = self._boot
        try:
            prove_generation(boot.base_url, timeout=seconds, api_key=boot.api_key)
        except NotReady as error:
            error.log_lines = telling_lines(read_log(boot.log_path))
            raise
        reported = info(boot.base_url, "server_info", api_key=boot.api_key)
        confirm(boot.base_url, boot.model_path, boot.flags, reported, boot.version)

    def _judge(self, lines: Sequence[str]) -> None:
        """Raise if the process is gone or has logged something that it will never recover from."""
        if (code := self._boot.exit_code()) is not None:
            raise self._error(
                BootFailed,
                f"the server died while booting ({describe_exit(code)})",
                "the log does not say why",
            )
        if found := find_sign(lines, only_hanging=True):
            raise self._error(BootFailed, "the server can't become ready", found[1])

    def _error(self, kind: type[ServerError], what: str, fallback: str, remedy: str = "") -> ServerError:
        return log_error(self._boot.log_path, kind, what, fallback, remedy)
