"""One server measured: golden prompts through the modes, each capture judged, each outcome compared.

Place in the flow: chained by the pipeline; after the client and the judge. Imports `contracts` and harness
modules that work without torch and sglang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.formats import Format
from contracts.records import Capture, Judgement, Mode, Transport, Verdict
from contracts.tokens import Codec
from harness.capture import judge_capture
from harness.client import CaptureRequest, Client
from harness.golden import Expectation, GoldenPrompt, script_ids
from harness.modes import Scripted
from harness.outcomes import Outcome
from harness.wire_errors import ClientError, ServerGone, ServerTimeout

OnEvent = Callable[[str, dict[str, Any]], None]
"""Called with a phase and its facts (`message`, `done`, `total`) as the work moves."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One request's way: the golden prompt, the capture and its judgement, and the outcome to report.

    Capture and judgement are None where the outcome has a fault.
    """

    golden: GoldenPrompt
    outcome: Outcome
    capture: Capture | None
    judgement: Judgement | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of one server.

    `label` names the server in the report; `modes` are asked over chat; `generate` adds the recording
    transport. `unparsed` compares with what each fixture expects of a server booted without parsers.
    """

    label: str
    modes: tuple[Mode, ...] = tuple(Mode)
    generate: bool = True
    unparsed: bool = False


async def measure(
    client: Client,
    goldens: Sequence[GoldenPrompt],
    plan: Plan,
    *,
    codec: Codec,
    fmt: Format,
    on_event: OnEvent,
) -> list[Measured]:
    """Run golden prompts through the modes; answers in the order of prompts, then requests.

    Raises:
        ServerGone, ServerTimeout: the server died or hangs; a single refused request is an outcome instead.
    """
    total = sum(len(_requests_of(golden, plan)) for golden in goldens)
    done = 0
    on_event("capture", {"message": plan.label, "done": 0, "total": total})

    async def rendered(golden: GoldenPrompt) -> tuple[int, ...] | ClientError:
        try:
            return await client.render(golden.prompt)
        except (ServerGone, ServerTimeout):
            raise
        except ClientError as error:
            return error

    async def one_request(
        golden: GoldenPrompt, ids: tuple[int, ...] | ClientError, mode: Mode, transport: Transport
    ) -> Measured:
        nonlocal done
        if isinstance(ids, ClientError):
            return _fault(golden, mode, transport, plan, ids)
        request = CaptureRequest(golden.prompt, mode, transport, False, ids, _script(golden, codec))
        found = await _one_request(client, golden, request, plan, codec, fmt)
        done += 1
        on_event("capture", {"message": plan.label, "done": done, "total": total})
        return found

    # The same prompt ids in every mode; all requests at once, the client bounds how many are under way.
    prompts = await asyncio.gather(*(rendered(golden) for golden in goldens))
    tasks = [
        asyncio.create_task(one_request(golden, ids, mode, transport))
        for golden, ids in zip(goldens, prompts, strict=True)
        for mode, transport in _requests_of(golden, plan)
    ]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _requests_of(golden: GoldenPrompt, plan: Plan) -> list[tuple[Mode, Transport]]:
    wanted = [(Mode.RAW, Transport.GENERATE)] if plan.generate else []
    for mode in plan.modes:
        if mode is not Mode.TOOLS or golden.prompt.tools:
            wanted.append((mode, Transport.CHAT))
    return wanted


def _script(golden: GoldenPrompt, codec: Codec) -> Scripted | None:
    if not golden.scripted:
        return None
    from harness.scripted import custom_params, processor_text

    ids = script_ids(golden, codec)
    return Scripted(ids, processor_text(), custom_params(ids))


async def _one_request(
    client: Client, golden: GoldenPrompt, request: CaptureRequest, plan: Plan, codec: Codec, fmt: Format
) -> Measured:
    try:
        capture = await client.capture_one(request)
    except (ServerGone, ServerTimeout):
        raise
    except ClientError as error:
        return _fault(golden, request.mode, request.transport, plan, error)
    judgement = judge_capture(capture, codec=codec, fmt=fmt)
    expectation = expected_of(golden, capture, plan)
    outcome = Outcome(
        prompt=golden.name,
        mode=request.mode,
        transport=request.transport,
        stream=request.stream,
        server=plan.label,
        scripted=golden.scripted,
        verdict=judgement.verdict,
        losses=judgement.losses,
        divergence=judgement.divergence,
        expected=as_expected(golden, judgement, expectation),
        expectation=_words(golden, expectation),
        tokens=len(capture.response_token_ids or ()),
    )
    return Measured(golden, outcome, capture, judgement)


def expected_of(golden: GoldenPrompt, capture: Capture, plan: Plan) -> Expectation | None:
    """Return what the fixture expects of this request, if it says."""
    return golden.expect_unparsed if plan.unparsed else golden.expect.get(capture.mode)


def as_expected(golden: GoldenPrompt, judgement: Judgement, expectation: Expectation | None) -> bool | None:
    """Compare: a scripted prompt by verdict and losses, a sampled one by its claims alone."""
    if not golden.scripted:
        claims = judgement.claims
        return claims.captured is True and claims.text is not False
    if expectation is None:
        return None
    names = {loss.name for loss in judgement.losses}
    return judgement.verdict is expectation.verdict and names == set(expectation.losses)


def _words(golden: GoldenPrompt, expectation: Expectation | None) -> str:
    if not golden.scripted:
        return "captured, text as decoded"
    if expectation is None:
        return ""
    losses = ", ".join(expectation.losses)
    return f"{expectation.verdict}: {losses}" if losses else str(expectation.verdict)


def _fault(
    golden: GoldenPrompt, mode: Mode, transport: Transport, plan: Plan, error: ClientError
) -> Measured:
    outcome = Outcome(
        prompt=golden.name,
        mode=mode,
        transport=transport,
        stream=False,
        server=plan.label,
        scripted=golden.scripted,
        verdict=Verdict.UNPROVEN,
        losses=(),
        divergence=None,
        expected=False,
        fault=": ".join(part for part in (error.what, error.why) if part),
    )
    return Measured(golden, outcome, None, None)


def sampled(goldens: Iterable[GoldenPrompt]) -> list[GoldenPrompt]:
    """Return the prompts that let the model speak: the only ones that an attached server is asked."""
    return [golden for golden in goldens if not golden.scripted]
