"""The audit as one HTML file: no script, nothing loaded, everything escaped, a policy that says so.

Place in the flow: last. Imports `contracts` and the other report modules; jinja2 inside functions. Its size
is bounded by what is shown, whatever was found; what is left out is told where it is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.align import Aligned
from contracts.losses import LOSSES
from contracts.records import Severity
from harness.report import audit_summary as summary
from harness.report.files import write_report
from harness.report.histograms import Chart, length_chart, name_chart
from harness.report.html import page_environment, policy_for, style_sheet
from harness.report.rows import verdict_style
from harness.report.text import safe
from harness.report.token_lines import near

if TYPE_CHECKING:
    from contracts.records import Judgement
    from contracts.run import AuditResult

FINDINGS = 6
"""Findings shown of each rule."""
MESSAGE = 600
TOKEN = 48
SHARDS = 100
MATRIX_SHARDS, MATRIX_RULES = 25, 10
DIFF_LINES = 60
NAMES = 40


@dataclass(frozen=True, slots=True)
class Example:
    """A row whose tokens are shown: where it lies, why it was chosen, its judgement and aligned tokens."""

    shard: str
    row: int
    sample_id: str
    why: str
    judgement: Judgement
    lines: Sequence[Aligned]


def render_audit(
    result: AuditResult, examples: Sequence[Example] = (), *, made: datetime | None = None
) -> str:
    """Return an audit's result as a self-contained HTML page."""
    from markupsafe import Markup

    environment = page_environment()
    environment.globals.update(
        share=summary.share, place=summary.place, styles=summary.STYLES, message_limit=MESSAGE
    )
    css = style_sheet("report.css", "audit.css")
    word, told = summary.verdict(result)
    rules = summary.rule_lines(result)
    counts = {
        severity: sum(line.findings for line in rules if line.severity is severity) for severity in Severity
    }
    return environment.get_template("audit.html.j2").render(
        policy=policy_for(css),
        css=Markup(css),
        word=word,
        told=told,
        good=not result.errors,
        contract=summary.contract_words(result),
        made=(made or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
        result=result,
        figures=[
            ("rows", f"{result.rows:,}", ""),
            ("certified" if result.certificate else "can be certified", f"{result.certified:,}", "green"),
            ("quarantined" if result.certificate else "held back", f"{result.quarantined:,}", "red"),
            ("errors", f"{counts[Severity.ERROR]:,}", "red"),
            ("warnings", f"{counts[Severity.WARNING]:,}", "yellow"),
            ("shards", f"{len(result.shards):,}", ""),
        ],
        steps=summary.next_steps(result),
        rules=rules,
        findings_shown=FINDINGS,
        verdicts=verdict_bar(result.verdicts),
        losses=loss_lines(result.losses, result.rows),
        matrix=_matrix(rules),
        charts=length_charts(result.stats.get("lengths", {}), result.stats.get("finish_reasons", {})),
        shards=summary.shards_in_order(result)[:SHARDS],
        shards_left=max(len(result.shards) - SHARDS, 0),
        examples=[example_lines(example) for example in examples],
        waivers=[(rule, result.waived.get(rule, 0), reason) for rule, reason in result.waivers.items()],
    )


def write_audit_html(path: Path, result: AuditResult, examples: Sequence[Example] = ()) -> None:
    """Write the page to `path`: beside it first, synced, then renamed.

    Raises:
        ShardgateError: the file can't be written.
    """
    write_report(path, render_audit(result, examples), "HTML")


def verdict_bar(verdicts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return each verdict with its rows, its share and its stretch of a bar 1000 wide."""
    out: list[dict[str, Any]] = []
    at = 0.0
    whole = sum(verdicts.values()) or 1
    for name, rows in summary.in_verdict_order(verdicts)[:NAMES]:
        width = round(1000 * rows / whole, 2)
        out.append(
            {
                "name": safe(name, 40),
                "rows": rows,
                "share": summary.share(rows, whole),
                "x": round(at, 2),
                "width": width,
                "colour": verdict_style(name),
            }
        )
        at += width
    return out


def loss_lines(losses: Mapping[str, int], whole: int) -> list[dict[str, Any]]:
    """Return the named losses, the most frequent first, as shares of `whole` rows."""
    ordered = sorted(losses.items(), key=lambda pair: (-pair[1], pair[0]))[:NAMES]
    return [
        {
            "name": safe(name, 60),
            "rows": rows,
            "share": summary.share(rows, whole),
            "meaning": LOSSES[name].meaning if name in LOSSES else "not a loss that is known",
            "colour": verdict_style(str(LOSSES[name].verdict)) if name in LOSSES else "red",
        }
        for name, rows in ordered
    ]


def _matrix(rules: Sequence[summary.RuleLine]) -> dict[str, Any] | None:
    """Return findings by shard and rule: the shards with the most, the rules in the report's order."""
    spread = [line for line in rules if any(line.shards) and line.severity is not Severity.RATE]
    totals: dict[str, int] = {}
    for line in spread:
        for shard, number in line.shards.items():
            if shard:
                totals[shard] = totals.get(shard, 0) + number
    if not totals:
        return None
    shown = spread[:MATRIX_RULES]
    shards = sorted(totals, key=lambda shard: (-totals[shard], shard))
    most = max(line.shards.get(shard, 0) for line in shown for shard in shards) or 1
    return {
        "rules": [line.rule for line in shown],
        "rows": [
            (
                safe(shard, 200),
                [(count := line.shards.get(shard, 0), _heat(count, most)) for line in shown],
                totals[shard],
            )
            for shard in shards[:MATRIX_SHARDS]
        ],
        "rules_left": len(spread) - len(shown),
        "shards_left": max(len(shards) - MATRIX_SHARDS, 0),
    }


def _heat(count: int, most: int) -> int:
    """Return 0 for none, else 1 to 4: a step for each power of the fourth root of the most."""
    if not count:
        return 0
    return 4 if most == 1 else 1 + round(3 * math.log(count) / math.log(most))


def length_charts(lengths: Mapping[str, Any], reasons: Mapping[str, int]) -> list[Chart]:
    """Return the charts of lengths, as `contracts.stats` counts them, and of finish reasons."""
    titles = {
        "response": "Response length",
        "reasoning": "Reasoning length",
        "content": "Content length",
        "prompt": "Prompt length",
    }
    charts = [length_chart(title, lengths[name]) for name, title in titles.items() if name in lengths]
    if reasons:
        charts.append(name_chart("Finish reasons", reasons))
    return charts


def example_lines(example: Example) -> dict[str, Any]:
    """Return an example in words: its tokens near each difference, made safe."""
    shown: list[dict[str, Any]] = []
    groups = near(example.lines)
    for group in groups[:DIFF_LINES]:
        if isinstance(group, int):
            shown.append({"skipped": group})
            continue
        shown.append(
            {
                "index": "" if group.index is None else group.index,
                "segment": "" if group.segment is None else str(group.segment),
                "raw": "" if group.raw_id is None else safe(group.raw, TOKEN),
                "raw_id": group.raw_id,
                "rebuilt": "" if group.rebuilt_id is None else safe(group.rebuilt, TOKEN),
                "rebuilt_id": group.rebuilt_id,
                "losses": [safe(name, 60) for name in group.losses],
                "kind": "same" if group.same else "gone" if group.raw_id is not None else "new",
            }
        )
    return {
        "title": f"{safe(example.shard)}, row {example.row}",
        "sample": safe(example.sample_id, 200),
        "why": safe(example.why, MESSAGE),
        "verdict": str(example.judgement.verdict),
        "colour": verdict_style(str(example.judgement.verdict)),
        "losses": [
            (loss.name, loss.token_index, LOSSES[loss.name].meaning) for loss in example.judgement.losses
        ],
        "lines": shown,
        "left": max(len(groups) - DIFF_LINES, 0),
        "tokens": sum(line.raw_id is not None for line in example.lines),
    }
