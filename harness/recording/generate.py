"""One item of work: asked for turn by turn, retried, judged, and made into rows; or into failures.

Place in the flow: under the runner. Imports `contracts`, `harness.capture`, `harness.client`, and fleet,
parity, prompts, rendering, rows and store of this package.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from contracts.formats import Format
from contracts.records import Capture, Json, Judgement, Mode, Prompt, ServerFacts, Transport
from contracts.shard import Row, ShardError, row_from_capture
from contracts.tokens import Codec
from harness.capture import constraint_of, derive_fields, judge_capture
from harness.client import CaptureRequest
from harness.recording.fleet import Place
from harness.recording.parity import NOT_COMPARED, SAME, Drift, Kind, Parity, Turn
from harness.recording.prompts import Item, at_turn
from harness.recording.rendering import CantRender, Renderer
from harness.recording.rows import Failure, Group, sample_id
from harness.recording.store import DIVERGED
from harness.wire_errors import (
    ClientError,
    HttpStatusError,
    RequestRefused,
    ServerGone,
    ServerTimeout,
)

BUSY = frozenset({429, 503})
GATEWAY = frozenset({502, 504})
PASSING = BUSY | GATEWAY | {408, 409, 425, 500}
"""Statuses that another try may not get; any other one is the server's last word on this request."""

LONGEST_PAUSE = 60.0
UNBOUNDED = 32_768
"""Tokens that an answer without `max_tokens` is given time for, where the context's length is not known."""

