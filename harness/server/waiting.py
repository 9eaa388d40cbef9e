"""Waiting for a started server: its log and its answers are followed until it is ready, dead, or out of time.

Place in the flow: between the launcher, which started the process, and readiness. Imports the stage's own
modules only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.server.failures import (
    BootFailed,
    BootStalled,
    BootTimeout,
    NotReady,
    ServerDied,
    ServerError,
    Unreachable,
    describe_exit,
)
from harness.server.hardware import gpu_users
from harness.server.history import Durations
from harness.server.http import call
from harness.server.nodes import follower_is_up, generates_alone, node_count, serves_api
from harness.server.progress import BootProgress, LogFollower, Phase
from harness.server.ready import confirm, info, is_warm, prove_generation
from harness.server.signs import READY_LINE, clean_lines, find_sign, from_log, signs, telling_lines
from harness.server.vitals import LIFE, Reading, oom_kills, processes, told, what_to_do

_TAIL = 8 << 20
"""Bytes at a log's end that are searched for reasons; a server that ran for days has logged gigabytes."""
_ONE_PROOF = 60.0
"""Seconds that one request may take while the boot is judged; without an answer it is judged anew."""
_ECHO = re.compile(r'" \d{3}(?: |$)|- "(?:GET|POST) /|Health check failed|^\s*$')
"""Lines that SGLang logs because *we* ask; they are no sign of life."""


@dataclass(frozen=True, slots=True)
class Boot:
    """A boot under way: what was started, where it logs and answers, how long it may take.

    `exit_code` gives the main process's exit code, None while it runs. `stall_timeout` is the longest time
    without a sign of life; None: as long as it likes.
    """

    pid: int
    base_url: str
    api_key: str | None
    model_path: str
    flags: tuple[str, ...]
    version: str
    log_path: Path
    exit_code: Callable[[], int | None]
    started: float
    timeout: float
    stall_timeout: float | None = None
    total_bytes: int = 0
    earlier: Durations = field(default_factory=Durations)
    on_progress: Callable[[BootProgress], None] | None = None


def read_log(path: Path, last: int | None = None) -> str:
    """All that a server has logged so far, or the last bytes of it; empty where its log can't be read."""
    try:
        with path.open("rb") as handle:
            if last is not None:
                handle.seek(max(0, path.stat().st_size - last))
            return handle.read().decode("utf-8", "replace")
    except OSError:
        return ""


def log_error(
    path: Path, kind: type[ServerError], what: str, fallback: str, remedy: str = "", kills: int = 0
) -> ServerError:
    """An error whose reason comes from the log; `fallback` and `remedy` where the log shows nothing known.

    `kills` is the number of processes that the kernel has killed for memory meanwhile.
    """
    text = read_log(path, _TAIL)
    if kind is ServerDied:
        # What it logged before it was ready did not keep it from becoming so.
        text = text.rpartition(READY_LINE)[2]
    error = from_log(kind, what, f"log {path}", text, fallback)
    if remedy and not error.sign:
        error.remedy = remedy
    if kills and error.sign in ("", "rank-killed", "child-died", "host-memory"):
        named = next(sign for sign in signs() if sign.name == "host-memory")
        error.sign, error.remedy = named.name, named.remedy
        error.why = f"out of host memory: the kernel killed {kills} of this control group's processes for it"
    if any(sign.gpu for sign in signs() if sign.name == error.sign) and (users := gpu_users()):
        error.why += "; the GPUs are used by " + "; ".join(map(str, users[:8]))
    return error


def died(path: Path, kind: type[ServerError], when: str, code: int, kills_before: int | None) -> ServerError:
    """The error for a main process that is gone."""
    now = oom_kills()
    kills = now - kills_before if now is not None and kills_before is not None else 0
    what = f"the server died{when} ({describe_exit(code)})"
    fallback, remedy = "the log has no sign that is known", ""
    if code == -9 and "Received sigquit from a child process" in read_log(path, _TAIL):
        # SGLang's own way to end: a child fails, the main process kills its whole tree, itself included.
        what = f"the server died{when} (one of its processes failed, and SGLang ended itself)"
    elif code == -9:
        fallback = "somebody sent SIGKILL: a user, a job scheduler, or the kernel when host memory runs out"
        remedy = "see `dmesg -T | grep -i -e oom -e killed`, and the limits of the container or job"
    return log_error(path, kind, what, fallback, remedy, max(0, kills))


_DYING = re.compile(r"Subprocess \S+ \(pid=\d+\) crashed with exit code|\] SIGQUIT received\.")


