"""Whether a user's severities and caps can stand: they name rules, and no fidelity rule is made weaker.

Place in the flow: rules; the audit asks before it begins, when the user's own rules are in the registry.
Imports thresholds and registry.
"""

from __future__ import annotations

from contracts.records import Severity, Verdict
from contracts.rules.registry import RULES
from contracts.thresholds import OFF, Thresholds, ThresholdsError

_WEIGHT = {None: 0, Severity.RATE: 1, Severity.WARNING: 2, Severity.ERROR: 3}


def check_severities(thresholds: Thresholds) -> None:
    """Check the overrides of the severities, and what the caps are over.

    Raises:
        ThresholdsError: one names no rule, or weakens a fidelity rule.
    """
    for name in thresholds.caps:
        if name not in set(Verdict) and (name not in RULES or RULES[name].scope != "row"):
            rows = [rule for rule, spec in sorted(RULES.items()) if spec.scope == "row"]
            raise ThresholdsError(
                f"no rate is named `{name}`",
                where=f"{thresholds.source or 'thresholds'}: caps.{name}",
                why="a rate is the share of rows that break a rule of the rows, or have a verdict",
                remedy=f"the rates are: {', '.join([*Verdict, *rows])}",
            )
    for profile, own in thresholds.severities.items():
        for rule, wanted in own.items():
            key = f"severity.{profile}.{rule}"
            if rule not in RULES:
                raise ThresholdsError(
                    f"no rule is named `{rule}`",
                    where=f"{thresholds.source or 'thresholds'}: {key}",
                    remedy=f"the rules are: {', '.join(sorted(RULES))}",
                )
            spec = RULES[rule]
            least = spec.severity(profile)
            if spec.kind == "fidelity" and _WEIGHT[wanted] < _WEIGHT[least]:
                way = (
                    "it can't be waived either, since it says that the file can't be checked"
                    if spec.scope == "file"
                    else f"waive it, and say why: --waive {rule} --reason TEXT; the certificate keeps both"
                )
                raise ThresholdsError(
                    f"the fidelity rule `{rule}` can't be made `{wanted or OFF}`",
                    where=f"{thresholds.source or 'thresholds'}: {key}",
                    why=f"its severity under the profile {profile} is {least}: {spec.meaning}",
                    remedy=way,
                )
