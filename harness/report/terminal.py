"""The report on a terminal, or in a pipe: tables at 80 columns, colours only where they are shown.

Place in the flow: last. May import `contracts`, `harness.outcomes` and the other report modules; rich here
only, so import this module inside a function.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import IO, Any, cast

from rich.box import Box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.outcomes import DemoReport, Outcome, Recommendation, ShardLine
from harness.report.gateway import print_gateway
from harness.report.rows import (
    RECORD_WITH,
    Report,
    by_server,
    durations,
    outcome_row,
    server_words,
    servers_of,
    tally,
    verdict_style,
)
from harness.report.text import safe

_RULED = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
_TRAILING = re.compile(r" +\n")


class _Trimmed:
    """A stream that leaves out the blanks with which a table fills its last column."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_TRAILING.sub("\n", text))

    def flush(self) -> None:
        self._stream.flush()


def console(stream: IO[str]) -> Console:
    """Return a console for `stream`: the terminal's width, or 80 columns (`COLUMNS`) and no colour in a pipe.

    Nothing is read as markup, emoji code or highlighted: what is printed is what was given.
    """
    width = None
    if not stream.isatty():
        asked = os.environ.get("COLUMNS", "")
        width = int(asked) if asked.isdigit() and int(asked) >= 40 else 80
        stream = cast(IO[str], _Trimmed(stream))
    return Console(file=stream, markup=False, emoji=False, highlight=False, soft_wrap=False, width=width)


def print_report(report: Report, stream: IO[str]) -> None:
    """Print a demo's or a probe's whole report."""
    out = console(stream)
    for facts in servers_of(report):
        out.print(Text(server_words(facts), style="dim"))
    groups = by_server(report.results)
    for label, outcomes in groups:
        out.print()
        out.print(Text(f"Golden prompts, server: {safe(label)}", style="bold"))
        out.print(_outcome_table(outcomes))
    out.print()
    out.print(Text(tally(report.results), style="bold"))
    if any(outcome.expected is not None for outcome in report.results):
        out.print(Text("exp.: as the golden prompt expects (-: it states nothing)"))
    if isinstance(report, DemoReport):
        _print_shards(out, report)
    else:
        for note in report.notes:
            out.print(Text(f"note: {safe(note)}"))
        if report.gateway is not None:
            print_gateway(out, report.gateway)
    _print_recommendation(out, report.recommendation)


def plain_table() -> Table:
    """Return an empty table in the reports' style."""
    return Table(box=_RULED, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")


def _outcome_table(outcomes: Sequence[Outcome]) -> Table:
    table = plain_table()
    table.add_column("prompt", overflow="fold", max_width=20)
    table.add_column("mode", overflow="fold", max_width=9)
    table.add_column("verdict", no_wrap=True)
    table.add_column("exp.", no_wrap=True)
    table.add_column("named loss @ first divergence", overflow="fold")
    before = ""
    for outcome in outcomes:
        row = outcome_row(outcome)
        told = ", ".join(row.losses)
        if outcome.divergence is not None:
            told += f" @ token {outcome.divergence.token_index}"
        details = Text(told.strip())
        if row.note:
            # What was not expected is shown in full: the two texts, and what the fixture states.
            details.append(f"\n{row.divergence}\n{row.note}".replace("\n\n", "\n"), style="red")
        table.add_row(
            Text("" if row.prompt == before else row.prompt),
            Text(row.mode),
            Text(row.verdict, style=verdict_style(row.verdict)),
            Text(row.expected, style="bold red" if row.expected == "NO" else ""),
            details,
        )
        before = row.prompt
    return table


def _print_shards(out: Console, report: DemoReport) -> None:
    out.print()
    out.print(Text("Shards", style="bold"))
    out.print(shard_table(report.shards))
    out.print(Text(f"certificate: {safe(report.certificate) if report.certificate else 'none was given'}"))
    out.print(Text(f"run folder:  {safe(report.run_folder)}"))
    if report.seconds:
        out.print(Text(f"took:        {durations(report)}"))


def shard_table(shards: Sequence[ShardLine]) -> Table:
    """Return the table of shards: rows, certified, quarantined, the contract and the rules that fired."""
    table = plain_table()
    table.add_column("shard", overflow="fold", min_width=33)
    for name in ("rows", "certified", "quarantined"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("contract; rules that fired", overflow="fold")
    for line in shards:
        rules = "".join(f"\n{safe(rule)}" for rule in line.rules_fired)
        table.add_row(
            Text(safe(line.shard)),
            Text(str(line.rows)),
            Text(str(line.certified), style="green" if line.certified == line.rows else ""),
            Text(str(line.quarantined), style="red" if line.quarantined else ""),
            Text(safe(line.contract) + rules),
        )
    return table


def _print_recommendation(out: Console, advice: Recommendation) -> None:
    out.print()
    out.print(Text("Recommendation", style="bold"))
    out.print(Text(safe(advice.headline), style="bold"))
    flags = " ".join(advice.flags) or "no parser flag is needed"
    out.print(_labelled("boot with", flags))
    out.print(_labelled("record with", RECORD_WITH.get(advice.record_with, advice.record_with)))
    if advice.fields:
        table = plain_table()
        table.add_column("field", overflow="fold", max_width=32)
        table.add_column("trust", no_wrap=True)
        table.add_column("why", overflow="fold")
        for field in advice.fields:
            table.add_row(
                Text(safe(field.name)),
                Text("yes" if field.trusted else "no", style="green" if field.trusted else "red"),
                Text(safe(field.why)),
            )
        out.print(table)
    for reason in advice.reasons:
        out.print(_bullet(safe(reason)))


def _labelled(label: str, text: str) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(min_width=12, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"{label}:"), Text(safe(text), style="bold"))
    return grid


def _bullet(text: str) -> Padding:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column(overflow="fold")
    grid.add_row(Text("-"), Text(text))
    return Padding(grid, (0, 0, 0, 0))


def print_verified(result: Any, stream: IO[str]) -> None:
    """Print what a verification found: each problem with its remedy, then what the certificate says."""
    out = console(stream)
    for problem in result.problems:
        out.print(Text(f"{safe(problem['kind'])}: {safe(problem['shard'])}", style="red"))
        out.print(_bullet(safe(problem["message"])))
        if problem["remedy"]:
            out.print(_bullet(safe(problem["remedy"])))
    verdict = "holds" if result.ok else f"does not hold: {len(result.problems)} problem(s)"
    out.print(Text(f"certificate {safe(result.certificate)} {verdict}", style="bold"))
    out.print(
        Text(
            f"{result.shards} shards, {result.rows} rows, contract {safe(result.contract)}, "
            f"profile {safe(result.profile)}, strength {safe(result.strength)}"
        )
    )
    signed = f", signed by key {safe(result.signed_by[:16])}" if result.signed_by else ""
    out.print(Text(f"checked {safe(result.checked_at)} by {safe(result.checked_by)}{signed}"))
    out.print(Text(safe(result.statement)))
