"""How far a boot has come, read from SGLang's log.

Place in the flow: between the log file and whoever shows progress. Imports the standard library and
`harness.server.history`.

The log is the only witness: the port opens when the engine is there, so while a large model loads every
connection is refused. Progress is for people; readiness never rests on it (see `ready`).
"""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from harness.server.history import Durations


class Phase(StrEnum):
    """The steps of a boot, in order."""

    STARTING = "starting"
    RANKS = "joining ranks"
    WEIGHTS = "loading weights"
    MEMORY = "allocating memory"
    GRAPHS = "capturing graphs"
    WARMUP = "warming up"
    CHECKING = "checking"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class BootProgress:
    """The phase, checkpoint shards loaded of all (0 of 0 before any), seconds since the start.

    `bytes_read` of `total_bytes` is the loaded shards' share of the checkpoint's size on disk (0 of 0 where
    that is unknown): what a process reads by the kernel's count holds packages and other files too, and is
    nothing for a file that is mapped from the page cache. `rate_gb_s` is the mean since the first shard began
    (10^9 bytes a second).
    `seconds_left` is None where nothing is known: at the first boot of a model, but for the shards.
    """

    phase: Phase
    shards_done: int
    shards_total: int
    elapsed: float
    bytes_read: int = 0
    total_bytes: int = 0
    rate_gb_s: float | None = None
    seconds_left: float | None = None

    @property
    def gigabytes(self) -> str:
        """The bytes in words, such as `41.2/595.2 GB, 1.3 GB/s`; empty where they are unknown or over."""
        if not self.total_bytes or self.phase is not Phase.WEIGHTS:
            return ""
        rate = f", {self.rate_gb_s:.2g} GB/s" if self.rate_gb_s else ""
        digits = 1 if self.total_bytes >= 1e9 else 3
        return f"{self.bytes_read / 1e9:.{digits}f}/{self.total_bytes / 1e9:.{digits}f} GB{rate}"

    def facts(self) -> dict[str, Any]:
        """What a progress line shows beside the phase, named as `harness.commands.progress` knows it."""
        known: dict[str, Any] = {}
        if self.shards_total and self.phase is Phase.WEIGHTS:
            known |= {"done": self.shards_done, "total": self.shards_total}
        if self.gigabytes:
            known["read"] = self.gigabytes
        if self.seconds_left is not None and self.phase is not Phase.READY:
            known["remaining"] = self.seconds_left
        return known

    def __str__(self) -> str:
        shards = f" {self.shards_done}/{self.shards_total} shards" if self.shards_total else ""
        size = f", {self.gigabytes}" if self.gigabytes else ""
        left = f", about {self.seconds_left:.0f} s left" if self.seconds_left is not None else ""
        return f"{self.phase}{shards}{size} ({self.elapsed:.0f} s{left})"


_ORDER = tuple(Phase)
_PHASES: tuple[tuple[str, Phase], ...] = (
    ("Init parallel begin", Phase.RANKS),
    ("Init torch distributed begin", Phase.RANKS),
    ("Load weight begin", Phase.WEIGHTS),
    ("Load weight end", Phase.MEMORY),
    ("Capture cuda graph begin", Phase.GRAPHS),
    ("Capturing batches", Phase.GRAPHS),
    ("Uvicorn running on", Phase.WARMUP),
    ("The server is fired up and ready to roll", Phase.CHECKING),
)
_SHARDS = re.compile(r"shards:\s+\d+% Completed \| (\d+)/(\d+)")


