"""One batch of requests, timed: so many at once, through one mode, streamed or not.

Place in the flow: under the bench's comparison. Imports `contracts.records`, and HTTP, modes and wire of the
harness.

An answer's times are those at which its bytes came in. What the client does besides (writing the request,
reading events, checking the answer) is what any client would do, and is what its processor time counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from contracts.records import Mode, ServerFacts, Transport
from harness.benching.work import Task
from harness.client import CHAT, GENERATE
from harness.http import HttpSession
from harness.modes import chat_body, generate_body
from harness.wire import (
    WireResponse,
    parse_chat,
    parse_chat_stream,
    parse_generate,
    parse_generate_stream,
)
from harness.wire_errors import ClientError, HttpStatusError

_PARSERS: Mapping[tuple[Transport, bool], Callable[[bytes], WireResponse]] = {
    (Transport.CHAT, False): parse_chat,
    (Transport.CHAT, True): parse_chat_stream,
    (Transport.GENERATE, False): parse_generate,
    (Transport.GENERATE, True): parse_generate_stream,
}


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of asking: its name, the mode, and the transport."""

    name: str
    mode: Mode
    transport: Transport


ARMS: Mapping[str, Arm] = {
    "generate": Arm("generate", Mode.RAW, Transport.GENERATE),
    **{str(mode): Arm(str(mode), mode, Transport.CHAT) for mode in Mode},
}
"""The ways that are compared: `/generate`, and chat in each mode."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's end, times in seconds.

    `first` is the wait for the first bytes, `between` the mean time for each token after the first, `gaps`
    the waits between one arrival and the next; all three of a stream only. `said` stands for the output's
    ids, equal for equal ones; None where the server does not tell them. `fault` is what failed.
    """

    seconds: float
    first: float | None = None
    between: float | None = None
    gaps: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    tokens: int | None = None
    said: int | None = None
    as_scripted: bool | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """One measurement: an arm's requests in one repeat; processor times in seconds, `front` where seen."""

    arm: str
    seconds: float
    client_cpu: float
    front_cpu: float | None
    answers: tuple[Answer, ...]

    @property
    def good(self) -> tuple[Answer, ...]:
        """Return the answers that are whole."""
        return tuple(one for one in self.answers if one.fault is None)

    @property
    def tokens(self) -> int:
        """Return the tokens of the whole answers."""
        return sum(one.tokens or 0 for one in self.good)


class Load:
    """Asks one server. `session` is open, and allows as many requests at once as are ever wanted."""

    def __init__(
        self, session: HttpSession, facts: ServerFacts, front: Callable[[], float] | None = None
    ) -> None:
        self._session = session
        self._facts = facts
        self._front = front

    async def batch(self, tasks: Sequence[Task], arm: Arm, *, stream: bool, concurrency: int) -> Batch:
        """Ask for every task, `concurrency` at once: the next one begins when one is through."""
        answers: list[Answer] = [Answer(0.0, fault="not asked")] * len(tasks)
        numbers = iter(range(len(tasks)))

        async def worker(mine: Iterator[int]) -> None:
            for number in mine:
                answers[number] = await self._ask(tasks[number], arm, stream)

        front = self._front() if self._front else None
        cpu, began = time.process_time(), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(tasks))):
                group.create_task(worker(numbers))
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        spent = self._front() - front if self._front and front is not None else None
        return Batch(arm.name, seconds, cpu, spent, tuple(answers))

    def _body(self, task: Task, arm: Arm, stream: bool) -> tuple[str, dict[str, Any]]:
        if arm.transport is Transport.GENERATE:
            ids = task.prompt_ids or ()
            return GENERATE, generate_body(
                task.prompt, prompt_token_ids=ids, scripted=task.script, stream=stream
            )
        return CHAT, chat_body(
            task.prompt,
            arm.mode,
            model=self._facts.model,
            prompt_token_ids=task.prompt_ids,
            scripted=task.script,
            stream=stream,
        )

    async def _ask(self, task: Task, arm: Arm, stream: bool) -> Answer:
        came: list[float] = []
        began = time.perf_counter()
        try:
            path, body = self._body(task, arm, stream)
            payload = await self._session.post(path, body, lambda: came.append(time.perf_counter()))
            ended = time.perf_counter()
            parsed = _PARSERS[arm.transport, stream](payload)
        except ClientError as error:
            return Answer(time.perf_counter() - began, fault=_fault(error))
        if parsed.finish_reason == "abort":
            return Answer(ended - began, fault="aborted by the server")
        usage, ids = parsed.usage, parsed.response_token_ids
        tokens = usage.completion_tokens if usage else len(ids) if ids is not None else None
        if tokens is None:
            return Answer(ended - began, fault="the answer tells neither its tokens nor their number")
        first = came[0] - began if stream and came else None
        return Answer(
            seconds=ended - began,
            first=first,
            between=(came[-1] - came[0]) / (tokens - 1) if first is not None and tokens > 1 else None,
            gaps=tuple(after - before for before, after in pairwise(came)) if stream else (),
            prompt_tokens=usage.prompt_tokens if usage else None,
            tokens=tokens,
            said=None if ids is None else hash(ids),
            as_scripted=None if task.script is None or ids is None else ids == task.script.ids,
        )


def _fault(error: ClientError) -> str:
    if isinstance(error, HttpStatusError):
        return f"status {error.status}: {error.why or error.what}"[:200]
    return f"{error.what}: {error.why}"[:200] if error.why else error.what
