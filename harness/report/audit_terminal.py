"""An audit on a terminal or in a pipe: the verdict first, one line a rule, some examples, what to do next.

Place in the flow: last. Imports the audit's summary and the terminal report, so rich: import this module
inside a function.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from contracts.records import Severity
from harness.report import audit_summary as summary
from harness.report.rows import verdict_style
from harness.report.terminal import console, plain_table
from harness.report.text import safe

if TYPE_CHECKING:
    from contracts.run import AuditResult

SHOWN = 3
"""Findings that are shown of each rule; one where many rules fired."""
MANY = 12
SHARDS = 20
LOSSES = 12
MESSAGE = 400
"""Characters of a finding's message: some repeat what a row says."""


def print_audit(result: AuditResult, stream: IO[str]) -> None:
    """Print an audit's result. Its length grows with the rules that fired, not with the findings."""
    out = console(stream)
    word, told = summary.verdict(result)
    style = "bold red" if result.errors else "bold green"
    out.print(Text(word, style=style).append(f": {told}", style="bold"))
    out.print(Text(safe(summary.contract_words(result)), style="dim"))
    if result.note:
        out.print(Text(safe(result.note)))
    lines = summary.rule_lines(result)
    if lines:
        _print_rules(out, lines, result.rows)
        for line in lines:
            _print_examples(out, line, SHOWN if len(lines) <= MANY else 1)
    _print_rates(out, result)
    _print_shards(out, result)
    for rule, reason in result.waivers.items():
        times = summary.count(result.waived.get(rule, 0), "finding")
        out.print(Text(f"waived: {safe(rule)}, {times}: {safe(reason, MESSAGE)}", style="yellow"))
    if result.certificate is not None:
        out.print(Text(f"certificate: {safe(result.certificate)}", style="bold"))
    out.print()
    totals = f"{summary.count(result.rows, 'row')}: {result.certified:,} certified, "
    totals += f"{result.quarantined:,} quarantined; {_severities(result)}"
    out.print(Text(totals, style="bold"))
    for step in summary.next_steps(result):
        out.print(Padding(Text(f"next: {safe(step)}"), (0, 0, 0, 0)))


def _print_rules(out: Console, lines: list[summary.RuleLine], rows: int) -> None:
    table = plain_table()
    table.add_column("severity", no_wrap=True)
    table.add_column("rule", overflow="fold", min_width=10)
    table.add_column("findings", justify="right", no_wrap=True)
    wide = out.width >= 60
    if wide:
        table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for line in lines:
        hit = "" if line.rows is None else f"{line.rows:,}"
        table.add_row(
            Text(str(line.severity), style=summary.STYLES[line.severity]),
            Text(safe(line.rule)),
            Text(f"{line.findings:,}"),
            *([Text(hit)] if wide else []),
            Text(summary.share(line.rows, rows)),
        )
    out.print()
    out.print(Text("Rules broken", style="bold"))
    out.print(table)


def _print_examples(out: Console, line: summary.RuleLine, shown: int) -> None:
    out.print()
    head = Text(f"{line.severity} {safe(line.rule)}", style=summary.STYLES[line.severity])
    out.print(head.append(f": {safe(line.meaning)}", style="default"))
    for found in line.examples[:shown]:
        out.print(Padding(Text(f"{safe(summary.place(found), MESSAGE)}:", style="dim"), (0, 0, 0, 2)))
        out.print(Padding(Text(safe(found.message, MESSAGE)), (0, 0, 0, 4)))
    more = line.findings - min(len(line.examples), shown)
    if more > 0 and line.severity is not Severity.RATE:
        where = f" in {summary.count(len(line.shards), 'shard')}" if len(line.shards) > 1 else ""
        out.print(Padding(Text(f"... and {more:,} more{where}; --json lists all", style="dim"), (0, 0, 0, 2)))
    if line.remedy:
        out.print(
            Padding(Text("remedy: ", style="bold").append(safe(line.remedy), style="default"), (0, 0, 0, 2))
        )


def _print_rates(out: Console, result: AuditResult) -> None:
    if not result.verdicts:
        return
    out.print()
    out.print(Text("Verdicts", style="bold"))
    table = plain_table()
    table.add_column("verdict", overflow="fold")
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    for name, rows in summary.verdict_counts(result)[:LOSSES]:
        style = verdict_style(name)
        table.add_row(Text(safe(name, 40), style=style), f"{rows:,}", summary.share(rows, result.rows))
    out.print(table)
    losses = sorted(result.losses.items(), key=lambda pair: (-pair[1], pair[0]))
    if losses:
        told = ", ".join(f"{safe(name, 60)} {rows:,}" for name, rows in losses[:LOSSES])
        more = f", and {len(losses) - LOSSES} more" if len(losses) > LOSSES else ""
        out.print(Text(f"losses named: {told}{more}"))


def _print_shards(out: Console, result: AuditResult) -> None:
    shards = summary.shards_in_order(result)
    if not shards:
        return
    out.print()
    out.print(Text("Shards", style="bold"))
    table = plain_table()
    table.add_column("shard", overflow="fold", min_width=10)
    narrow = out.width < 60
    for head in ("rows", "good" if narrow else "certified", "held" if narrow else "quarantined"):
        table.add_column(head, justify="right", no_wrap=True)
    for shard in shards[:SHARDS]:
        name = Text(safe(shard.shard)).append(" (refused)" if shard.refused else "", style="red")
        table.add_row(
            name,
            Text(f"{shard.rows:,}"),
            Text(f"{shard.certified:,}", style="green" if shard.certified == shard.rows else ""),
            Text(f"{shard.quarantined:,}", style="red" if shard.quarantined else ""),
        )
    out.print(table)
    if len(shards) > SHARDS:
        rest = shards[SHARDS:]
        held = sum(bool(shard.quarantined or shard.refused) for shard in rest)
        told = f"{held:,} of them with rows held back" if held else "no row of them held back"
        out.print(Text(f"... and {summary.count(len(rest), 'more shard')}, {told}"))


def _severities(result: AuditResult) -> str:
    counts = {severity: sum(found.severity is severity for found in result.findings) for severity in Severity}
    told = [summary.count(number, str(severity)) for severity, number in counts.items() if number]
    return ", ".join(told) or "no findings"
