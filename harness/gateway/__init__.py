"""A gateway held to the server behind it: the same requests direct and through, every difference named.

Place in the flow: beside the client, for whoever does not talk to SGLang itself. Imports the client's
modules and `harness.outcomes`; no torch, no sglang.

How a lost request field is seen. Each has a pair of requests, without it and with it, whose answers differ
where the field is heeded (`return_token_ids`: ids are there). Through a gateway that hands the field on, the
answer is the one that the server itself gives. Where it is another, the field is sent once more with a value
that SGLang refuses: refused through the gateway in the same words, the field arrived, and it is the answer
that loses something; accepted, it was dropped. A field without an effect here is judged by that alone.

Then the modes, streamed and not: what is in the server's own answers (asked twice, so that what changes by
itself does not count) must be in those through the gateway. Fields that a request loses are left out of both,
so that one loss is told once. Values that follow the sample count only where both sides sampled alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from contracts.errors import ShardgateError
from contracts.records import Prompt
from harness.client import is_loopback
from harness.gateway.answers import Answers
from harness.gateway.fields import Fields
from harness.gateway.way import Way
from harness.http import HttpSession
from harness.modes import Scripted
from harness.outcomes import GatewayReport


def compare(
    direct_url: str,
    through_url: str,
    *,
    api_key: str | None = None,
    script: Scripted | None = None,
    prompt: Prompt | None = None,
    only: Collection[str] | None = None,
    timeout: float = 120.0,
    on_event: Callable[[str, dict[str, Any]], None] = lambda phase, facts: None,
) -> GatewayReport:
    """Ask a server and a gateway in front of it the same things; return what gets lost on the way.

    `script` is for a server that the caller booted itself on loopback: the modes then get a scripted answer,
    and scripting is probed. `prompt` is the modes' prompt. `only` limits the work to these names: request
    fields as `RequestField.name`, `answers: tools, streamed` and the like, `endpoints`.

    Raises:
        ShardgateError: one of the two can't be asked at all.
    """
    if script is not None and not is_loopback(direct_url):
        raise ShardgateError(
            "a script is only for a server on this machine's loopback address",
            where=direct_url,
            why="its logit processor is pickled code",
            remedy="compare without a script",
        )

    async def ask() -> GatewayReport:
        async with (
            HttpSession(direct_url, concurrency=8, timeout=timeout, api_key=api_key) as direct,
            HttpSession(through_url, concurrency=8, timeout=timeout, api_key=api_key) as through,
        ):
            way = Way(direct, through, script=script, only=only, on_event=on_event)
            return await _compare(way, prompt)

    return asyncio.run(ask())


async def _compare(way: Way, prompt: Prompt | None) -> GatewayReport:
    await way.get_ready()
    if way.wanted("endpoints"):
        for endpoint in way.table.endpoints:
            await way.endpoint(endpoint)
    await Fields(way).all()
    await Answers(way, prompt).all()
    sides = ("request", "answer", "stream", "endpoint")
    return GatewayReport(
        direct=way.direct.base_url,
        through=way.through.base_url,
        findings=tuple(
            sorted(way.findings, key=lambda one: (not one.needed, sides.index(one.side), one.name))
        ),
        same_greedy=way.same,
        checked=tuple(sorted(way.checked)),
        unseen=tuple(sorted(way.unseen)),
    )