class DeathWatch:
    """Reads what a ready server logs, for the word that it is about to end.

    SGLang 0.5.23 stays for 65 s after one of its processes died (5 for diagnostics, 60 for GPU core dumps),
    its port open and `/model_info` answering 200; only the log says so at once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self._found = False

    def is_dying(self) -> bool:
        """Whether the log says that a process of the server is gone."""
        try:
            with self._path.open("rb") as handle:
                handle.seek(self._offset)
                data = handle.read()
        except OSError:
            return self._found
        whole = data.rpartition(b"\n")[0]
        self._offset += len(whole)
        self._found = self._found or _DYING.search(whole.decode("utf-8", "replace")) is not None
        return self._found


class Waiting:
    """The wait for one boot."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._log = LogFollower(boot.log_path, boot.total_bytes, boot.earlier)
        self._reading = Reading(boot.pid)
        self._kills = oom_kills()
        self._alive_at = time.monotonic()
        self._read_then = 0

    @property
    def durations(self) -> dict[str, float]:
        """How long each phase took, once it is over."""
        return self._log.durations()

    def until_ready(self) -> None:
        """Return when the server is ready in the sense of `harness.server.ready`; raise otherwise."""
        boot, log = self._boot, self._log
        deadline = boot.started + boot.timeout
        told_at = -1
        while True:
            lines = log.poll()
            now = log.progress()
            self._tell(also=now if int(now.elapsed) != told_at else None)
            told_at = int(now.elapsed)
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
        if not serves_api(boot.flags):
            if not follower_is_up(boot.base_url):
                return False
            log.advance(Phase.CHECKING)
            return True
        if call(boot.base_url, "/model_info", timeout=5.0, api_key=boot.api_key).status != 200:
            return False
        log.advance(Phase.WARMUP)
        if log.phase is not Phase.CHECKING and not is_warm(boot.base_url, api_key=boot.api_key):
            return False
        log.advance(Phase.CHECKING)
        return True

    def _prove(self, seconds: float) -> None:
        boot = self._boot
        if not serves_api(boot.flags):
            return
        if generates_alone(boot.flags):
            self._prove_generation(seconds)
        reported = info(boot.base_url, "server_info", api_key=boot.api_key)
        confirm(boot.base_url, boot.model_path, boot.flags, reported, boot.version)

    def _prove_generation(self, seconds: float) -> None:
        boot = self._boot
        patience = min(seconds, _ONE_PROOF, boot.stall_timeout or _ONE_PROOF)
        try:
            prove_generation(boot.base_url, timeout=patience, api_key=boot.api_key)
        except NotReady as error:
            error.log_lines = telling_lines(read_log(boot.log_path, _TAIL))
            raise

    def _judge(self, lines: Sequence[str]) -> None:
        """Raise if the process is gone, has logged what it will never recover from, or stands still."""
        if (code := self._boot.exit_code()) is not None:
            raise died(self._boot.log_path, BootFailed, " while booting", code, self._kills)
        if found := find_sign(clean_lines("\n".join(lines)), only_hanging=True):
            raise self._error(BootFailed, "the server can't become ready", found[1])
        self._judge_life(lines)

    def _waits_for_others(self) -> bool:
        """Whether this may be a node that waits, silent, until the other machines' nodes have started."""
        return node_count(self._boot.flags) > 1 and self._log.phase in (Phase.STARTING, Phase.RANKS)

    def _judge_life(self, lines: Sequence[str]) -> None:
        limit = self._boot.stall_timeout
        if limit is None or self._waits_for_others():
            return
        now = time.monotonic()
        if any(not _ECHO.search(line) for line in lines):
            self._alive_at = now
            self._read_then = self._reading.total()
        if now - self._alive_at < min(1.0, limit / 2):
            return
        # Asking /proc for every process takes some milliseconds: only when the log is silent.
        if (read := self._reading.total()) - self._read_then >= LIFE:
            self._alive_at, self._read_then = now, read
        silent = now - self._alive_at
        if silent < limit:
            return
        members = processes(self._boot.pid)
        error = self._error(
            BootStalled,
            f"the server stands still: no sign of life for {silent:.0f} s, while {self._log.phase}",
            f"nothing was logged and nothing read; its processes: {told(members)}",
        )
        # What its log says of old is no reason; what its processes do now is.
        error.why = f"nothing was logged and nothing read; its processes: {told(members)}"
        error.remedy = what_to_do(members)
        raise error

    def _error(self, kind: type[ServerError], what: str, fallback: str, remedy: str = "") -> ServerError:
        return log_error(self._boot.log_path, kind, what, fallback, remedy)
