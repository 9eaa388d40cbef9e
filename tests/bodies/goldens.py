"""Golden prompts and the probe on a real server; on CPU and GPUs alike.

Place in the flow: called by `tests/server` and `tests/gpu`. No fixtures here.
"""

from __future__ import annotations

import asyncio

from contracts.records import Mode, Verdict
from harness import pipeline
from harness.client import Client
from harness.golden import load_golden, script_ids
from harness.measure import Measured, Plan, measure
from harness.outcomes import ProbeReport
from tests.bodies.streams import Served

MARKERS_OF = "kimi_k2"
"""The format in whose markers the golden prompts' scripts are written."""


def plan_for(on: Served) -> Plan:
    """What can be asked of a server with these parsers, and which of a fixture's expectations hold there."""
    if on.facts.reasoning_parser is None:
        return Plan(label="no parsers", modes=(Mode.REASONING,), generate=False, unparsed=True)
    if on.facts.tool_parser is None:
        return Plan(label="reasoning parser", modes=(Mode.RAW, Mode.REASONING))
    return Plan(label="parsers")


def scripted_come_back(on: Served) -> set[str]:
    """Every scripted golden prompt, in each mode: emitted is scripted, the outcome the one expected.

    Returns the prompts whose served text had a piece twice, a fault of the engine that is called out instead.
    """
    goldens = [golden for golden in load_golden() if golden.scripted]
    plan = plan_for(on)

    async def go() -> list[Measured]:
        async with Client(on.server.base_url, facts=on.facts, concurrency=16) as client:
            return await measure(
                client, goldens, plan, codec=on.codec, fmt=on.fmt, on_event=lambda phase, facts: None
            )

    measured = asyncio.run(go())
    assert len({one.golden.name for one in measured}) == len(goldens) >= 12
    assert {one.outcome.mode for one in measured} >= set(plan.modes)
    for one in measured:
        assert one.capture is not None, (one.golden.name, one.outcome.fault)
        assert one.capture.response_token_ids == script_ids(one.golden, on.codec), one.golden.name
    twice = {one.golden.name for one in measured if has_a_piece_twice(one, on)}
    told = [
        f"{one.golden.name}, {one.outcome.mode}: {one.outcome.verdict} "
        f"({', '.join(loss.name for loss in one.outcome.losses)}), expected {one.outcome.expectation}"
        for one in measured
        if one.outcome.expected is False and one.golden.name not in twice
    ]
    assert told == []
    for one in measured:
        if has_a_piece_twice(one, on):
            assert one.outcome.verdict is Verdict.CONTRADICTED
            assert "text-differs" in {loss.name for loss in one.outcome.losses}
    return twice


def has_a_piece_twice(one: Measured, on: Served) -> bool:
    """Whether the served text is that of its ids with one piece twice in a row.

    SGLang 0.5.23 sends the text of a whole answer on in parts of 50 tokens. Where two parts in a row end
    within a character, what it counts as sent goes back (`find_printable_text` gives less than before), and
    the piece between comes again (sgl-project/sglang#31598, which tells it of streams).
    """
    if one.capture is None or one.capture.raw_text is None or one.capture.response_token_ids is None:
        return False
    served = one.capture.raw_text
    text = on.codec.decode_bytes(one.capture.response_token_ids).decode("utf-8", "replace")
    extra = len(served) - len(text)
    return extra > 0 and any(served == text[:at] + text[at - extra :] for at in range(extra, len(text) + 1))


def probed(base_url: str) -> ProbeReport:
    """The probe with sampled prompts: every answer was captured, none is unproven; the report is whole."""
    report = pipeline.probe(base_url, on_event=lambda phase, facts: None)
    assert report.results
    for result in report.results:
        assert result.fault is None, result
        assert result.expected, result
        assert result.verdict is not Verdict.UNPROVEN
    assert {result.mode for result in report.results} == set(Mode)
    assert report.recommendation.flags
    assert report.server.engine_version
    return report
