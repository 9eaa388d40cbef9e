"""A replayed bank as text: each changed case with what was recorded, what was measured, and how to accept it.

Place in the flow: last; the command and the suite print it. Imports the outcomes and the text helpers.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from harness.outcomes import BankOutcome
from harness.report.text import safe

SHOWN = 400
"""Characters of a case's texts that are shown."""


def difference(outcome: BankOutcome) -> str:
    """Return what changed in one case, and the command that accepts it."""
    recorded = "never recorded"
    if outcome.recorded_verdict is not None:
        recorded = _said(outcome.recorded_verdict, outcome.recorded_losses or ())
    was, now = set(outcome.recorded_losses or ()), set(outcome.losses)
    lines = [
        f"{outcome.name} ({outcome.format}{', streamed' if outcome.streamed else ''})",
        f"  - recorded  {recorded}  (SGLang {outcome.recorded_version or '?'})",
        f"  + measured  {_said(outcome.verdict, outcome.losses)}  (SGLang {outcome.version})",
    ]
    for word, names in (("gone", was - now), ("new", now - was)):
        if outcome.recorded_verdict is not None and names:
            lines.append(f"    {word + ':':<9} {', '.join(sorted(names))}")
    lines.append(f"    generated {safe(outcome.raw_text, SHOWN)}")
    lines.append(f"    rebuilt   {safe(outcome.rebuilt_text, SHOWN)}")
    lines += [f"    {safe(detail, SHOWN)}" for detail in outcome.details]
    lines.append(f"  accept it:  shardgate bank --accept {shlex.quote(outcome.name)}")
    return "\n".join(lines)


def _said(verdict: str, losses: Sequence[str]) -> str:
    return f"{verdict}: {', '.join(losses)}" if losses else str(verdict)


def summary(outcomes: Sequence[BankOutcome], *, accepted: bool = False) -> str:
    """Return the replay's last line."""
    changed = sum(outcome.changed for outcome in outcomes)
    if accepted:
        return f"{changed} cases accepted" if changed != 1 else "1 case accepted"
    version = f" on SGLang {outcomes[0].version}" if outcomes else ""
    return f"{len(outcomes)} cases replayed{version}, {changed or 'none'} changed"
