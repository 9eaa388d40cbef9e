"""Progress on standard error: a live line on a terminal, plain single lines elsewhere.

Place in the flow: outermost; the stages call it as `on_event(phase, facts)`. Imports rich inside functions.

Facts that are understood: `message` (text), `done` and `total` (counts), `remaining` (seconds); any other
is printed as `name value`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from harness.report.text import safe, seconds

_EVERY = 10.0
"""Seconds between two plain lines of one phase, in its first two minutes."""
_EVERY_LATER = 30.0
"""The same afterwards: a log of a boot that takes an hour stays readable."""
_EVERY_SAME = 60.0
"""The same where a line would say again what the last one said; a log shows that the work still goes on."""


class Events(Protocol):
    """What a stage calls to tell how far it is."""

    def __call__(self, phase: str, facts: Mapping[str, Any] | None = None, /) -> None: ...


def describe(facts: Mapping[str, Any]) -> str:
    """Return an event's facts in words, counts and times left out."""
    words = [safe(str(facts["message"]))] if facts.get("message") else []
    words += [
        f"{safe(str(name))} {safe(str(value))}"
        for name, value in facts.items()
        if name not in ("message", "done", "total", "remaining", "elapsed") and value is not None
    ]
    return ", ".join(words)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


class _Phase:
    """The clock of one phase: since when, how far, how long it may still take."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.start = time.monotonic()
        self.told = float("-inf")
        self.said: str | None = None
        self.last = ""

    def left(self, facts: Mapping[str, Any]) -> float | None:
        if isinstance(facts.get("remaining"), int | float):
            return float(facts["remaining"])
        done, total = facts.get("done"), facts.get("total")
        # From the first tenth on: what starts slowly would promise hours.
        if (
            isinstance(done, int | float)
            and isinstance(total, int | float)
            and 0 < total <= 10 * done < 10 * total
        ):
            return (time.monotonic() - self.start) / done * (total - done)
        return None


class Progress:
    """A context manager that is called with each event; chooses the live or the plain form by the stream."""

    def __init__(self) -> None:
        self._live: Any = None
        self._task: Any = None
        self._phase: _Phase | None = None
        self._begin = time.monotonic()

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Live

            self._live = Live(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[note]}", markup=False),
                TimeElapsedColumn(),
                console=Console(stderr=True, markup=False, emoji=False, highlight=False),
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(failed=kind is not None)
        if self._live is not None:
            self._live.stop()

    def __call__(self, phase: str, facts: Mapping[str, Any] | None = None, /) -> None:
        facts = facts or {}
        if self._phase is None or self._phase.name != phase:
            self._finish()
            self._phase = _Phase(phase)
            if self._live is not None:
                self._task = self._live.add_task(safe(phase), total=None, note="")
        note = self._note(self._phase, facts)
        self._phase.last = note or self._phase.last
        if self._live is not None:
            self._live.update(
                self._task, total=facts.get("total"), completed=facts.get("done") or 0, note=note
            )
        else:
            self._plain(self._phase, facts, note)

    def say(self, text: str) -> None:
        """Print one line that stays, such as a command that was started."""
        if self._live is not None:
            self._live.console.print(safe(text), style="dim", soft_wrap=True)
        else:
            self._line(safe(text))

    def _note(self, phase: _Phase, facts: Mapping[str, Any]) -> str:
        parts = []
        if facts.get("done") is not None and facts.get("total"):
            parts.append(f"{_number(facts['done'])}/{_number(facts['total'])}")
        if words := describe(facts):
            parts.append(words)
        left = phase.left(facts)
        if left is not None:
            parts.append(f"about {seconds(left)} left")
        return ", ".join(parts)

    def _plain(self, phase: _Phase, facts: Mapping[str, Any], note: str) -> None:
        now = time.monotonic()
        last = facts.get("total") is not None and facts.get("done") == facts.get("total")
        every = _EVERY if now - phase.start < 120.0 else _EVERY_LATER
        if (last and note != phase.said) or now - phase.told >= (
            _EVERY_SAME if note == phase.said else every
        ):
            phase.told, phase.said = now, note
            self._line(f"{safe(phase.name)}{': ' + note if note else ''}")

    def _finish(self, failed: bool = False) -> None:
        if self._phase is None:
            return
        took = seconds(time.monotonic() - self._phase.start)
        name = safe(self._phase.name)
        if self._live is not None:
            self._live.remove_task(self._task)
            note = f" ({self._phase.last})" if self._phase.last else ""
            self._live.console.print(f"{'stopped' if failed else 'done'}  {name}{note}, {took}", style="dim")
        elif failed:
            self._line(f"{name}: stopped after {took}")
        self._phase = None

    def _line(self, text: str) -> None:
        elapsed = time.monotonic() - self._begin
        print(f"[{time.strftime('%H:%M:%S')} {elapsed:7.1f} s] {text}", file=sys.stderr, flush=True)
