"""How far a boot has come, read from SGLang's log.

Place in the flow: between the log file and whoever shows progress. Imports the standard library only.

The log is the only witness: the port opens when the engine is there, so while a large model loads every
connection is refused. Progress is for people; readiness never rests on it (see `ready`).
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


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
    """The phase, checkpoint shards loaded of all (0 of 0 before any), seconds since the start."""

    phase: Phase
    shards_done: int
    shards_total: int
    elapsed: float

    def __str__(self) -> str:
        shards = f" {self.shards_done}/{self.shards_total} shards" if self.shards_total else ""
        return f"{self.phase}{shards} ({self.elapsed:.0f} s)"


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

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = ""
        self._started = time.monotonic()
        self._phase = Phase.STARTING
        self._shards = (0, 0)
        self._passed: list[BootProgress] = []

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
                self._shards = shards_now
                self._passed.append(self.progress())
        for words, phase in _PHASES:
            if words in line:
                self.advance(phase)

    def advance(self, phase: Phase) -> None:
        """Note a phase that is seen otherwise than in the log."""
        if _ORDER.index(phase) > _ORDER.index(self._phase):
            self._phase = phase
            self._passed.append(self.progress())

    @property
    def phase(self) -> Phase:
        """The furthest phase so far."""
        return self._phase

    def progress(self) -> BootProgress:
        """Where the boot stands now."""
        return BootProgress(self._phase, *self._shards, elapsed=time.monotonic() - self._started)
