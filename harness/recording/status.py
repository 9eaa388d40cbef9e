"""How a run stands, in numbers: for a progress line, for OpenMetrics, for the summary.

Place in the flow: beside the runner. Imports `contracts.records` and the standard library.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.records import VERDICT_ORDER

RATE_SECONDS = 60.0
"""The rates are those of the last minute: an average over a night tells nothing about now."""

_SERVER_GAUGES = {
    "num_running_reqs": "running",
    "num_queue_reqs": "queued",
    "token_usage": "cache",
}
"""SGLang's own metrics (with `--enable-metrics`) → our words. Source: SGLang 0.5.23, `srt/metrics`."""

_SAMPLE = re.compile(r"^sglang[:_](\w+)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


def server_gauges(text: str) -> dict[str, float]:
    """Return running and queued requests (summed over ranks) and cache use (0 to 1, the fullest)."""
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        word = _SERVER_GAUGES.get(name)
        if word == "cache":
            found[word] = max(found.get(word, 0.0), float(value))
        elif word:
            found[word] = found.get(word, 0.0) + float(value)
    return found


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """How one server of the run stands; counts are those of this start."""

    name: str
    state: str
    why: str
    in_flight: int
    limit: int
    answers: int
    tokens: int
    outages: int
    gauges: Mapping[str, float]


def all_gauges(servers: Sequence[ServerStatus]) -> dict[str, float]:
    """Return the servers' own gauges as one: requests summed, of the caches the fullest."""
    found: dict[str, float] = {}
    for server in servers:
        for name, value in server.gauges.items():
            before = found.get(name, 0.0)
            found[name] = max(before, value) if name == "cache" else before + value
    return found


@dataclass(slots=True)
class Status:
    """Counts of one start of a run; `captured` and `failed` hold earlier starts' too."""

    total: int
    captured: int = 0
    failed: int = 0
    bad_rows: int = 0
    tokens: int = 0
    retries: int = 0
    outages: int = 0
    weight_updates: int = 0
    in_flight: int = 0
    limit: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    finishes: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    prompts: Counter[str] = field(default_factory=Counter)
    turns: Counter[str] = field(default_factory=Counter)
    server: dict[str, float] = field(default_factory=dict)
    servers: tuple[ServerStatus, ...] = ()
    clock: Callable[[], float] = time.monotonic
    _recent: deque[tuple[float, int, int]] = field(default_factory=deque)
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def seconds(self) -> float:
        """Return how long this start has gone on."""
        return self.clock() - self._began

    @property
    def done(self) -> int:
        """Return the generations that are through, one way or the other."""
        return self.captured + self.failed + self.bad_rows

    def count(self, rows: int, failed: int, tokens: int) -> None:
        """Note what was just committed, for the rates; `captured` and `failed` are set from the store."""
        self.tokens += tokens
        now = self.clock()
        self._recent.append((now, rows + failed, tokens))
        while self._recent and self._recent[0][0] < now - RATE_SECONDS:
            self._recent.popleft()

    def rates(self) -> tuple[float, float]:
        """Return generations and tokens a second, over the last minute."""
        now = self.clock()
        recent = [one for one in self._recent if one[0] >= now - RATE_SECONDS]
        span = max(min(now - self._began, RATE_SECONDS), 1e-6)
        return sum(one[1] for one in recent) / span, sum(one[2] for one in recent) / span

    def progress(self) -> dict[str, Any]:
        """Return what a progress line shows, named as `harness.commands.progress` knows it."""
        rows, tokens = self.rates()
        left = self.total - self.done
        facts: dict[str, Any] = {
            "message": f"{self.done}/{self.total}, {tokens:.0f} tokens/s, {rows:.1f} rows/s",
            "in flight": f"{self.in_flight}/{self.limit}",
        }
        if rows > 0 and left > 0:
            # Counts too only now: without a rate, they would be read as one that began at zero.
            facts |= {"done": self.done, "total": self.total, "remaining": left / rows}
            facts["message"] = f"{tokens:.0f} tokens/s, {rows:.1f} rows/s"
        judged = self.verdicts.total()
        if judged:
            facts["verdicts"] = " ".join(
                f"{verdict} {100 * self.verdicts[verdict] / judged:.3g}%"
                for verdict in map(str, VERDICT_ORDER)
                if self.verdicts[verdict]
            )
        for name, counts in (("prompts", self.prompts), ("turns", self.turns)):
            if set(counts) - {"same"}:
                facts[name] = " ".join(f"{cause} {count}" for cause, count in counts.most_common(4))
        if self.failed or self.bad_rows:
            causes = " ".join(f"{cause} {count}" for cause, count in self.causes.most_common(4))
            facts["failed"] = f"{self.failed + self.bad_rows} ({causes or 'earlier'})"
        if self.retries:
            facts["retries"] = self.retries
        if self.outages:
            facts["outages"] = self.outages
        if len(self.servers) > 1:
            facts["servers"] = f"{sum(one.state == 'up' for one in self.servers)}/{len(self.servers)}"
            if away := [one.name for one in self.servers if one.state != "up"]:
                facts["servers"] += f" (without {', '.join(away)})"
        if self.server:
            cache = self.server.get("cache")
            facts["server"] = (
                f"runs {self.server.get('running', 0):.0f} queues {self.server.get('queued', 0):.0f}"
            )
            if cache is not None:
                facts["server"] += f" cache {100 * cache:.0f}%"
        return facts

    def open_metrics(self) -> str:
        """Return the same as OpenMetrics text."""
        rows, tokens = self.rates()
        lines: list[str] = []

        def family(name: str, kind: str, told: str, values: Mapping[str, float]) -> None:
            lines.append(f"# TYPE shardgate_capture_{name} {kind}")
            lines.append(f"# HELP shardgate_capture_{name} {told}")
            suffix = "_total" if kind == "counter" else ""
            lines.extend(
                f"shardgate_capture_{name}{suffix}{labels} {value:g}" for labels, value in values.items()
            )

        def by(label: str, counts: Mapping[str, int]) -> dict[str, float]:
            return {f'{{{label}="{_escaped(name)}"}}': count for name, count in sorted(counts.items())}

        family("generations", "gauge", "Generations that the run is to make.", {"": self.total})
        family("captured", "counter", "Generations captured, earlier starts included.", {"": self.captured})
        family("failed", "counter", "Generations that failed for good.", {"": self.failed + self.bad_rows})
        family("tokens", "counter", "Response tokens captured by this start.", {"": self.tokens})
        family("tokens_per_second", "gauge", "Response tokens a second, last minute.", {"": tokens})
        family("rows_per_second", "gauge", "Generations a second, last minute.", {"": rows})
        family("in_flight", "gauge", "Requests under way.", {"": self.in_flight})
        family("limit", "gauge", "Requests that may be under way.", {"": self.limit})
        family("retries", "counter", "Requests sent again.", {"": self.retries})
        family("outages", "counter", "Times that the server was away.", {"": self.outages})
        family("verdicts", "counter", "Judged answers by verdict.", by("verdict", self.verdicts))
        family("losses", "counter", "Judged answers by loss.", by("loss", self.losses))
        family("failures", "counter", "Failed generations by reason.", by("reason", self.causes))
        family("prompts", "counter", "Prompts against the chat template.", by("cause", self.prompts))
        family("turns", "counter", "Turns against the turn before.", by("cause", self.turns))
        family("server_up", "gauge", "Whether a server gets work.", self._each(lambda s: s.state == "up"))
        family("server_in_flight", "gauge", "Requests under way there.", self._each(lambda s: s.in_flight))
        family("server_limit", "gauge", "Requests that may be.", self._each(lambda s: s.limit))
        family("server_answers", "counter", "Whole answers of a server.", self._each(lambda s: s.answers))
        family("server_tokens", "counter", "Response tokens of a server.", self._each(lambda s: s.tokens))
        family("server_outages", "counter", "Times that it was away.", self._each(lambda s: s.outages))
        own = {
            f'{{server="{_escaped(one.name)}",gauge="{name}"}}': value
            for one in self.servers
            for name, value in one.gauges.items()
        }
        family("server", "gauge", "The servers' own gauges.", own)
        return "\n".join([*lines, "# EOF", ""])

    def _each(self, value: Callable[[ServerStatus], float]) -> dict[str, float]:
        return {f'{{server="{_escaped(one.name)}"}}': float(value(one)) for one in self.servers}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
