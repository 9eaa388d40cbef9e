"""What a bench came to: the figures, the ratios, whether the work was the same; and the answer in words.

Place in the flow: the bench's end. Imports `contracts.records`, and stats, load and equal of this package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.records import ServerFacts
from harness.benching.equal import Difference, Equality
from harness.benching.load import Answer, Batch
from harness.benching.stats import Ratio, median, percentiles, quotients, ratio_of

UNEQUAL = "over unequal work"
"""Stands in every sentence about a ratio whose two sides did not do the same."""


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm at one load. Medians over the repeats; percentiles over all requests of all repeats.

    Times are in seconds, processor times in microseconds a token and milliseconds a request; `first`,
    `between` (the mean for a token after the first, by request) and `gaps` (between arrivals) of streams
    only; `front` is the server's HTTP process, None where it can't be seen. `ratios` are those to the base,
    by quantity: throughput, latency, client_cpu, front_cpu (both a token), and of streams first and between.
    `tokens` are those of each repeat's requests.
    """

    arm: str
    requests: int
    failed: int
    faults: Mapping[str, int]
    tokens: tuple[int, ...]
    tokens_per_s: float | None
    requests_per_s: float | None
    latency: Mapping[str, float] | None
    first: Mapping[str, float] | None
    between: Mapping[str, float] | None
    gaps: Mapping[str, float] | None
    client_cpu_us_per_token: float | None
    client_cpu_ms_per_request: float | None
    front_cpu_us_per_token: float | None
    front_cpu_ms_per_request: float | None
    ratios: Mapping[str, Ratio]
    words: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One load: so many requests at once, streamed or not, through every arm."""

    concurrency: int
    stream: bool
    requests: int
    arms: tuple[ArmResult, ...]
    equal: bool
    same_outputs: bool | None
    differences: tuple[Difference, ...]

    @property
    def name(self) -> str:
        """Return the load in words."""
        return f"{self.concurrency} at once, {'streamed' if self.stream else 'whole'}"


@dataclass(frozen=True, slots=True)
class ModesReport:
    """What the modes cost on one server.

    `work` is scripted or sampled; `base` the arm that ratios are taken to. `overall` holds each arm's ratios
    over all loads together. `answer` is the result in sentences, the first one the question's answer.
    """

    kind: str
    server: ServerFacts
    work: str
    base: str
    settings: Mapping[str, Any]
    cells: tuple[Cell, ...]
    overall: Mapping[str, Mapping[str, Ratio]]
    equal: bool
    failed: int
    notes: tuple[str, ...]
    answer: tuple[str, ...]


def cell_of(
    concurrency: int,
    stream: bool,
    batches: Mapping[str, Sequence[Batch]],
    base: str,
    equality: Equality,
) -> Cell:
    """Return a load's result; `batches` are each arm's measurements by repeat."""
    name = f"{concurrency} at once, {'streamed' if stream else 'whole'}"
    arms = tuple(_arm(arm, batches[arm], batches[base], base, name, equality) for arm in batches)
    requests = len(batches[base][0].answers)
    return Cell(
        concurrency, stream, requests, arms, equality.equal, equality.same_outputs, equality.differences
    )


def single_ratios(measured: Sequence[Batch], base: Sequence[Batch]) -> dict[str, tuple[float, ...]]:
    """Return each quantity's ratios, repeat by repeat; those that can't be had are left out."""
    found = {}
    for name, of in _QUANTITIES.items():
        single = quotients([of(one) for one in measured], [of(one) for one in base])
        if single:
            found[name] = single
    return found


def _arm(
    arm: str, measured: Sequence[Batch], base: Sequence[Batch], base_name: str, load: str, equality: Equality
) -> ArmResult:
    good = [answer for batch in measured for answer in batch.good]
    every = [answer for batch in measured for answer in batch.answers]
    ratios: dict[str, Ratio] = {}
    if arm != base_name:
        for name, single in single_ratios(measured, base).items():
            ratio = ratio_of(single)
            if ratio is not None:
                ratios[name] = ratio
    unequal = any(one.arm == arm for one in equality.differences) or len(good) < len(every)
    words = "" if arm == base_name else cost_words(arm, ratios.get("throughput"), load, unequal=unequal)
    return ArmResult(
        arm=arm,
        requests=len(every),
        failed=len(every) - len(good),
        faults=dict(Counter(str(one.fault) for one in every if one.fault is not None).most_common()),
        tokens=tuple(batch.tokens for batch in measured),
        tokens_per_s=median([_rate(batch) for batch in measured]),
        requests_per_s=median([len(batch.good) / batch.seconds for batch in measured]),
        latency=percentiles([one.seconds for one in good]),
        first=percentiles([one.first for one in good if one.first is not None]),
        between=percentiles([one.between for one in good if one.between is not None]),
        gaps=percentiles([gap for one in good for gap in one.gaps]),
        client_cpu_us_per_token=median([_per_token(batch, batch.client_cpu) for batch in measured]),
        client_cpu_ms_per_request=median([_per_request(batch, batch.client_cpu) for batch in measured]),
        front_cpu_us_per_token=median([_per_token(batch, batch.front_cpu) for batch in measured]),
        front_cpu_ms_per_request=median([_per_request(batch, batch.front_cpu) for batch in measured]),
        ratios=ratios,
        words=words,
    )


def _rate(batch: Batch) -> float | None:
    return batch.tokens / batch.seconds if batch.seconds > 0 else None


def _per_token(batch: Batch, seconds: float | None) -> float | None:
    return None if seconds is None or not batch.tokens else 1e6 * seconds / batch.tokens


def _per_request(batch: Batch, seconds: float | None) -> float | None:
    return None if seconds is None or not batch.good else 1e3 * seconds / len(batch.good)


def _of_answers(batch: Batch, name: str) -> float | None:
    values: list[float | None] = [getattr(one, name) for one in batch.good]
    return median(values)


_QUANTITIES: Mapping[str, Any] = {
    "throughput": _rate,
    "latency": lambda batch: _of_answers(batch, "seconds"),
    "first": lambda batch: _of_answers(batch, "first"),
    "between": lambda batch: _of_answers(batch, "between"),
    "client_cpu": lambda batch: _per_token(batch, batch.client_cpu),
    "front_cpu": lambda batch: _per_token(batch, batch.front_cpu),
}
"""What ratios are taken of: one number of each measurement."""


def cost_words(arm: str, ratio: Ratio | None, load: str, *, unequal: bool) -> str:
    """Return in words what an arm costs in throughput, as the numbers allow it to be said."""
    where = f" ({load}{', ' + UNEQUAL if unequal else ''})"
    if ratio is None:
        return f"{arm} mode: no ratio, a measurement is missing{where}"
    cost = 100 * (1 - ratio.value)
    if ratio.low is None or ratio.high is None or ratio.half is None:
        return f"{arm} mode costs {cost:.1f} % of throughput, measured once: no spread{where}"
    spread = f"{cost:.1f} %{ratio.spread} of throughput"
    if ratio.holds_one:
        most = 100 * (1 - ratio.low)
        return f"{arm} mode costs {spread}: no measurable cost, and none above {most:.1f} %{where}"
    if cost < 0:
        return f"{arm} mode gains {-cost:.1f} %{ratio.spread} of throughput{where}"
    return f"{arm} mode costs {spread}{where}"


def front_words(arm: str, ratio: Ratio) -> str:
    """Return in words what an arm costs the server's HTTP process."""
    change = 100 * (ratio.value - 1)
    told = f"{abs(change):.1f} %{ratio.spread} {'more' if change >= 0 else 'less'} processor time a token"
    none = ": no measurable difference" if ratio.half is not None and ratio.holds_one else ""
    return f"in {arm} mode the server's HTTP process, where the parsers run, takes {told}{none}"


