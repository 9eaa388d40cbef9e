"""An audit as JUnit XML: a test case for each rule and for each shard, so that a CI system shows them.

Place in the flow: last. Imports `contracts` and the audit's summary; junitparser inside functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.records import Severity
from contracts.rules import RULES
from contracts.rules.registry import RuleSpec
from harness.report import audit_summary as summary
from harness.report.text import safe

if TYPE_CHECKING:
    from junitparser import TestCase

    from contracts.run import AuditResult

MESSAGE = 400


def junit_xml(result: AuditResult, seconds: float = 0.0) -> str:
    """Return the result as JUnit XML.

    The suite `rules` has a case for each rule: failed where it broke as an error, passed with its findings in
    `system-out` where as a warning or a rate, skipped where it is off or could not be checked. The suite
    `shards` has a case for each shard, failed where rows of it are held back.
    """
    from junitparser import JUnitXml, TestSuite

    rules, shards = TestSuite("rules"), TestSuite("shards")
    for name, value in (
        ("contract", result.contract),
        ("fingerprint", result.fingerprint),
        ("profile", str(result.profile)),
        ("strength", result.strength),
        ("certificate", result.certificate or ""),
    ):
        rules.add_property(name, safe(value))
    rules.time = round(seconds, 3)
    lines: dict[str, list[summary.RuleLine]] = {}
    for line in summary.rule_lines(result):
        lines.setdefault(line.rule, []).append(line)
    # All at once: each call counts the whole suite again.
    rules.add_testcases([_rule_case(spec, lines.get(rule, []), result) for rule, spec in RULES.items()])
    shards.add_testcases(
        [
            _case(
                f"{shard.shard} ({summary.count(shard.rows, 'row')})",
                "shardgate.shards",
                _shard_fault(shard.refused, shard.quarantined, shard.rules_fired),
            )
            for shard in result.shards
        ]
    )
    xml = JUnitXml("shardgate audit")
    xml.add_testsuite(rules)
    xml.add_testsuite(shards)
    xml.update_statistics()  # type: ignore[no-untyped-call]
    text: bytes = xml.tostring()  # type: ignore[no-untyped-call]
    return text.decode("utf-8")


def _rule_case(spec: RuleSpec, lines: list[summary.RuleLine], result: AuditResult) -> TestCase:
    from junitparser import Skipped

    failed = [line for line in lines if line.severity is Severity.ERROR]
    fault = None
    if failed:
        head = f"{summary.count(failed[0].findings, 'finding')}: {spec.meaning}"
        fault = (head, _listed(failed))
    case = _case(spec.id, f"shardgate.{spec.kind}", fault)
    told = [line for line in lines if line.severity is not Severity.ERROR]
    if told:
        case.system_out = _listed(told)
    elif not failed:
        if result.strength not in spec.strengths:
            case.result = [Skipped(f"not part of the {result.strength} contract")]
        elif spec.severity(result.profile) is None:
            case.result = [Skipped(f"off for the profile {result.profile}")]
        elif spec.needs_tokenizer and summary.unchecked(result):
            case.result = [Skipped("not checked: no tokenizer was given")]
    return case


def _case(name: str, group: str, fault: tuple[str, str] | None) -> TestCase:
    from junitparser import Failure, TestCase

    case = TestCase(safe(name, MESSAGE), group)
    if fault is not None:
        failure = Failure(safe(fault[0], MESSAGE), "broken")
        failure.text = fault[1]
        case.result = [failure]
    return case


def _shard_fault(refused: bool, quarantined: int, rules: tuple[str, ...]) -> tuple[str, str] | None:
    if not refused and not quarantined:
        return None
    head = "the file as a whole is refused" if refused else f"{summary.count(quarantined, 'row')} held back"
    return head, "rules that fired: " + ", ".join(map(safe, rules))


def _listed(lines: list[summary.RuleLine]) -> str:
    """Return findings in words, one a line; safe text holds no character that XML forbids."""
    out = []
    for line in lines:
        out += [
            f"{line.severity}: {safe(summary.place(found), MESSAGE)}: {safe(found.message, MESSAGE)}"
            for found in line.examples
        ]
        if line.findings > len(line.examples) and line.severity is not Severity.RATE:
            out.append(f"... and {line.findings - len(line.examples):,} more")
        out.append(f"remedy: {safe(line.remedy)}")
    return "\n".join(out)
