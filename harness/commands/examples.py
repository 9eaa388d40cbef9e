"""Rows of an audit whose tokens are worth seeing: read again, judged again, aligned.

Place in the flow: between the audit, or a capture run, and its HTML report. Imports `contracts` inside
functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.errors import ShardgateError
from contracts.records import Severity

if TYPE_CHECKING:
    from contracts.run import AuditResult
    from contracts.tokens import Codec
    from harness.report.audit_html import Example

EXAMPLES = 12


def token_examples(result: AuditResult, codec: Codec) -> list[Example]:
    """Return some rows with aligned tokens: one for each broken rule and each named loss, none twice."""
    return examples_at(_chosen(result), codec)


def examples_at(places: Iterable[tuple[str, int, str]], codec: Codec) -> list[Example]:
    """Return the rows at (shard, row, why) with their tokens aligned, a few at most.

    A row that can't be read or judged again is left out; the audit's findings say what is wrong with it.
    """
    from contracts.align import align
    from contracts.formats import format_named
    from contracts.rules.fidelity import judge_row
    from harness.commands.diff import stored_row
    from harness.report.audit_html import Example

    out: list[Example] = []
    for shard, row, why in places:
        if len(out) == EXAMPLES:
            break
        try:
            stored, name = stored_row(Path(shard), str(row))
            fmt = format_named(name)
            if fmt is None or not stored["response_token_ids"]:
                continue
            judgement = judge_row(stored, fmt, codec)
            lines = align(stored["response_token_ids"], judgement, codec)
        except (ShardgateError, OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
        if all(line.same for line in lines) and not judgement.losses:
            continue  # the row broke a rule that its tokens don't show
        out.append(Example(shard, row, str(stored["sample_id"]), why, judgement, lines))
    return out


def _chosen(result: AuditResult) -> Iterator[tuple[str, int, str]]:
    """Yield (shard, row, why): the first row of each rule that is an error, then of each loss."""
    seen: set[tuple[str, int]] = set()
    rules: set[str] = set()
    for found in result.findings:
        if found.severity is Severity.ERROR and found.row is not None and found.rule not in rules:
            rules.add(found.rule)
            if (found.shard, found.row) not in seen:
                seen.add((found.shard, found.row))
                yield found.shard, found.row, f"the rule {found.rule}: {found.message}"
    for loss, places in result.stats.get("examples", {}).items():
        for shard, row in places[:1]:
            if (shard, row) not in seen:
                seen.add((shard, row))
                yield shard, row, f"the loss {loss}"
