"""An audit where GitHub Actions runs it: annotations, a job summary, and output that can't give commands.

Place in the flow: last. Imports the audit's summary and the standard library.

A runner reads commands (`::error::…`) from whatever a step prints. What a model generated is printed too, so
the readable report goes between `::stop-commands::TOKEN` and `::TOKEN::`, the token being random.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from contracts.records import Severity
from harness.report import audit_summary as summary
from harness.report.text import safe

if TYPE_CHECKING:
    from contracts.run import AuditResult

ANNOTATIONS = 10
"""Of each level; GitHub shows no more of a step."""
RULES_SHOWN = 60
SHARDS_SHOWN = 30
MESSAGE = 300
SUMMARY_BYTES = 1 << 20
"""What GitHub takes as a job summary."""
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.RATE: "notice"}


def on_github(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this runs as a step of GitHub Actions."""
    return environment.get("GITHUB_ACTIONS") == "true"


@contextmanager
def commands_stopped(stream: IO[str], active: bool) -> Iterator[None]:
    """Have the runner take nothing that is printed inside for a command."""
    if not active:
        yield
        return
    token = f"shardgate-{secrets.token_hex(16)}"
    print(f"::stop-commands::{token}", file=stream, flush=True)
    try:
        yield
    finally:
        print(f"\n::{token}::", file=stream, flush=True)


def workflow_commands(result: AuditResult) -> list[str]:
    """Return one workflow command a broken rule, at its first finding, at most ten of each level."""
    told: dict[Severity, list[str]] = {severity: [] for severity in Severity}
    for line in summary.rule_lines(result):
        if len(told[line.severity]) >= ANNOTATIONS:
            continue
        found = line.examples[0]
        where = []
        if found.shard:
            where.append(f"file={_property(safe(found.shard))}")
            # No line: the runner would look for it in a text file.
        title = f"{line.rule}: {summary.count(line.findings, 'finding')}"
        where.append(f"title={_property(title)}")
        text = f"{line.meaning}\n{safe(summary.place(found), MESSAGE)}: {safe(found.message, MESSAGE)}\n"
        text += f"remedy: {safe(line.remedy)}"
        told[line.severity].append(f"::{_COMMANDS[line.severity]} {','.join(where)}::{_data(text)}")
    return [command for commands in told.values() for command in commands]


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def add_job_summary(result: AuditResult, environment: Mapping[str, str] = os.environ) -> None:
    """Append the audit to the job summary, where the runner gave a file for it; a full disk is no finding."""
    named = environment.get("GITHUB_STEP_SUMMARY")
    if not named:
        return
    try:
        path = Path(named)
        text = markdown(result)
        there = path.stat().st_size if path.exists() else 0
        if there + len(text.encode()) <= SUMMARY_BYTES:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
    except OSError:
        return


def markdown(result: AuditResult) -> str:
    """Return the audit as Markdown: verdict, rules, verdict rates, shards."""
    word, told = summary.verdict(result)
    lines = [f"### shardgate audit: {word}", "", plain(told), "", plain(summary.contract_words(result)), ""]
    rules = summary.rule_lines(result)
    if rules:
        lines += [
            "| severity | rule | findings | share of rows | first | remedy |",
            "|---|---|--:|--:|---|---|",
        ]
    for line in rules[:RULES_SHOWN]:
        found = line.examples[0]
        first = f"{safe(summary.place(found), MESSAGE)}: {safe(found.message, MESSAGE)}"
        cells = (plain(line.rule), f"{line.findings:,}", summary.share(line.rows, result.rows))
        lines.append(
            f"| {line.severity} | {' | '.join(cells)} | {plain(first)} | {plain(safe(line.remedy))} |"
        )
    if len(rules) > RULES_SHOWN:
        lines += ["", f"and {len(rules) - RULES_SHOWN} more rules"]
    if result.verdicts:
        lines += ["", "| verdict | rows | share |", "|---|--:|--:|"]
        for name, rows in summary.verdict_counts(result)[:RULES_SHOWN]:
            lines.append(f"| {plain(safe(name, 40))} | {rows:,} | {summary.share(rows, result.rows)} |")
    lines += ["", "| shard | rows | certified | quarantined |", "|---|--:|--:|--:|"]
    shards = summary.shards_in_order(result)
    for shard in shards[:SHARDS_SHOWN]:
        name = plain(safe(shard.shard, MESSAGE))
        lines.append(f"| {name} | {shard.rows:,} | {shard.certified:,} | {shard.quarantined:,} |")
    if len(shards) > SHARDS_SHOWN:
        lines += ["", f"and {summary.count(len(shards) - SHARDS_SHOWN, 'more shard')}"]
    return "\n".join([*lines, "", ""])


def plain(text: str) -> str:
    """Return text that Markdown shows as it stands: no link, image, mention, HTML or cell comes of it."""
    return "".join(
        char if char.isalnum() or char == " " or ord(char) > 127 else f"&#{ord(char)};" for char in text
    )