class LogFollower:
    """Reads a growing log file and keeps the furthest point of the boot that it has shown.

    Phases never go back: several ranks write into one log, each at its own pace.
    """

    def __init__(self, path: Path, total_bytes: int = 0, earlier: Durations | None = None) -> None:
        """`total_bytes` is the checkpoint's size on disk, `earlier` how long the phases took before."""
        self._path = path
        self._offset = 0
        self._rest = ""
        self._started = time.monotonic()
        self._phase = Phase.STARTING
        self._shards = (0, 0)
        self._passed: list[BootProgress] = []
        self._total_bytes = total_bytes
        self._earlier = dict((earlier or Durations()).seconds)
        self._begun = {Phase.STARTING: self._started}
        self._first_shard = 0.0
        self._left: tuple[float, float] | None = None

    def poll(self) -> list[str]:
        """The lines that came since the last call; a progress bar's states count as lines."""
        with self._path.open("rb") as handle:
            handle.seek(self._offset)
            data = handle.read()
        self._offset += len(data)
        *lines, self._rest = re.split(r"[\r\n]", self._rest + data.decode("utf-8", "replace"))
        for line in lines:
            self._read(line)
        # A progress bar ends its state with the *next* state's carriage return.
        self._read(self._rest)
        return [line for line in lines if line]

    def passed(self) -> list[BootProgress]:
        """Every step since the last call, also those that came and went between two polls."""
        taken, self._passed = self._passed, []
        return taken

    def _read(self, line: str) -> None:
        if shards := _SHARDS.search(line):
            done, total = int(shards[1]), int(shards[2])
            self.advance(Phase.WEIGHTS)
            shards_now = (max(done, self._shards[0]) if total == self._shards[1] else done, total)
            if shards_now != self._shards:
                if not self._shards[1]:
                    self._first_shard = time.monotonic()
                self._shards = shards_now
                self._passed.append(self.progress())
        for words, phase in _PHASES:
            if words in line:
                self.advance(phase)

    def advance(self, phase: Phase) -> None:
        """Note a phase that is seen otherwise than in the log."""
        if _ORDER.index(phase) > _ORDER.index(self._phase):
            self._phase = phase
            self._begun[phase] = time.monotonic()
            self._passed.append(self.progress())

    @property
    def phase(self) -> Phase:
        """The furthest phase so far."""
        return self._phase

    def durations(self) -> dict[str, float]:
        """Seconds that each phase took which is over."""
        begun = sorted(self._begun.items(), key=lambda item: _ORDER.index(item[0]))
        return {phase.value: later - since for (phase, since), (_, later) in itertools.pairwise(begun)}

    def progress(self) -> BootProgress:
        """Where the boot stands now."""
        now = time.monotonic()
        done, total = self._shards
        read = self._total_bytes * done // total if total else 0
        spent = now - self._first_shard if self._first_shard else 0.0
        rate = read / spent / 1e9 if read and spent > 1.0 and self._phase is Phase.WEIGHTS else None
        return BootProgress(
            self._phase,
            done,
            total,
            elapsed=now - self._started,
            bytes_read=read,
            total_bytes=self._total_bytes,
            rate_gb_s=rate,
            seconds_left=self._seconds_left(now),
        )

    def _seconds_left(self, now: float) -> float | None:
        """What earlier boots say, for weights what the shards say; it only falls, but for a real delay."""
        if self._phase is Phase.READY:
            return 0.0
        done, total = self._shards
        here = None
        spent = now - self._first_shard
        if self._phase is Phase.WEIGHTS and 0 < total <= 10 * done and spent > 1.0:
            # From the first tenth on: what starts slowly would promise hours.
            here = spent / done * (total - done)
        elif self._phase.value in self._earlier:
            here = max(0.0, self._earlier[self._phase.value] - (now - self._begun[self._phase]))
        if here is None:
            return None
        later = _ORDER[_ORDER.index(self._phase) + 1 :]
        left = here + sum(self._earlier.get(phase.value, 0.0) for phase in later)
        if left <= 0.0:
            # It takes longer than ever before: nobody knows.
            return None
        if self._left is not None:
            promised = max(0.0, self._left[1] - (now - self._left[0]))
            # Small ups and downs of the rate are not told; half as much again is a delay and is.
            left = min(left, promised) if promised and left < 1.5 * promised + 1.0 else left
        self._left = (now, left)
        return left
