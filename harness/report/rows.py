"""Outcomes as the rows that the terminal and the HTML report both show; words only, no layout.

Place in the flow: between the outcomes and the reports. May import `contracts` and `harness.outcomes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.records import VERDICT_ORDER, Divergence, ServerFacts, Transport, Verdict
from harness.outcomes import DemoReport, Outcome, ProbeReport
from harness.report.text import safe, seconds

Report = DemoReport | ProbeReport

RECORD_WITH = {
    "generate": "`generate`: POST /generate with the prompt's input_ids; the engine's own token ids, "
    "no parser in the way",
    "chat": "`chat`: POST /v1/chat/completions",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One outcome in words. `expected` is "yes", "NO" or "-" (nothing stated); all text is made safe."""

    prompt: str
    mode: str
    verdict: str
    losses: tuple[str, ...]
    divergence: str
    expected: str
    note: str
    tokens: int


def outcome_row(outcome: Outcome, excerpt: int = 18) -> Row:
    """Return one outcome's row; `excerpt` is the longest excerpt, in characters, of the two texts."""
    # `/generate` has no parser to choose: the transport is the mode's name there.
    mode = str(outcome.transport if outcome.transport is Transport.GENERATE else outcome.mode)
    if outcome.stream:
        mode += " stream"
    note = ""
    if outcome.fault is not None:
        note = safe(outcome.fault)
    elif outcome.expected is False:
        note = f"expected {safe(outcome.expectation)}" if outcome.expectation else "not what was expected"
    return Row(
        prompt=safe(outcome.prompt),
        mode=mode,
        verdict="no answer" if outcome.fault is not None else str(outcome.verdict),
        losses=tuple(dict.fromkeys(safe(loss.name) for loss in outcome.losses)),
        divergence=divergence_text(outcome.divergence, excerpt),
        expected="-" if outcome.expected is None else "yes" if outcome.expected else "NO",
        note=note,
        tokens=outcome.tokens,
    )


def divergence_text(divergence: Divergence | None, excerpt: int) -> str:
    """Return where the reconstruction leaves the response and the two texts from there on."""
    if divergence is None:
        return ""
    raw, rebuilt = (
        f'"{safe(text, excerpt)}"' if text else "(end)" for text in (divergence.raw, divergence.rebuilt)
    )
    if raw == rebuilt and divergence.raw_id != divergence.rebuilt_id:
        raw, rebuilt = f"{raw} [{divergence.raw_id}]", f"{rebuilt} [{divergence.rebuilt_id}]"
    return f"token {divergence.token_index}: {raw} / {rebuilt}"


def by_server(results: Sequence[Outcome]) -> tuple[tuple[str, tuple[Outcome, ...]], ...]:
    """Return the outcomes grouped by server label, in order of appearance."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in results:
        groups.setdefault(outcome.server, []).append(outcome)
    return tuple((label, tuple(group)) for label, group in groups.items())


def tally(results: Sequence[Outcome]) -> str:
    """Return one line: how many outcomes, how many of each verdict, how many against expectation."""
    judged = [outcome for outcome in results if outcome.fault is None]
    counts = Counter(outcome.verdict for outcome in judged)
    parts = [f"{counts[verdict]} {verdict}" for verdict in reversed(VERDICT_ORDER) if counts[verdict]]
    if len(judged) < len(results):
        parts.append(f"{len(results) - len(judged)} without an answer")
    line = f"{len(results)} outcomes: " + (", ".join(parts) or "none")
    stated = [outcome for outcome in results if outcome.expected is not None]
    if stated:
        wrong = sum(outcome.expected is False for outcome in stated)
        told = f"{wrong} of {len(stated)} not as expected" if wrong else f"all {len(stated)} as expected"
        line += f"; {told}" if len(stated) == len(results) else f"; of those with an expectation {told}"
    return line


def server_words(facts: ServerFacts) -> str:
    """Return one line on a server: engine, version, model, parsers."""
    version = safe(facts.engine_version or "of unknown version")
    return (
        f"{safe(facts.engine)} {version} at {safe(facts.base_url)}, "
        f"model {safe(facts.model)}, reasoning parser {safe(facts.reasoning_parser or 'none')}, "
        f"tool parser {safe(facts.tool_parser or 'none')}"
    )


def durations(report: Report) -> str:
    """Return how long each part of a demo took, or an empty line."""
    if not isinstance(report, DemoReport):
        return ""
    return ", ".join(f"{safe(name)} {seconds(value)}" for name, value in report.seconds.items())


def servers_of(report: Report) -> tuple[ServerFacts, ...]:
    """Return the servers that a report speaks of."""
    return report.servers if isinstance(report, DemoReport) else (report.server,)


def verdict_style(verdict: str) -> str:
    """Return the colour name of a verdict, the same in every report."""
    return {
        Verdict.EXACT: "green",
        Verdict.TEXT_EXACT: "green",
        Verdict.NORMALIZED: "cyan",
        Verdict.LOSSY: "yellow",
        Verdict.UNPROVEN: "magenta",
        Verdict.CONTRADICTED: "red",
    }.get(Verdict(verdict) if verdict in set(Verdict) else Verdict.CONTRADICTED, "red")
