"""Signs of life of a server's processes: what they are, in which state, what they read, who was killed.

Place in the flow: below the wait for a server; asks `/proc` and the control group. Imports the standard
library and `harness.server.guard`.

A boot that reads a terabyte from a slow disk logs nothing for a long while and is well; one whose ranks wait
for each other in NCCL logs nothing either and burns every processor. So processor time is no sign of life
here, reading is.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from harness.server.guard import group_members

LIFE = 16 << 20
"""Bytes that count as a sign of life. Idle processes read too, some kilobytes a second, from their queues."""
_FAULT = 64 << 10
"""Bytes that a page read from disk for a mapped file stands for; the kernel reads ahead."""

_STATES = {
    "R": "running",
    "S": "waiting",
    "D": "waiting for disk or driver",
    "T": "stopped",
    "t": "held by a debugger",
    "I": "idle",
}


@dataclass(frozen=True, slots=True)
class Process:
    """A live process of a server; `state` is the letter of `/proc/PID/stat`."""

    pid: int
    name: str
    state: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}) {_STATES.get(self.state, self.state)}"


def _fields(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` after the name, from the state on; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []


def _name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    command = words[0].decode("utf-8", "replace").strip()
    if command.startswith("sglang::"):
        return command
    parts = [word.decode("utf-8", "replace") for word in words if word]
    if "sglang.launch_server" in parts:
        return "sglang.launch_server"
    if any("resource_tracker" in part for part in parts):
        return "resource tracker"
    return Path(command).name or "?"


def processes(pgid: int) -> tuple[Process, ...]:
    """The live processes of a group with their names and states."""
    found = ((pid, _fields(pid)) for pid in group_members(pgid))
    return tuple(Process(pid, _name(pid), fields[0]) for pid, fields in found if fields)


def told(members: tuple[Process, ...], limit: int = 12) -> str:
    """The processes in words, those that compute or are stopped first; helpers left out."""
    telling = [one for one in members if one.name != "resource tracker"]
    telling.sort(key=lambda one: (one.state not in "TtD", "::" not in one.name, one.pid))
    more = f" and {len(telling) - limit} more" if len(telling) > limit else ""
    return "; ".join(map(str, telling[:limit])) + more or "none is left"


class Reading:
    """Bytes that a group of processes has read since the start, also by processes that are gone since."""

    def __init__(self, pgid: int) -> None:
        self._pgid = pgid
        self._last: dict[int, int] = {}
        self._total = 0

    def total(self) -> int:
        """The bytes read so far: by read calls, from disk, and for mapped files."""
        for pid in group_members(self._pgid):
            now = self._of(pid)
            self._total += max(0, now - self._last.get(pid, 0))
            self._last[pid] = max(now, self._last.get(pid, 0))
        return self._total

    @staticmethod
    def _of(pid: int) -> int:
        fields = _fields(pid)
        faults = int(fields[9]) * _FAULT if len(fields) > 9 else 0
        try:
            lines = dict(
                line.split(": ", 1)
                for line in Path(f"/proc/{pid}/io").read_text().splitlines()
                if ": " in line
            )
            return faults + int(lines.get("rchar", 0)) + int(lines.get("read_bytes", 0))
        except (OSError, ValueError):
            return faults


def what_to_do(members: tuple[Process, ...]) -> str:
    """What somebody can do about processes that stand still."""
    stopped = [str(one.pid) for one in members if one.state in "Tt"]
    if stopped:
        return f"somebody stopped them: `kill -CONT {' '.join(stopped)}` has them go on; then boot again"
    if any(one.state == "D" for one in members):
        return "see `dmesg -T` and whether the file system of the model answers (`ls`, `dd`); then boot again"
    busy = [one for one in members if "scheduler" in one.name] or list(members)
    where = " ".join(str(one.pid) for one in busy[:1]) or "PID"
    if shutil.which("py-spy"):
        look = f"boot again and, while it stands, see `py-spy dump --pid {where}` (of the new pid)"
    else:
        look = "install py-spy, boot again and, while it stands, see `py-spy dump --pid` of its scheduler"
    return f"{look}; with several ranks set NCCL_DEBUG=INFO and see the log's end"


def oom_kills() -> int | None:
    """How many processes the kernel killed for memory in this control group; None where that is untold."""
    places = [Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control")]
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                places.insert(0, Path("/sys/fs/cgroup") / path.lstrip("/") / "memory.events")
            elif "memory" in controllers.split(","):
                places.insert(0, Path("/sys/fs/cgroup/memory") / path.lstrip("/") / "memory.oom_control")
    except (OSError, ValueError):
        pass
    for place in places:
        try:
            counts = dict(line.split() for line in place.read_text().splitlines() if len(line.split()) == 2)
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
        except (OSError, ValueError):
            continue
    return None
