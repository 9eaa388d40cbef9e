"""The flow of a replay: rows chosen, the server looked at, a reference made, rows asked about and judged.

Place in the flow: under the command, over every module of this package. Imports `contracts`, `harness.server`
and the client; what is long is awaited, at most `Plan.concurrency` requests at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from contracts.errors import ShardgateError
from contracts.records import Prompt, ServerFacts
from harness.client import Client
from harness.http import HttpSession
from harness.replay import calibrate
from harness.replay.ask import Asker, Limits, NotReplayed, Patience
from harness.replay.calibrate import Threshold, Verdict
from harness.replay.choose import Sample, choose, neighbours, read_rows
from harness.replay.diagnose import TRIED, TRIED_MORE, Cause, Ids, find_cause
from harness.replay.identity import differences
from harness.replay.reference import generate
from harness.replay.result import Reference, Result, RowResult, Server, set_verdict
from harness.replay.rows import AskedRow, ask, askable, chosen, sampling
from harness.replay.scores import RowScores, scores
from harness.server import attach_async

OnEvent = Callable[[str, dict[str, Any]], None]
Item = TypeVar("Item")
Found = TypeVar("Found")

TELL_EVERY = 1.0
PORTION = 512
"""Rows in memory at a time; scores are kept of all."""
REQUEST_LIMIT = 1 << 20
"""Seconds that the session itself allows: each request has a deadline of its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for. `sample` None: every row. No `reference`: `references` rows made on the server."""

    shards: tuple[Path, ...]
    url: str
    sample: int | None = 64
    seed: int = 0
    reference: tuple[Path, ...] = ()
    references: int = 64
    concurrency: int = 16
    patience: Patience = field(default_factory=Patience)
    vocabulary: int | None = None
    api_key: str | None = None


def replay(plan: Plan, on_event: OnEvent) -> Result:
    """Ask the model about the shards' rows.

    Raises:
        ShardgateError, ServerError: the shards can't be read, the server can't be asked, or no row could be.
    """
    return asyncio.run(_Replay(plan, on_event).run())


class _Replay:
    def __init__(self, plan: Plan, on_event: OnEvent) -> None:
        self._plan = plan
        self._on_event = on_event
        self._told = 0.0

    async def run(self) -> Result:
        plan = self._plan
        self._on_event("rows", {"message": "choosing"})
        sample = await asyncio.to_thread(choose, plan.shards, plan.sample, plan.seed)
        others = None
        if plan.reference:
            others = await asyncio.to_thread(choose, plan.reference, plan.references, plan.seed)
        self._on_event("attach", {"message": plan.url})
        facts = (await attach_async(plan.url, api_key=plan.api_key)).facts
        differing = differences(sample.provenance, facts)
        for one in differing:
            self._on_event("server", {"message": f"another one than the rows name; {one}"})
        async with (
            HttpSession(
                facts.base_url, concurrency=plan.concurrency, timeout=REQUEST_LIMIT, api_key=plan.api_key
            ) as http,
            Client(
                facts.base_url,
                facts=facts,
                concurrency=plan.concurrency,
                timeout=REQUEST_LIMIT,
                api_key=plan.api_key,
            ) as client,
        ):
            limits = await _limits(http, facts, plan.vocabulary)
            asker = Asker(http, limits, plan.patience)
            await self._prove(asker)
            reference = await self._reference(client, asker, sample, others)
            asked = await self._asked("replay", asker, sample)
            found = await self._judged(client, asker, sample, asked, reference)
        return replace(found, server=Server(facts, differing), retries=asker.retries, tokens=asker.tokens)

    async def _prove(self, asker: Asker) -> None:
        """Replay three ids first: a server that can't do this must be told once, not by every row."""
        try:
            await asker.replay([1], [1, 1])
        except NotReplayed as error:
            raise ShardgateError(
                "the server does not give the log-probabilities of a prompt",
                where=self._plan.url,
                why=error.detail or error.reason,
                remedy="replay needs SGLang's /generate with return_logprob and logprob_start_len",
            ) from error

    async def _asked(self, phase: str, asker: Asker, sample: Sample) -> list[AskedRow]:
        """Ask about all chosen rows, a portion of them in memory at a time."""
        found: list[AskedRow] = []
        for first in range(0, len(sample.places), PORTION):
            rows = await asyncio.to_thread(chosen, sample, sample.places[first : first + PORTION])
            found += await self._each(
                phase, rows, lambda row: ask(asker, row), done=first, total=len(sample.places)
            )
        return found

    async def _reference(
        self, client: Client, asker: Asker, sample: Sample, others: Sample | None
    ) -> Reference:
        if others is not None:
            kind, asked = "shards", await self._asked("reference: replaying", asker, others)
        else:
            kind, wanted = "server", self._plan.references
            # More than are wanted, since some can't be asked for.
            step = max(1, len(sample.places) // (2 * wanted))
            rows = await asyncio.to_thread(chosen, sample, sample.places[::step][: 4 * wanted])
            made = await self._each(
                "reference: generating",
                askable(rows, asker.limits, wanted),
                lambda row: generate(client, row, self._plan.patience, asker.limits),
            )
            asked = await self._each("reference: replaying", made, lambda row: ask(asker, row))
        found = [one.scores for one in asked if one.scores is not None]
        if len(found) < calibrate.MIN_REFERENCE:
            reasons = Counter(one.reason for one in asked if one.scores is None)
            raise ShardgateError(
                f"{len(found)} reference rows are too few to learn thresholds from",
                where=", ".join(map(str, self._plan.reference)) or self._plan.url,
                why=", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
                or "no row could be asked about, so none could be generated for comparison",
                remedy=f"give {calibrate.MIN_REFERENCE} at least: more --reference-rows, or --reference "
                "with shards that were captured on this server",
            )
        return Reference(kind, tuple(found))

    async def _judged(
        self, client: Client, asker: Asker, sample: Sample, asked: Sequence[AskedRow], reference: Reference
    ) -> Result:
        replayed = [one for one in asked if one.scores is not None]
        if not replayed:
            reasons = Counter(f"{one.reason} ({one.detail})" for one in asked)
            raise ShardgateError(
                "none of the rows could be replayed",
                where=", ".join(map(str, self._plan.shards)),
                why="; ".join(f"{count} {reason}" for reason, count in reasons.most_common(3)),
                remedy="replay needs prompt and response ids, sampled plainly, within the server's context",
            )
        ours = [one.scores for one in replayed if one.scores is not None]
        thresholds = calibrate.learn(reference.rows, len(ours))
        tests = calibrate.set_tests(ours, reference.rows, thresholds)
        results = [_row_result(sample, at, one, thresholds, reference) for at, one in enumerate(asked)]
        causes = await self._causes(client, asker, sample, asked, results, thresholds)
        results = [
            replace(one, verdict=causes[at].verdict, cause=causes[at].told) if at in causes else one
            for at, one in enumerate(results)
        ]
        return Result(
            shards=sample.shards,
            rows=tuple(results),
            seed=self._plan.seed,
            reference=reference,
            thresholds=thresholds,
            tests=tests,
            verdict=set_verdict(results, tests),
        )

    async def _causes(
        self,
        client: Client,
        asker: Asker,
        sample: Sample,
        asked: Sequence[AskedRow],
        results: Sequence[RowResult],
        thresholds: Mapping[str, Threshold],
    ) -> dict[int, Cause]:
        """Try what happened to the first rows that differ; see `harness.replay.diagnose`."""
        skip = ("consistent", "drifted", None)
        wrong = [at for at, one in enumerate(results) if one.verdict not in skip and asked[at].scores]
        only: Verdict | None = None
        places = [sample.places[at] for at in wrong[:TRIED]]
        first_wrong = [
            (f"row {place.row} of {sample.shards[place.shard].path.name}", values)
            for place, values in zip(
                places, await asyncio.to_thread(read_rows, sample.shards, places), strict=True
            )
        ]

        async def one(at: int) -> tuple[int, Cause | None]:
            near = neighbours(sample.shards, sample.places[at]) if only in (None, "swapped") else []
            row, *beside = await asyncio.to_thread(read_rows, sample.shards, [sample.places[at], *near])
            others = [
                (f"row {place.row} of {sample.shards[place.shard].path.name}", values)
                for place, values in zip(near, beside, strict=True)
            ]
            others += [
                (name, values) for name, values in first_wrong if values["sample_id"] != row["sample_id"]
            ]

            async def tried(prompt: Ids, response: Ids, recorded: Sequence[float] | None) -> RowScores:
                told = await asker.replay(prompt, response)
                return scores(told, sampling(row), recorded=recorded, vocabulary=asker.limits.vocabulary)

            async def render(prompt: Prompt) -> Ids:
                return await client.render(prompt)

            now = asked[at].scores
            assert now is not None
            return at, await find_cause(
                row, now, asked[at].first, others, thresholds, tried, render, asker.limits.vocabulary, only
            )

        found = await self._each("causes", wrong[:TRIED], one)
        common = Counter(cause.verdict for _, cause in found if cause is not None).most_common(1)
        if common and 2 * common[0][1] >= len(found):
            only = common[0][0]
            found += await self._each("causes", wrong[TRIED : TRIED + TRIED_MORE], one)
        return {at: cause for at, cause in found if cause is not None}

    async def _each(
        self,
        phase: str,
        items: Sequence[Item],
        work: Callable[[Item], Awaitable[Found]],
        *,
        done: int = 0,
        total: int = 0,
    ) -> list[Found]:
        """Do all, answers in the order of the items, at most `concurrency` at once; tell how far it is.

        `done` and `total` are told where the items are a portion of more.
        """
        total = total or len(items)
        left = iter(enumerate(items))
        found: dict[int, Found] = {}

        async def worker() -> None:
            for at, item in left:
                found[at] = await work(item)
                self._tell(phase, done + len(found), total)

        if items:
            self._tell(phase, done, total)
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(self._plan.concurrency, len(items))):
                        group.create_task(worker())
            except BaseExceptionGroup as errors:
                # Several requests may meet the same dead server: one is told.
                raise first_of(errors) from errors
        return [found[at] for at in range(len(items))]

    def _tell(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done in (0, total) or now - self._told >= TELL_EVERY:
            self._told = now
            self._on_event(phase, {"done": done, "total": total})


def first_of(errors: BaseExceptionGroup) -> BaseException:
    """Return the first error of a group, of groups in it too."""
    error = errors.exceptions[0]
    return first_of(error) if isinstance(error, BaseExceptionGroup) else error


async def _limits(http: HttpSession, facts: ServerFacts, vocabulary: int | None) -> Limits:
    """Return what the server takes, as far as it tells."""
    from harness.wire_errors import ClientError
    from harness.wire_json import json_object

    try:
        told = json_object(await http.get("/server_info"))
    except ClientError:
        told = {}
    longest = told.get("max_req_input_len")
    context = longest if isinstance(longest, int) else facts.flags.get("context_length")
    return Limits(facts.vocab_size or vocabulary, context if isinstance(context, int) else None)


def _row_result(
    sample: Sample, at: int, one: AskedRow, thresholds: Mapping[str, Threshold], reference: Reference
) -> RowResult:
    place = sample.places[at]
    verdict: Verdict | None = None
    chance = None
    if one.scores is not None:
        verdict = calibrate.judge(one.scores, thresholds)
        chances = [
            calibrate.conformal(value, reference.values(name))
            for name in thresholds
            if (value := one.scores.value(name)) is not None
        ]
        chance = min(1.0, min(chances) * len(chances)) if chances else None
    elif one.reason == "no-such-id":
        # No replay is needed to see that this model did not say it.
        verdict = "another-model"
    return RowResult(
        sample_id=one.sample_id,
        shard=sample.shards[place.shard].path.name,
        row=place.row,
        verdict=verdict,
        reason=one.reason,
        cause=one.detail,
        chance=chance,
        beyond=calibrate.beyond(one.scores, thresholds) if one.scores is not None else (),
        scores=one.scores,
    )
