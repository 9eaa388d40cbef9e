"""Process groups, and the watchdog that ends a server whose owner is gone, however the owner went.

Place in the flow: below the launcher. Imports the standard library only: it also runs as a script of its own
(`python -I -S guard.py`), so that it starts in milliseconds and holds nothing open.

The watchdog is a second child of the owner, in a session of its own. It holds the reading end of a pipe;
when the owner dies, by SIGTERM or even SIGKILL, the pipe ends and the watchdog ends the server's group.
`PR_SET_PDEATHSIG` would not do: it fires when the *thread* that started the server ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

MARKER = "SHARDGATE_SERVER"
"""Environment variable that every process of a server inherits; its value names the server."""


def _stat(pid: str) -> tuple[str, int] | None:
    """(state letter, process group) of a process, None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return (fields[0], int(fields[2])) if len(fields) > 2 else None


def _pids() -> list[str]:
    try:
        return [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # bare names wanted
    except OSError:
        return []


def group_members(pgid: int) -> list[int]:
    """Live processes of a group. Zombies don't count: in a container nobody may ever reap them."""
    found = []
    for pid in _pids():
        stat = _stat(pid)
        if stat and stat[1] == pgid and stat[0] not in "ZX":
            found.append(int(pid))
    return found


def marked(marker: str) -> list[int]:
    """Live processes that carry the server's marker, also those that left its group."""
    wanted = f"{MARKER}={marker}".encode()
    found = []
    for pid in _pids():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        stat = _stat(pid)
        if wanted in environ.split(b"\0") and stat and stat[0] not in "ZX":
            found.append(int(pid))
    return found


def _signal_group(pgid: int, number: int) -> None:
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        return


def _gone(pgid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while group_members(pgid):
        if time.monotonic() >= until:
            return False
        time.sleep(0.05)
    return True


def end_group(pgid: int, marker: str, grace: float = 10.0, first: int = signal.SIGINT) -> None:
    """End every process of a server: SIGINT, after `grace` seconds SIGKILL, then whatever left the group.

    `first` is the signal to ask with, for what is no server.

    Returns when none is alive any more, or five seconds after the last SIGKILL (a process stuck in a driver
    can't be killed). Safe to call again, and for a group that is already gone.
    """
    try:
        if group_members(pgid):
            _signal_group(pgid, first)
            # A stopped process takes none until it is continued.
            _signal_group(pgid, signal.SIGCONT)
            _gone(pgid, grace)
    finally:
        if group_members(pgid):
            _signal_group(pgid, signal.SIGKILL)
            _gone(pgid, 5.0)
        for pid in marked(marker):
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def watch(owner: int, marker: str, grace: float, first: int = signal.SIGINT) -> None:
    """Wait on standard input: first the group's number, then either `done` or the end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.set_blocking(0, False)
    said = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.5)
        chunk = os.read(0, 4096) if ready else b""
        said += chunk
        if b"done" in said:
            return
        # A forked child of the owner may hold the pipe open, so the owner's death is looked for as well.
        if (ready and not chunk) or os.getppid() != owner:
            break
    if said.strip():
        end_group(int(said.split()[0]), marker, grace, first)
    else:
        for pid in marked(marker):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), *map(int, sys.argv[4:]))
