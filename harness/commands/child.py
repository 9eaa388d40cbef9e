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
from collections.abc import Iterator, Sequence
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

    terminal = _in_foreground()
    watchdog = Watchdog(_GRACE)
    try:
        child = subprocess.Popen(
            command,
            env={**os.environ, **environment(server.base_url, api_key), **watchdog.variables},
            process_group=0 if terminal else None,
            start_new_session=not terminal,
        )
        watchdog.tell(str(child.pid))
        try:
            with _terminal_of(child.pid) if terminal else contextlib.nullcontext():
                code = _wait(child, server, terminal)
        except BaseException:
            _end(child, watchdog.marker, terminal)
            raise
        finally:
            watchdog.tell("done")
        return code if code >= 0 else 128 - code
    finally:
        watchdog.release()


def _wait(child: subprocess.Popen[bytes], server: Running, terminal: bool) -> int:
    asked = time.monotonic()
    while (code := child.poll()) is None:
        if time.monotonic() - asked >= 1.0:
            server.check()
            asked = time.monotonic()
        if terminal and (number := _stopped(child.pid)):
            _pause(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.2)
    return code


def _in_foreground() -> bool:
    """Whether standard input is a terminal whose keys are ours now."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _give_terminal(pgid: int) -> None:
    # Who gives the terminal from the background is stopped for it, unless the signal is blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        with contextlib.suppress(OSError):  # the group is gone, or the terminal is
            os.tcsetpgrp(0, pgid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signal(pgid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, number)


@contextlib.contextmanager
def _terminal_of(pgid: int) -> Iterator[None]:
    """The terminal is the group's meanwhile, and ours again afterwards."""
    _give_terminal(pgid)
    # It may have asked for the terminal before it had it, and stands still for that.
    _signal(pgid, signal.SIGCONT)
    try:
        yield
    finally:
        _give_terminal(os.getpgrp())


def _stopped(pid: int) -> int:
    """The signal that has stopped the command since the last call; 0 when none has."""
    try:
        told = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
    except ChildProcessError:
        return 0
    return told.si_status if told is not None and told.si_code == os.CLD_STOPPED else 0


def _pause(pgid: int, number: int) -> None:
    """Stop with a command that was stopped (Ctrl-Z), so that the shell goes on; `fg` continues both."""
    if number in (signal.SIGTSTP, signal.SIGSTOP):
        _give_terminal(os.getpgrp())
        os.killpg(os.getpgrp(), signal.SIGSTOP)
    if _in_foreground() or number not in (signal.SIGTSTP, signal.SIGSTOP):
        _give_terminal(pgid)
    _signal(pgid, signal.SIGCONT)


def _end(child: subprocess.Popen[bytes], marker: str, terminal: bool) -> None:
    from harness.server import guard

    # An interactive shell takes no SIGTERM; SIGHUP it takes, and hands on to its jobs.
    first = signal.SIGHUP if terminal else signal.SIGTERM
    guard.end_group(child.pid, marker, _GRACE, first)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE)
