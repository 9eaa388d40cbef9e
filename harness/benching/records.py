"""What recording costs: `shardgate capture` and SGLang's own `bench_serving` in turns, on one server.

Place in the flow: beside the comparison of modes, under the command. Imports `contracts`, recording's
rendering of the harness, and clients, results, stats and work of this package.

The same prompts, token by token: `bench_serving` is given as text what the first, discarded run of `capture`
sent as ids. Both ask for the same number of tokens at temperature 0, `ignore_eos` on, with as many requests
at once.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.records import Prompt, ServerFacts
from contracts.tokens import Codec
from harness.benching.clients import Clients, Run, prompt_ids, write_rows
from harness.benching.results import UNEQUAL
from harness.benching.stats import Ratio, median, quotients, ratio_of, turns
from harness.benching.work import prompts_of
from harness.recording.rendering import load, tokenizer_folder

OnEvent = Callable[[str, dict[str, Any]], None]

TARGET = 0.97
"""The share of `bench_serving`'s throughput that recording is to reach."""

CAPTURE = "capture"
WHOLE, STREAMED = "bench_serving", "bench_serving, streamed"


@dataclass(frozen=True, slots=True)
class RecordsPlan:
    """What is measured; `streams` says whether `bench_serving` reads whole answers, streams, or both in turn.

    `requests` None: four rounds of each concurrency. `repeats` is even. `timeout` is in seconds, for one
    request.
    """

    concurrencies: tuple[int, ...]
    streams: tuple[bool, ...]
    requests: int | None
    max_tokens: int
    repeats: int
    prompts: Path | None = None
    tokenizer: Path | None = None
    trust_remote_code: bool = False
    timeout: float = 600.0

    @property
    def arms(self) -> tuple[str, ...]:
        """Return the clients that take turns."""
        return (CAPTURE, *((STREAMED if stream else WHOLE) for stream in self.streams))

    def requests_at(self, concurrency: int) -> int:
        """Return how many requests one measurement has."""
        return self.requests or max(4 * concurrency, 8)


@dataclass(frozen=True, slots=True)
class Client:
    """One client at one concurrency: medians over the repeats.

    `ratio` is capture's throughput over this one's.
    """

    client: str
    tokens_per_s: float | None
    requests_per_s: float | None
    seconds: tuple[float, ...]
    tokens: tuple[int, ...]
    failed: int
    faults: tuple[str, ...]
    ratio: Ratio | None
    words: str


@dataclass(frozen=True, slots=True)
class RecordsCell:
    """One concurrency: every client, whether they did the same work, and how not."""

    concurrency: int
    requests: int
    clients: tuple[Client, ...]
    equal: bool
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordsReport:
    """What recording costs on one server. `overall` is capture's share of each client, over all loads."""

    kind: str
    server: ServerFacts
    target: float
    settings: Mapping[str, Any]
    cells: tuple[RecordsCell, ...]
    overall: Mapping[str, Ratio]
    equal: bool
    failed: int
    notes: tuple[str, ...]
    answer: tuple[str, ...] = field(default=())


def compare_recording(
    plan: RecordsPlan, facts: ServerFacts, *, api_key: str | None, on_event: OnEvent
) -> RecordsReport:
    """Measure and compare.

    Raises:
        ShardgateError: the prompts can't be used, SGLang or the tokenizer is not on this machine, or a client
            ended with an error.
    """
    with tempfile.TemporaryDirectory(prefix="shardgate-bench-") as folder:
        return _Recording(plan, facts, api_key, on_event, Path(folder)).run()