_WEIGHTS = re.compile(rb'"weight_version": ?"([^"\\]*)"')
_SPANS = re.compile(rb'"weight_versions": ?(\[[^\]]*\])')


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one request may take: `base` seconds and the asked tokens at `slowest` tokens a second.

    `attempts` bounds the tries; the pause before the n-th doubles from `pause` seconds, up to a minute.
    """

    base: float = 120.0
    slowest: float = 5.0
    attempts: int = 5
    pause: float = 0.5

    def deadline(self, prompt: Prompt, facts: ServerFacts) -> float:
        """Return the seconds that a request of this prompt may take."""
        asked = prompt.sampling.get("max_completion_tokens") or prompt.sampling.get("max_tokens")
        known = facts.flags.get("context_length")
        tokens = asked or (known if isinstance(known, int) else None) or UNBOUNDED
        return self.base + float(tokens) / self.slowest


class Failed(Exception):
    """A generation that can't be had: the reason in one word, in detail, and after how many tries."""

    def __init__(self, reason: str, detail: str, attempts: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail
        self.attempts = attempts


Seen = Callable[[int, Capture, Judgement], None]
Compared = Callable[[int, Kind, str], None]


@dataclass(frozen=True, slots=True)
class Made:
    """What one item came to, and where its prompts are not what they should be."""

    group: Group
    drifts: tuple[Drift, ...] = ()


class Maker:
    """Makes items into groups.

    `renderer` makes the prompts, None: the server does. `expected` says what the server should have made.
    `seen` is called with each judged answer, `compared` with what each comparison of a prompt showed,
    `retried` with each retry.
    """

    def __init__(
        self,
        *,
        codec: Codec,
        fmt: Format,
        renderer: Renderer | None,
        parity: Parity,
        expected: Renderer | None,
        source: str,
        patience: Patience,
        logprobs: bool,
    ) -> None:
        self._codec = codec
        self._format = fmt
        self._renderer = renderer
        self._parity = parity
        self._expected = expected
        self._source = source
        self._patience = patience
        self._logprobs = logprobs
        self.seen: Seen = lambda number, capture, judgement: None
        self.compared: Compared = lambda number, kind, cause: None
        self.retried: Callable[[str], None] = lambda reason: None
        self._jitter = random.Random()

    async def make(self, item: Item, number: int, place: Place) -> Made:
        """Generate an item's turns in order; `number` is its place in the order of asking.

        The turns stay at one server, which has the history in its cache, until that goes away.

        A turn that fails takes the conversation with it: its rows would have holes. A turn that made the
        source's next messages meaningless (it called no tool where a tool's result follows, say) ends it.
        """
        task = item.task
        source = [*task.prompt.messages]
        history: list[Any] = source[: task.cuts[0]]
        rows: list[Row] = []
        drifts: list[Drift] = []
        before: Turn | None = None
        for at, cut in enumerate(task.cuts):
            prompt = replace(
                at_turn(item.prompt, tuple(history)),
                thinking_mode=self._format.asked(task.prompt.template_kwargs),
            )
            try:
                capture, judgement = await self._answer(prompt, item, number, place)
                row = self._row(item, capture, judgement, rows)
            except Failed as failed:
                return Made(Group((), self._failures(item, task.cuts, failed)))
            rows.append(row)
            drifts += self._compare(item, number, capture, row, before)
            before = Turn(
                row["prompt_token_ids"],
                row["response_token_ids"],
                judgement.segments,
                row["reasoning_content"],
            )
            if at + 1 < len(task.cuts):
                following = source[cut + 1 : task.cuts[at + 1]]
                answer = _message(capture)
                fitting = _fitted(answer, following)
                if fitting is None:
                    why = Failed(DIVERGED, f"what follows turn {at} does not answer it", 0)
                    group = Group(tuple(rows), self._failures(item, task.cuts[at + 1 :], why))
                    return Made(group, tuple(drifts))
                history += [answer, *fitting]
        return Made(Group(tuple(rows)), tuple(drifts))

    def _compare(
        self, item: Item, number: int, capture: Capture, row: Row, before: Turn | None
    ) -> Iterator[Drift]:
        """Yield where a prompt is not the template's, the replaced row's, or the turn before gone on with."""
        used, prompt, again = row["prompt_token_ids"], capture.prompt, item.task.again
        made: Sequence[int] | None = again.prompt_ids if again else None
        if self._renderer is None:
            try:
                made = self._expected.ids(prompt) if self._expected else None
            except CantRender:
                made = None
            if made is None:
                self.compared(number, "prompts", NOT_COMPARED)
        if made is not None:
            drift = self._parity.prompt(row["sample_id"], prompt, made, used)
            self.compared(number, "prompts", drift.cause if drift else SAME)
            yield from [drift] if drift else []
        if before is not None:
            drift = self._parity.turn(row["sample_id"], before, used)
            self.compared(number, "turns", drift.cause if drift else SAME)
            yield from [drift] if drift else []

    async def _answer(
        self, prompt: Prompt, item: Item, number: int, place: Place
    ) -> tuple[Capture, Judgement]:
        capture = await self._captured(self._request(prompt, item), prompt, place)
        extra: tuple[Any, ...] = ()
        try:
            if capture.transport is Transport.GENERATE:
                capture, extra = derive_fields(capture, codec=self._codec, fmt=self._format)
            judgement = judge_capture(capture, codec=self._codec, fmt=self._format, extra=extra)
        except Exception as error:
            # A fault of a parser or of ours on one answer must not end a run of a night; many trip the wire.
            raise Failed("not-judged", f"{type(error).__name__}: {error}", 1) from error
        self.seen(number, capture, judgement)
        return capture, judgement

    def _request(self, prompt: Prompt, item: Item) -> CaptureRequest:
        if self._renderer is None:
            mode = Mode.TOOLS if prompt.tools else Mode.REASONING
            return CaptureRequest(
                prompt, mode, Transport.CHAT, sample_index=item.sample_index, logprobs=self._logprobs
            )
        try:
            ids = self._renderer.ids(prompt)
        except CantRender as error:
            raise Failed("template-refused", error.why, 0) from error
        return CaptureRequest(
            prompt,
            Mode.RAW,
            Transport.GENERATE,
            prompt_token_ids=ids,
            sample_index=item.sample_index,
            logprobs=self._logprobs,
        )

    async def _captured(self, request: CaptureRequest, prompt: Prompt, place: Place) -> Capture:
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._asked(request, prompt, attempt, place)
            except Failed as failed:
                if failed.attempts or attempt >= self._patience.attempts:
                    raise Failed(failed.reason, failed.detail, attempt) from failed
                self.retried(failed.reason)
            except _NotCounted as away:
                attempt -= 1
                self.retried(str(away))
                await place.move()
                continue
            pause = min(LONGEST_PAUSE, self._patience.pause * 2 ** (attempt - 1))
            await asyncio.sleep(pause * self._jitter.uniform(0.5, 1.5))
            # What one server refused, or did not answer in time, another one may.
            await place.elsewhere()

    async def _asked(self, request: CaptureRequest, prompt: Prompt, attempt: int, place: Place) -> Capture:
        """Ask once. `Failed` with its `attempts` set is final, without it another try may do."""
        fleet, member, sent = place.fleet, place.member, time.monotonic()
        if not member.up:
            raise _NotCounted("server-away")
        generation, client = member.serving.generation, member.serving.client
        allowed = self._patience.deadline(prompt, client.facts)
        try:
            async with asyncio.timeout(allowed):
                capture = await client.capture_one(request)
        except (TimeoutError, ServerTimeout) as error:
            if await fleet.gone(member, generation):
                raise _NotCounted("server-away") from error
            member.pacer.refused(sent)
            raise Failed("timeout", f"no whole answer within {allowed:.0f} s", 0) from error
        except ServerGone as error:
            if await fleet.gone(member, generation):
                raise _NotCounted("server-away") from error
            raise Failed("connection-cut", error.why or error.what, 0) from error
        except HttpStatusError as error:
            # A gateway that says so itself stands; the server behind it may not.
            if error.status in GATEWAY and await fleet.gone(member, generation):
                raise _NotCounted("server-away") from error
            if error.status in BUSY:
                fleet.refused(member, sent)
            final = 0 if error.status in PASSING else attempt
            raise Failed(f"status-{error.status}", error.why, final) from error
        except RequestRefused as error:
            raise Failed("not-askable", f"{error.what} {error.why}".strip(), attempt) from error
        except ClientError as error:
            raise Failed("answer-malformed", f"{error.what} {error.why}".strip(), 0) from error
        if capture.finish_reason == "abort":
            raise Failed("aborted", "the server aborted the request", 0)
        member.answered(len(capture.response_token_ids or ()))
        return self._with_weights(capture)

    def _with_weights(self, capture: Capture) -> Capture:
        """Have the row name the weights that made it: an update may come at any time in a run.

        A response that two versions made, one after the other, names both, as `1+2`.
        """
        told = weights_told(capture.response_body)
        if told is None or told == capture.server.weight_version:
            return capture
        return replace(capture, server=replace(capture.server, weight_version=told))

    def _row(self, item: Item, capture: Capture, judgement: Judgement, earlier: Sequence[Row]) -> Row:
        task, again = item.task, item.task.again
        parent = again.parent if again else None
        try:
            return row_from_capture(
                capture,
                judgement,
                sample_id=sample_id(item.name, capture.prompt.turn_index),
                source_dataset=again.dataset if again else self._source,
                source_row_index=task.row,
                parent_sample_id=earlier[-1]["sample_id"] if earlier else parent,
                constraint=constraint_of(capture),
            )
        except ShardError as error:
            ids = capture.response_token_ids is None or capture.prompt_token_ids is None
            raise Failed("ids-missing" if ids else "no-row", error.why or error.what, 1) from error

    def _failures(self, item: Item, cuts: Sequence[int], why: Failed) -> tuple[Failure, ...]:
        task = item.task
        return tuple(
            Failure(
                item=item.name,
                turn_index=turns_before(task.prompt, cut),
                reason=why.reason,
                detail=why.detail[:500],
                prompt=task.prompt.name,
                source_row_index=task.row,
                sample_index=item.sample_index,
                attempts=why.attempts,
                at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            for cut in cuts
        )


def weights_told(body: bytes) -> str | None:
    """Return the version of the weights that a response names, several joined by `+`; None: it names none.

    Inside a text of the response each quote has a backslash before it, so that none is found there.
    Source: SGLang 0.5.23, `srt/utils/weight_versions.py`.
    """
    if spans := _SPANS.findall(body):
        told = dict.fromkeys(str(span["version"]) for span in json.loads(spans[-1]))
        return "+".join(told) or None
    found = _WEIGHTS.findall(body)
    return found[-1].decode("utf-8", "replace") if found else None


class _NotCounted(Exception):
    """A try that a dead server took with it: no fault of the request."""


def turns_before(prompt: Prompt, cut: int) -> int:
    """Return how many assistant turns stand before a cut."""
    return sum(message["role"] == "assistant" for message in prompt.messages[:cut])


def _message(capture: Capture) -> dict[str, Json]:
    """Return an answer as the assistant's message of the history that the next turn is asked with."""
    fields = capture.fields
    message: dict[str, Json] = {"role": "assistant", "content": fields.content or ""}
    if fields.reasoning_content:
        message["reasoning_content"] = fields.reasoning_content
    if fields.tool_calls:
        calls = json.loads(fields.tool_calls)
        message["tool_calls"] = [
            {key: value for key, value in call.items() if key != "index"} for call in calls
        ]
    return message


def _fitted(answer: dict[str, Json], following: Sequence[Any]) -> list[Any] | None:
    """Return the source's next messages, tool results under the ids of the calls that were really made.

    None where results and calls are not as many: the results would answer nothing.
    """
    calls = answer.get("tool_calls") or []
    results = 0
    while results < len(following) and following[results]["role"] == "tool":
        results += 1
    if results != len(calls):
        return None
    told = [
        {**message, "tool_call_id": call.get("id")}
        for message, call in zip(following[:results], calls, strict=True)
    ]
    return [*told, *following[results:]]
