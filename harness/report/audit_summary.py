"""An audit's result in the order that people read it: the verdict, the rules, the shards, what to do next.

Place in the flow: between the audit's result and its reports, which all show this. Imports `contracts`.
Bounded: thousands of findings become one line a rule with examples.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from contracts.records import VERDICT_ORDER, Finding, Severity
from contracts.rules import RULES

if TYPE_CHECKING:
    from contracts.run import AuditResult, ShardResult

EXAMPLES = 20
"""Findings that are kept of each rule; reports show some or all of them."""

STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.RATE: "cyan"}


@dataclass(slots=True)
class RuleLine:
    """One broken rule: how often, on how many rows (None: no finding names a row), the first findings."""

    rule: str
    severity: Severity
    findings: int = 0
    rows: int | None = None
    shards: dict[str, int] = field(default_factory=dict)
    examples: list[Finding] = field(default_factory=list)

    @property
    def meaning(self) -> str:
        """Return what it means that the rule fires."""
        spec = RULES.get(self.rule)
        return spec.meaning if spec else ""

    @property
    def kind(self) -> str:
        """Return `fidelity` or `quality`."""
        spec = RULES.get(self.rule)
        return spec.kind if spec else ""

    @property
    def remedy(self) -> str:
        """Return what to do."""
        return self.examples[0].remedy if self.examples else ""


def rule_lines(result: AuditResult) -> list[RuleLine]:
    """Return the broken rules: errors first, then those with the most findings."""
    lines: dict[tuple[str, Severity], RuleLine] = {}
    last: dict[tuple[str, Severity], tuple[str, int]] = {}
    for found in result.findings:
        key = (found.rule, found.severity)
        line = lines.get(key)
        if line is None:
            line = lines[key] = RuleLine(found.rule, found.severity)
        line.findings += 1
        line.shards[found.shard] = line.shards.get(found.shard, 0) + 1
        if len(line.examples) < EXAMPLES:
            line.examples.append(found)
        # Findings come row by row: a row that breaks a rule twice does so in a run.
        if found.row is not None and last.get(key) != (found.shard, found.row):
            last[key] = (found.shard, found.row)
            line.rows = (line.rows or 0) + 1
    for rule, count in result.rates.items():
        rated = lines.get((rule, Severity.RATE))
        if rated is not None:  # told once over the set, by its first case
            rated.findings, rated.rows = count, count
    order = {severity: place for place, severity in enumerate(Severity)}
    return sorted(lines.values(), key=lambda line: (order[line.severity], -line.findings, line.rule))


def verdict(result: AuditResult) -> tuple[str, str]:
    """Return the one word and the sentence that say how the audit went."""
    rows = count(result.rows, "row")
    within = f"in {count(len(result.shards), 'shard')}"
    if result.errors:
        rules = len({found.rule for found in result.findings if found.severity is Severity.ERROR})
        told = f"{count(result.errors, 'error')} of {count(rules, 'rule')}"
        word = "FAILED"
        if result.certificate is not None:
            return word, f"{told}; {result.certified:,} of {rows} {within} certified, the rest in quarantine"
        return word, f"{told}; {result.quarantined:,} of {rows} {within} can't be certified"
    if result.certificate is not None:
        return "CERTIFIED", f"{rows} {within} keep the contract"
    return "HOLDS", f"{rows} {within} keep the contract; nothing was certified (see below)"


def contract_words(result: AuditResult) -> str:
    """Return contract, profile, strength and fingerprint in words."""
    return (
        f"contract {result.contract}, profile {result.profile}, strength {result.strength}, "
        f"fingerprint {result.fingerprint[:12]}"
    )


def verdict_counts(result: AuditResult) -> list[tuple[str, int]]:
    """Return (verdict, rows), best first; names that are no verdict come last."""
    return in_verdict_order(result.verdicts)


def in_verdict_order(verdicts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (verdict, rows), best first; names that are no verdict come last."""
    order = {str(name): place for place, name in enumerate(reversed(VERDICT_ORDER))}
    return sorted(verdicts.items(), key=lambda pair: (order.get(pair[0], len(order)), pair[0]))


def shards_in_order(result: AuditResult) -> list[ShardResult]:
    """Return the shards: refused ones first, then those with quarantined rows, the others as they came."""
    return sorted(result.shards, key=lambda shard: (not shard.refused, -shard.quarantined))


def unchecked(result: AuditResult) -> bool:
    """Return whether rules stayed unchecked since there was no tokenizer."""
    return any(found.rule == "tokenizer-missing" for found in result.findings)


def next_steps(result: AuditResult) -> list[str]:
    """Return what to do now, the most needed first; commands are complete."""
    steps = []
    if unchecked(result):
        steps.append("pass --tokenizer with the model's folder: ids and texts were not compared")
    first = next((f for f in result.findings if f.severity is Severity.ERROR and f.row is not None), None)
    if result.certificate is not None:
        folder = shlex.quote(result.certificate.rpartition("/")[0] or ".")
        steps.append(f"check the set before each use: shardgate verify {folder}")
        if result.quarantined:
            steps.append(f"look at what was held back, with the reasons: {folder}/quarantine")
        return steps
    if first is not None:
        steps.append(f"see a bad row: shardgate diff {shlex.quote(first.shard)} {first.row}")
    if result.errors and result.certified:
        steps.append("keep the good rows and quarantine the others: the same command with --certify DIR")
    elif result.errors:
        steps.append("mend the cause first: as it stands no row can be certified")
    else:
        steps.append("certify, which the trainer's loader asks for: the same command with --certify DIR")
    return steps


def place(found: Finding) -> str:
    """Return where a finding was made: shard, row, sample, column."""
    parts = [found.shard or "the whole set"]
    if found.row is not None:
        parts.append(f"row {found.row}")
    if found.sample_id:
        parts.append(f"sample {found.sample_id}")
    if found.column:
        parts.append(found.column)
    return ", ".join(parts)


def fair(findings: Sequence[Finding], limit: int) -> Iterator[Finding]:
    """Yield at most `limit` findings in their order, errors before others, no rule crowding out another."""
    if len(findings) <= limit:
        yield from findings
        return
    totals: dict[tuple[Severity, str], int] = {}
    for found in findings:
        key = (found.severity, found.rule)
        totals[key] = totals.get(key, 0) + 1
    order = {severity: at for at, severity in enumerate(Severity)}
    quota: dict[tuple[Severity, str], int] = {}
    left = limit
    # The rare ones in full, what they leave to the frequent ones.
    waiting = sorted(totals, key=lambda key: (totals[key], order[key[0]], key[1]))
    for at, key in enumerate(waiting):
        quota[key] = min(totals[key], left // (len(waiting) - at))
        left -= quota[key]
    for found in findings:
        key = (found.severity, found.rule)
        if quota[key]:
            quota[key] -= 1
            yield found


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `12,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def share(part: int | None, whole: int) -> str:
    """Return a share in per cent, with more digits where it is small; empty where there is none to tell."""
    if part is None or not whole:
        return ""
    value = 100 * part / whole
    if part == whole or value == 0:
        return f"{value:.0f} %"
    if value < 0.01:
        return "< 0.01 %"
    shown = f"{value:.2f}" if value < 1 else f"{value:.1f}"
    return "> 99.9 %" if shown == "100.0" else f"{shown} %"
