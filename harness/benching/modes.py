"""What the modes cost on one server: raw, reasoning and tools in turns, at each load.

Place in the flow: over the bench's load and work, under the command. Imports `contracts`, and capture,
client, HTTP, server codec and recording's rendering of the harness.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.records import Prompt, ServerFacts
from contracts.tokens import Codec
from harness.benching import equal, results
from harness.benching.front import front_clock
from harness.benching.load import ARMS, Batch, Load
from harness.benching.stats import Ratio, ratio_of, turns
from harness.benching.work import Task, prompts_of, rendered, scripts_of, tasks_of
from harness.capture import served_format
from harness.client import Capabilities, Client, is_loopback
from harness.http import HttpSession
from harness.modes import Scripted
from harness.recording.rendering import load, tokenizer_folder

OnEvent = Callable[[str, dict[str, Any]], None]

AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class ModesPlan:
    """What is measured. `arms` are names of `ARMS`; `requests` None: four rounds of each concurrency.

    `repeats` is even, so that each mode stands as often early as late. `work` is auto, scripted or sampled.
    `timeout` is in seconds, for one request.
    """

    concurrencies: tuple[int, ...]
    streams: tuple[bool, ...]
    arms: tuple[str, ...]
    requests: int | None
    max_tokens: int
    repeats: int
    prompts: Path | None = None
    work: str = "auto"
    tokenizer: Path | None = None
    trust_remote_code: bool = False
    timeout: float = 600.0

    @property
    def base(self) -> str:
        """Return the arm that ratios are taken to: chat without a parser, else the first one."""
        return "raw" if "raw" in self.arms else self.arms[0]

    def requests_at(self, concurrency: int) -> int:
        """Return how many requests one measurement has."""
        return self.requests or max(4 * concurrency, 8)


def compare_modes(
    plan: ModesPlan, facts: ServerFacts, *, api_key: str | None, on_event: OnEvent
) -> results.ModesReport:
    """Measure and compare.

    Raises:
        ShardgateError, ServerError: the prompts can't be used, outputs can't be scripted and were to be, the
            server can't be asked, or a mode gets no answer at all.
    """
    prompts = prompts_of(plan.prompts)
    return asyncio.run(_Bench(plan, facts, api_key, on_event).run(prompts))


class _Bench:
    def __init__(self, plan: ModesPlan, facts: ServerFacts, api_key: str | None, on_event: OnEvent) -> None:
        self._plan = plan
        self._facts = facts
        self._api_key = api_key
        self._on_event = on_event
        self._notes: list[str] = []
        self._took: dict[tuple[int, bool], list[float]] = defaultdict(list)

    async def run(self, prompts: list[Prompt]) -> results.ModesReport:
        plan = self._plan
        tasks, work = await self._tasks(prompts)
        self._tell_parsers()
        url, key = self._facts.base_url, self._api_key
        loads = [(concurrency, stream) for stream in plan.streams for concurrency in plan.concurrencies]
        cells: list[results.Cell] = []
        singles: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        front = front_clock(url)
        async with HttpSession(url, concurrency=AT_ONCE, timeout=plan.timeout, api_key=key) as session:
            load = Load(session, self._facts, front)
            for place, (concurrency, stream) in enumerate(loads):
                batches = await self._cell(load, tasks, loads, place)
                equality = equal.compared(batches, plan.base)
                cells.append(results.cell_of(concurrency, stream, batches, plan.base, equality))
                for arm in plan.arms:
                    if arm != plan.base:
                        ratios = results.single_ratios(batches[arm], batches[plan.base])
                        for name, single in ratios.items():
                            singles[arm][name] += single
        return self._report(cells, singles, work, front is not None)

    async def _tasks(self, prompts: list[Prompt]) -> tuple[list[Task], str]:
        plan = self._plan
        count = max(plan.requests_at(concurrency) for concurrency in plan.concurrencies)
        prompts = prompts[:count]
        self._on_event("prompts", {"message": f"{len(prompts)} rendered by the server"})
        async with Client(
            self._facts.base_url, facts=self._facts, timeout=plan.timeout, api_key=self._api_key
        ) as client:
            can = await client.capabilities()
            given: Sequence[tuple[int, ...]] = await rendered(client, prompts)
        ids: Sequence[tuple[int, ...] | None] = given
        if not can.chat_input_ids and any(arm != "generate" for arm in plan.arms):
            self._notes.append(
                "this server takes no prompt ids over chat: declaring tools lengthens the prompt"
            )
            if "generate" not in plan.arms:
                ids = [None] * len(prompts)
        scripts = self._scripts(prompts, can)
        work = "sampled" if scripts is None else "scripted"
        made = tasks_of(
            prompts, ids, scripts or [None] * len(prompts), max_tokens=plan.max_tokens, count=count
        )
        return made, work

    def _scripts(self, prompts: list[Prompt], can: Capabilities) -> list[Scripted] | None:
        plan, url = self._plan, self._facts.base_url
        if plan.work == "sampled":
            return None
        if not (can.custom_logit_processor and is_loopback(url)):
            if plan.work == "scripted":
                raise ShardgateError(
                    what="this server takes no scripts",
                    where=url,
                    why="a script is a custom logit processor, pickled code: it is for a server on this "
                    "machine's loopback address that was booted with --enable-custom-logit-processor",
                    remedy="boot a deployment that has `scripted = true`, or leave --work out",
                )
            return None
        try:
            codec = self._codec()
            fmt = served_format(self._facts, codec)
            if fmt is None:
                raise ShardgateError(
                    what="the model's format is not known to shardgate",
                    where=url,
                    why="neither its parsers nor the markers of its vocabulary belong to a mapped format",
                    remedy="add the family (docs/adding-a-format.md), or give --work sampled",
                )
            self._on_event("scripts", {"message": f"outputs of {fmt.name}, {plan.max_tokens} tokens"})
            return scripts_of(prompts, facts=self._facts, codec=codec, fmt=fmt, max_tokens=plan.max_tokens)
        except (ShardgateError, ImportError) as error:
            if plan.work == "scripted":
                raise
            what = error.what if isinstance(error, ShardgateError) else str(error)
            self._notes.append(f"outputs are sampled, not scripted: {what}")
            return None

    def _codec(self) -> Codec:
        plan = self._plan
        try:
            folder = tokenizer_folder(plan.tokenizer, self._facts)
        except ShardgateError:
            from harness.server_codec import ServerCodec

            return ServerCodec(self._facts.base_url, api_key=self._api_key)
        return load(folder, trust_remote_code=plan.trust_remote_code)

    def _tell_parsers(self) -> None:
        arms, facts = self._plan.arms, self._facts
        if facts.reasoning_parser is None and {"reasoning", "tools"} & {*arms}:
            self._notes.append("the server runs without a reasoning parser: no mode runs one here")
        if facts.tool_parser is None and "tools" in arms:
            self._notes.append("the server runs without a tool-call parser: tools are declared, not parsed")

    async def _cell(
        self, load: Load, tasks: Sequence[Task], loads: Sequence[tuple[int, bool]], place: int
    ) -> Mapping[str, list[Batch]]:
        plan = self._plan
        concurrency, stream = loads[place]
        mine = tasks[: plan.requests_at(concurrency)]
        arms = [ARMS[name] for name in plan.arms]
        # Discarded: the first requests of a load fill caches and start threads that the later ones find.
        warm = mine[: max(concurrency, len(mine) // 4)]
        batches: dict[str, list[Batch]] = {arm.name: [] for arm in arms}
        for repeat in range(-1, plan.repeats):
            for arm in turns(arms, max(repeat, 0)):
                self._tell(loads, place, repeat, arm.name)
                began = time.monotonic()
                some = warm if repeat < 0 else mine
                batch = await load.batch(some, arm, stream=stream, concurrency=concurrency)
                # The warm-up's are fewer: as many as it asked stand for a whole batch's time.
                took = (time.monotonic() - began) * len(mine) / len(some)
                self._took[loads[place]].append(took)
                if (fault := results.first_fault(batch.answers)) is not None:
                    raise ShardgateError(
                        what=f"no request was answered: {arm.name}, {'streamed' if stream else 'whole'}",
                        where=self._facts.base_url,
                        why=fault,
                        remedy="look into the server's log; or leave this one out with --modes or --stream",
                    )
                if repeat >= 0:
                    batches[arm.name].append(batch)
        return batches

    def _tell(self, loads: Sequence[tuple[int, bool]], place: int, repeat: int, arm: str) -> None:
        plan = self._plan
        each = (plan.repeats + 1) * len(plan.arms)
        concurrency, stream = loads[place]
        now = sum(len(times) for times in self._took.values())
        turn = "warm-up" if repeat < 0 else f"repeat {repeat + 1} of {plan.repeats}"
        facts: dict[str, Any] = {
            "done": now,
            "total": each * len(loads),
            "message": f"{concurrency} at once, {'streamed' if stream else 'whole'}, {turn}, {arm}",
        }
        every = [took for times in self._took.values() for took in times]
        if every:
            own = self._took[loads[place]] or every
            mine = each * (place + 1) - now
            facts["remaining"] = mine * sum(own) / len(own) + (
                each * (len(loads) - place - 1) * sum(every) / len(every)
            )
        self._on_event("bench", facts)

    def _report(
        self,
        cells: Sequence[results.Cell],
        singles: Mapping[str, Mapping[str, Sequence[float]]],
        work: str,
        front: bool,
    ) -> results.ModesReport:
        plan = self._plan
        overall: dict[str, dict[str, Ratio]] = {}
        for arm, quantities in singles.items():
            found = {name: ratio_of(single) for name, single in quantities.items()}
            overall[arm] = {name: ratio for name, ratio in found.items() if ratio is not None}
        for arm in plan.arms:
            if arm != plan.base:
                overall.setdefault(arm, {})
        failed = results.failures(cells)
        if not front:
            self._notes.append("the server's HTTP process is not on this machine, or can't be seen from here")
        if work == "sampled" and any(cell.same_outputs is False for cell in cells):
            self._notes.append("the modes' outputs are equally long, but not all of the same tokens")
        return results.ModesReport(
            kind="modes",
            server=self._facts,
            work=work,
            base=plan.base,
            settings={
                "concurrency": list(plan.concurrencies),
                "stream": list(plan.streams),
                "modes": list(plan.arms),
                "requests": {str(one): plan.requests_at(one) for one in plan.concurrencies},
                "max_tokens": plan.max_tokens,
                "repeats": plan.repeats,
                "prompts": None if plan.prompts is None else plan.prompts.name,
            },
            cells=tuple(cells),
            overall=overall,
            equal=all(cell.equal for cell in cells),
            failed=failed,
            notes=tuple(self._notes),
            answer=results.answers_of(cells, overall, plan.base, failed),
        )
