"""An audit as SARIF 2.1.0, which code-scanning services and editors read.

Place in the flow: last. Imports `contracts`, the audit's summary and the standard library.

A parquet file has no lines: a result's `startLine` is the row's number counted from 1; its logical location
names row (counted from 0, as everywhere else), column and sample.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from contracts.records import Finding, Severity
from contracts.rules import RULES
from harness.report import audit_summary as summary
from harness.report.text import safe

if TYPE_CHECKING:
    from contracts.run import AuditResult

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
RESULTS = 5000
"""Results that are written; GitHub shows no more of a run. What was left out is told as a notification."""
MESSAGE = 1000
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.RATE: "note"}


def sarif_text(result: AuditResult, version: str, root: Path | None = None) -> str:
    """Return the log as JSON. File names below `root` (default: the working folder) are relative to it."""
    return json.dumps(sarif_log(result, version, root or Path.cwd()), indent=1, ensure_ascii=True)


def sarif_log(result: AuditResult, version: str, root: Path) -> dict[str, Any]:
    """Return the SARIF log: every rule of the contract, and the findings, bounded fairly by rule."""
    places = {rule: number for number, rule in enumerate(RULES)}
    shown = list(summary.fair(result.findings, RESULTS))
    invocation: dict[str, Any] = {"executionSuccessful": True, "exitCode": 1 if result.errors else 0}
    left_out = len(result.findings) - len(shown)
    if left_out:
        text = f"{left_out} of {len(result.findings)} findings were left out; `--json` lists all"
        invocation["toolExecutionNotifications"] = [{"level": "warning", "message": {"text": text}}]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "shardgate",
                        "version": version,
                        "rules": [_rule(rule, result) for rule in RULES],
                    }
                },
                "invocations": [invocation],
                "columnKind": "unicodeCodePoints",
                "results": [_result(found, places, root) for found in shown],
                "properties": {
                    "rows": result.rows,
                    "certified": result.certified,
                    "quarantined": result.quarantined,
                    "contract": safe(result.contract),
                    "fingerprint": result.fingerprint,
                    "profile": str(result.profile),
                    "strength": result.strength,
                    "findings": len(result.findings),
                    "findingsLeftOut": left_out,
                },
            }
        ],
    }


def _rule(rule: str, result: AuditResult) -> dict[str, Any]:
    spec = RULES[rule]
    severity = spec.severity(result.profile)
    level = LEVELS[severity] if severity else "none"
    told: dict[str, Any] = {
        "id": rule,
        "shortDescription": {"text": spec.meaning},
        "help": {"text": spec.remedy},
        "defaultConfiguration": {"level": level, "enabled": severity is not None},
        "properties": {"tags": [spec.kind, spec.scope]},
    }
    if spec.report:
        told["properties"]["report"] = spec.report
    return told


def _result(found: Finding, places: dict[str, int], root: Path) -> dict[str, Any]:
    message = f"{safe(found.message, MESSAGE)}. What to do: {safe(found.remedy)}"
    told: dict[str, Any] = {"ruleId": found.rule}
    if found.rule in places:
        told["ruleIndex"] = places[found.rule]
    told |= {"level": LEVELS[found.severity], "message": {"text": message}}
    if found.shard:
        told["locations"] = [_location(found, root)]
    # The sample's name stays the same when rows move; a row without one is known by its place.
    key = [found.rule, found.column or "", found.sample_id or f"{found.shard}#{found.row}"]
    digest = hashlib.sha256("\0".join(key).encode("utf-8", "backslashreplace")).hexdigest()
    told["partialFingerprints"] = {"shardgateFinding/v1": digest}
    return told


def _location(found: Finding, root: Path) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(found.shard, root)}}
    told: dict[str, Any] = {"physicalLocation": physical}
    if found.row is not None:
        physical["region"] = {"startLine": found.row + 1}
        named = [f"row {found.row}"]
        named += [safe(found.column)] if found.column else []
        named += [f"sample {safe(found.sample_id, 200)}"] if found.sample_id else []
        told["logicalLocations"] = [{"fullyQualifiedName": "/".join(named), "kind": "row"}]
    return told


def _uri(shard: str, root: Path) -> str:
    path = Path(shard)
    whole = path if path.is_absolute() else root / path
    try:
        return quote(whole.relative_to(root).as_posix(), errors="replace")
    except ValueError:
        return "file://" + quote(whole.as_posix(), errors="replace")