def answers_of(
    cells: Sequence[Cell], overall: Mapping[str, Mapping[str, Ratio]], base: str, failed: int
) -> tuple[str, ...]:
    """Return the result in sentences: every arm over all loads, then what must be known about the work."""
    unequal = failed > 0 or not all(cell.equal for cell in cells)
    loads = f"over {len(cells)} load{'s' if len(cells) > 1 else ''}, against {base}"
    told = []
    for arm in ("reasoning", "tools", "raw", "generate"):
        ratios = overall.get(arm)
        if ratios is None:
            continue
        told.append(cost_words(arm, ratios.get("throughput"), loads, unequal=unequal))
        if "front_cpu" in ratios:
            told.append(front_words(arm, ratios["front_cpu"]))
    for cell in cells:
        told += [
            f"not the same work at {cell.name}: {one.arm} had {one.what} in {one.requests} of {one.of}"
            for one in cell.differences
        ]
    if failed:
        told.append(f"{failed} requests failed; their modes' figures are those of the others")
    return tuple(told)


def failures(cells: Sequence[Cell]) -> int:
    """Return how many requests failed at all loads."""
    return sum(arm.failed for cell in cells for arm in cell.arms)


def first_fault(answers: Sequence[Answer]) -> str | None:
    """Return the fault where no request was answered, None where one was."""
    faults = [one.fault for one in answers if one.fault is not None]
    return faults[0] if faults and len(faults) == len(answers) else None