class _Recording:
    def __init__(
        self, plan: RecordsPlan, facts: ServerFacts, api_key: str | None, on_event: OnEvent, folder: Path
    ) -> None:
        self._plan = plan
        self._facts = facts
        self._on_event = on_event
        self._folder = folder
        self._took: list[float] = []
        tokenizer = tokenizer_folder(plan.tokenizer, facts)
        self._codec: Codec = load(tokenizer, trust_remote_code=plan.trust_remote_code)
        self._clients = Clients(
            facts,
            api_key=api_key,
            folder=folder,
            tokenizer=tokenizer,
            trust_remote_code=plan.trust_remote_code,
            max_tokens=plan.max_tokens,
            timeout=plan.timeout,
        )

    def run(self) -> RecordsReport:
        plan = self._plan
        prompts = prompts_of(plan.prompts)
        cells: list[RecordsCell] = []
        singles: dict[str, list[float]] = {arm: [] for arm in plan.arms if arm != CAPTURE}
        for place, concurrency in enumerate(plan.concurrencies):
            runs = self._measured(prompts, concurrency, place)
            cells.append(cell_of(concurrency, runs))
            for arm, found in singles.items():
                found += _single(runs, arm) or ()
        overall = {arm: ratio for arm, found in singles.items() if (ratio := ratio_of(found)) is not None}
        equal, failed = all(cell.equal for cell in cells), sum(one.failed for c in cells for one in c.clients)
        answer = [
            share_words(
                arm,
                ratio,
                f"over {len(cells)} load{'s' if len(cells) > 1 else ''}",
                unequal=not equal or failed > 0,
            )
            for arm, ratio in overall.items()
        ]
        answer += [
            f"not the same work at {cell.concurrency} at once: {one}"
            for cell in cells
            for one in cell.differences
        ]
        if failed:
            answer.append(f"{failed} requests failed")
        return RecordsReport(
            kind="capture",
            server=self._facts,
            target=TARGET,
            settings={
                "concurrency": list(plan.concurrencies),
                "stream": list(plan.streams),
                "requests": {str(one): plan.requests_at(one) for one in plan.concurrencies},
                "max_tokens": plan.max_tokens,
                "repeats": plan.repeats,
                "prompts": None if plan.prompts is None else plan.prompts.name,
            },
            cells=tuple(cells),
            overall=overall,
            equal=equal,
            failed=failed,
            notes=(
                "bench_serving sends each prompt as text and capture its token ids: one is tokenised by "
                "the server, the other by the client",
            ),
            answer=tuple(answer),
        )

    def _measured(self, prompts: Sequence[Prompt], concurrency: int, place: int) -> Mapping[str, list[Run]]:
        plan = self._plan
        count = plan.requests_at(concurrency)
        asked = self._folder / f"prompts-{concurrency}.jsonl"
        write_rows(asked, [_row(prompts[number % len(prompts)]) for number in range(count)])
        texts = self._folder / f"texts-{concurrency}.jsonl"
        runs: dict[str, list[Run]] = {arm: [] for arm in plan.arms}
        for repeat in range(-1, plan.repeats):
            # The warm-up begins with capture in any case: it says what was sent.
            for arm in turns(plan.arms, repeat) if repeat >= 0 else plan.arms:
                self._tell(concurrency, place, repeat, arm)
                began = time.monotonic()
                if arm == CAPTURE:
                    found, folder = self._clients.capture(asked, concurrency, count)
                    if repeat < 0:
                        write_rows(texts, [self._text(ids) for ids in prompt_ids(folder)])
                else:
                    found = self._clients.serving(texts, concurrency, count, stream=arm == STREAMED)
                self._took.append(time.monotonic() - began)
                if found.failed >= found.requests:
                    raise ShardgateError(
                        what=f"{arm} got no answer at all",
                        where=self._facts.base_url,
                        why="; ".join(found.faults) or "every request failed",
                        remedy="look into the server's log",
                    )
                if repeat >= 0:
                    runs[arm].append(found)
        return runs

    def _text(self, ids: Sequence[int]) -> dict[str, Any]:
        text = self._codec.decode_bytes(ids).decode("utf-8", "replace")
        return {"conversations": [{"content": text}, {"content": "."}]}

    def _tell(self, concurrency: int, place: int, repeat: int, arm: str) -> None:
        plan = self._plan
        total = len(plan.concurrencies) * (plan.repeats + 1) * len(plan.arms)
        turn = "warm-up" if repeat < 0 else f"repeat {repeat + 1} of {plan.repeats}"
        facts: dict[str, Any] = {
            "done": len(self._took),
            "total": total,
            "message": f"{concurrency} at once, {turn}, {arm}",
        }
        if self._took:
            facts["remaining"] = sum(self._took) / len(self._took) * (total - len(self._took))
        self._on_event("bench", facts)


def _single(runs: Mapping[str, Sequence[Run]], arm: str) -> tuple[float, ...] | None:
    return quotients([run.rate for run in runs[CAPTURE]], [run.rate for run in runs[arm]])


def cell_of(concurrency: int, runs: Mapping[str, Sequence[Run]]) -> RecordsCell:
    """Return a concurrency's result; `runs` are each client's by repeat, capture's among them."""
    base = runs[CAPTURE][0]
    differences = []
    for arm, every in runs.items():
        for name in ("tokens", "prompt_tokens"):
            counts = sorted({getattr(run, name) for run in every if getattr(run, name) is not None})
            if counts and counts != [getattr(base, name)]:
                differences.append(
                    f"{arm} has {counts} {name.replace('_', ' ')}, capture {getattr(base, name)}"
                )
    clients = tuple(_client(arm, runs, concurrency, unequal=bool(differences)) for arm in runs)
    return RecordsCell(concurrency, base.requests, clients, not differences, tuple(differences))


def _client(arm: str, runs: Mapping[str, Sequence[Run]], concurrency: int, *, unequal: bool) -> Client:
    mine = runs[arm]
    failed = sum(run.failed for run in mine)
    ratio = None if arm == CAPTURE else ratio_of(_single(runs, arm) or ())
    where = f"{concurrency} at once"
    return Client(
        client=arm,
        tokens_per_s=median([run.rate for run in mine]),
        requests_per_s=median(
            [(run.requests - run.failed) / run.seconds if run.seconds else None for run in mine]
        ),
        seconds=tuple(run.seconds for run in mine),
        tokens=tuple(run.tokens for run in mine),
        failed=failed,
        faults=tuple(dict.fromkeys(fault for run in mine for fault in run.faults)),
        ratio=ratio,
        words="" if ratio is None else share_words(arm, ratio, where, unequal=unequal or failed > 0),
    )


def share_words(arm: str, ratio: Ratio, load: str, *, unequal: bool) -> str:
    """Return in words what share of a client's throughput recording reaches, and whether that is enough."""
    share = f"capture reaches {100 * ratio.value:.1f} %{ratio.spread} of {arm}'s throughput"
    where = f"({load}{', ' + UNEQUAL if unequal else ''})"
    target = f"the target of {100 * TARGET:.0f} %"
    if ratio.low is None or ratio.high is None:
        return f"{share}, measured once {where}"
    if ratio.low >= TARGET:
        return f"{share}: {target} is met {where}"
    if ratio.high < TARGET:
        return f"{share}: {target} is missed {where}"
    side = "met" if ratio.value >= TARGET else "missed"
    return f"{share}: {target} is {side} on average, the spread reaches across it {where}"


def _row(prompt: Prompt) -> dict[str, Any]:
    row: dict[str, Any] = {"messages": [dict(message) for message in prompt.messages]}
    if prompt.tools:
        row["tools"] = [dict(tool) for tool in prompt.tools]
    if prompt.template_kwargs:
        row["template_kwargs"] = dict(prompt.template_kwargs)
    return row
