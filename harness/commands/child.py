"""A command that runs while a server is up: its environment, its exit code, its end when the server dies.

Place in the flow: outermost, under `shardgate serve`. Imports the standard library, `contracts.errors`, and
the server stage's watchdog inside a function.

The command is a process group of its own, so that ending it ends what it started too. In the foreground of a
terminal it gets the terminal, as a shell's job does (`serve X -- bash` works: Ctrl-C and Ctrl-Z are the
command's); elsewhere it gets a session of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Protocol

from contracts.errors import ShardgateError

_GRACE = 10.0
"""Seconds between asking the command to end and ending it."""


class Running(Protocol):
    """What a command needs to know of the server that it runs against."""

    @property
    def base_url(self) -> str:
        """`http://host:port`."""

    def check(self) -> None:
        """Raise if the server is gone."""


def refuse_missing(command: Sequence[str]) -> None:
    """Raise before a boot of minutes when the command is none."""
    if command[0].startswith("-"):
        raise ShardgateError(
            f"{command[0]} is no command",
            where="the words after `--`",
            why="they are the command to run against the server",
            remedy='give flags for SGLang as --flags "…", before `--`',
        )
    if shutil.which(command[0]) is None:
        raise ShardgateError(
            f"the command {command[0]!r} is not there",
            where="the words after `--`",
            why="no such program is on PATH",
            remedy="correct its name, or give its full path",
        )


def environment(base_url: str, api_key: str | None) -> dict[str, str]:
    """The variables by which a command finds the server; OpenAI's client reads the second and the third."""
    given = {"SHARDGATE_BASE_URL": base_url, "OPENAI_BASE_URL": f"{base_url}/v1"}
    # The client refuses to start without a key; a key of somebody else's is not for this server.
    given["OPENAI_API_KEY"] = api_key or "none"
    if api_key:
        # Where a shardgate that is the command, or in it, looks for the key.
        given["SHARDGATE_API_KEY"] = api_key
    return given


def run(command: Sequence[str], server: Running, api_key: str | None = None) -> int:
    """Run the command until it ends, and return its exit code, 128 + n when signal n ended it.

    Raises what `server.check` raises when the server dies meanwhile; the command and all that it started are
    ended first, as they are on Ctrl-C, SIGTERM and SIGHUP, and when this process is killed.
    """
    from harness.server.process import Watchdog

    keys = _in_foreground()
    # An interactive shell takes no SIGTERM; SIGHUP it takes, and hands on to its jobs.
    first = signal.SIGHUP if keys else signal.SIGTERM
    watchdog = Watchdog(_GRACE, first)
    try:
        child = subprocess.Popen(
            command,
            env={**os.environ, **environment(server.base_url, api_key), **watchdog.variables},
            process_group=0 if keys else None,
            start_new_session=not keys,
        )
        watchdog.tell(str(child.pid))
        terminal = _Terminal(child.pid) if keys else None
        try:
            code = _wait(child, server, terminal)
        except BaseException:
            _end(child, watchdog.marker, first)
            raise
        finally:
            watchdog.tell("done")
            if terminal is not None:
                terminal.take_back()
        return code if code >= 0 else 128 - code
    finally:
        watchdog.release()


def _wait(child: subprocess.Popen[bytes], server: Running, terminal: _Terminal | None) -> int:
    asked = time.monotonic()
    while (code := child.poll()) is None:
        if time.monotonic() - asked >= 1.0:
            server.check()
            asked = time.monotonic()
        if terminal is not None:
            terminal.follow()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.2)
    return code


def _end(child: subprocess.Popen[bytes], marker: str, first: int) -> None:
    from harness.server import guard

    guard.end_group(child.pid, marker, _GRACE, first)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE)


def _in_foreground() -> bool:
    """Whether standard input is a terminal whose keys are ours now."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


class _Terminal:
    """The terminal lent to a command's process group, as a shell lends it to a job."""

    def __init__(self, pgid: int) -> None:
        self._pgid = pgid
        self._lend()

    def _lend(self) -> None:
        self._lent = True
        _give_terminal(self._pgid)
        # It may have asked for the terminal before it had it, and stands still for that.
        self._go_on()

    def _go_on(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pgid, signal.SIGCONT)

    def take_back(self) -> None:
        """Take the terminal from the command, whichever of its groups has it; not from our own shell."""
        if self._lent:
            self._lent = False
            _give_terminal(os.getpgrp())

    def follow(self) -> None:
        """Stop with a command that was stopped (Ctrl-Z), so that the shell goes on; `fg` continues both."""
        try:
            told = os.waitid(os.P_PID, self._pgid, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:
            return
        if told is None:
            return
        if self._lent and told.si_status in (signal.SIGTTIN, signal.SIGTTOU):
            self._lend()
            return
        self.take_back()
        os.killpg(os.getpgrp(), signal.SIGSTOP)
        if _in_foreground():
            self._lend()
        else:
            self._go_on()


def _give_terminal(pgid: int) -> None:
    # Who gives the terminal from the background is stopped for it, unless the signal is blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        with contextlib.suppress(OSError):  # the group is gone, or the terminal is
            os.tcsetpgrp(0, pgid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
