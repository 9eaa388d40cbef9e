"""Why a row differs, found by trying: the ids that it would have had without the fault are replayed too.

Place in the flow: after the verdicts, for some of the rows that differ. Imports `contracts`, and ask,
calibrate and scores of this package.

A cause that is tried and fits is proven as far as replay proves anything: after the prompt that the server's
own template makes, with the ids moved back, or after another row's prompt, the response is as likely as an
honest one, has the logprobs that were recorded where there are any, and is likelier than as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.records import Prompt
from harness.replay.ask import NotReplayed
from harness.replay.calibrate import IMPROBABLE, Threshold, Verdict, beyond
from harness.replay.scores import RowScores
from harness.wire_errors import ClientError

TRIED = 8
"""Rows that differ of which every cause is tried."""

TRIED_MORE = 256
"""Further rows of which the one cause is tried that most of the first have in common."""

GAIN = 5.0
"""Nats by which a response must be likelier than as it stands, where nothing was recorded to compare with."""

Ids = Sequence[int]
Ask = Callable[[Ids, Ids, Sequence[float] | None], Awaitable[RowScores]]
"""Replays a prompt's and a response's ids, under the row's own sampling, against these recorded logprobs."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What was found by trying: the verdict, and in words what made the row fit."""

    verdict: Verdict
    told: str


@dataclass(frozen=True, slots=True)
class _Try:
    verdict: Verdict
    told: str
    prompt: Ids
    response: Ids
    recorded: Sequence[float] | None


async def find_cause(
    row: Mapping[str, Any],
    now: RowScores,
    first: Ids,
    others: Sequence[tuple[str, Mapping[str, Any]]],
    thresholds: Mapping[str, Threshold],
    ask: Ask,
    render: Callable[[Prompt], Awaitable[Ids]],
    vocabulary: int | None,
    only: Verdict | None = None,
) -> Cause | None:
    """Try what may have happened to a row; None where nothing fits.

    `now` are its numbers as it stands, `first` the ids that the model would have begun with, `others` rows by
    their names. With `only` causes of that verdict are tried alone.
    """
    prompt, response = list(row["prompt_token_ids"]), list(row["response_token_ids"])
    recorded = row["output_logprobs"] or None
    tries = list(_moved(prompt, response, recorded, first))
    if only in (None, "another-prompt"):
        rendered = await _rendered(row, render)
        told = "it fits after the prompt that the server's own chat template makes"
        tries.append(_Try("another-prompt", told, rendered or (), response, recorded))
    for name, other in others:
        told = f"it fits after the prompt of {name}"
        tries.append(_Try("swapped", told, list(other["prompt_token_ids"] or ()), response, recorded))
    for one in tries:
        same = list(one.prompt) == prompt and list(one.response) == response
        if same or only not in (None, one.verdict) or not one.prompt or not one.response:
            continue
        if min(*one.prompt, *one.response) < 0:
            continue
        if vocabulary is not None and max(*one.prompt, *one.response) >= vocabulary:
            continue
        try:
            found = await ask(one.prompt, one.response, one.recorded)
        except NotReplayed:
            continue
        if beyond(found, thresholds) or found.plain > IMPROBABLE:
            continue
        if found.drift is not None or found.nll * found.tokens + GAIN < now.nll * now.tokens:
            return Cause(one.verdict, one.told)
    return None


def _moved(
    prompt: list[int], response: list[int], recorded: Sequence[float] | None, first: Ids
) -> Iterator[_Try]:
    """Yield the row with its ids moved back, in value and in place."""
    for step in (1, -1):
        told = f"id is one too {'low' if step > 0 else 'high'}"
        moved = [one + step for one in response]
        yield _Try("shifted", f"each response {told}", prompt, moved, recorded)
        yield _Try("shifted", f"each {told}", [one + step for one in prompt], moved, recorded)
    told = "there is an id too many at the response's beginning"
    # The logprobs may have moved with the ids, or stayed.
    for kept in (recorded[1:], recorded[:-1]) if recorded else (None,):
        yield _Try("shifted", told, prompt, response[1:], kept)
    told = "the response's first id belongs to the prompt, or one before it is missing"
    for kept in (recorded[1:], recorded[:-1]) if recorded else (None,):
        yield _Try("shifted", told, [*prompt, response[0]], response[1:], kept)
    for one in first[:5]:
        told = f"the response's first id is missing: {one} or the like"
        yield _Try("shifted", told, [*prompt, one], response, recorded)


async def _rendered(row: Mapping[str, Any], render: Callable[[Prompt], Awaitable[Ids]]) -> Ids | None:
    """Return the ids that the server makes of the row's messages; None where it can't."""
    try:
        messages = []
        for message in row["messages"][:-1]:
            kept = {key: value for key, value in message.items() if value is not None}
            if "tool_calls" in kept:
                kept["tool_calls"] = json.loads(kept["tool_calls"])
            messages.append(kept)
        tools = json.loads(row["tools"]) if row["tools"] else None
        prompt = Prompt(
            name=row["sample_id"],
            messages=tuple(messages),
            tools=tuple(tools) if tools else None,
            template_kwargs=json.loads(row["template_kwargs"] or "{}"),
        )
        return await render(prompt)
    except (ClientError, ValueError, TypeError, KeyError, AttributeError):
        return None
