"""Rates over the whole set: how many rows, caps on what rules and verdicts count, drift from a stored set.

Place in the flow: rules; the audit asks once, when every row has been read. Imports registry and given. A
rate is the share of rows that broke a rule, or that have a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from contracts.given import Rates
from contracts.records import Profile, Verdict
from contracts.rules.registry import RULES, RuleSpec, Strength, declare, severity_of
from contracts.rules.tape import Hits
from contracts.thresholds import Thresholds

declare(
    RuleSpec(
        "few-rows",
        "the set has fewer rows than it should",
        "look for shards that are missing, or lower `min_rows` in the thresholds",
        scope="set",
        kind="quality",
        report="DeepSpec#29, SpecForge resume",
    ),
    RuleSpec(
        "rate-over-cap",
        "more of the set's rows than the cap allows break a rule or have a verdict",
        "look at the first such rows; find the cause, or raise the cap in the thresholds' [caps]",
        scope="set",
        kind="quality",
        report="speculators#835, tokenspeed#1305",
    ),
    RuleSpec(
        "rate-drift",
        "a rate differs from the stored set's by more than chance and the least change that matters",
        "find what changed between the runs: server flags, sampling, prompts, template",
        scope="set",
        kind="quality",
        report="speculators#835",
    ),
)


def counted(rules: Iterable[str], rows: int, broken: Mapping[str, int], verdicts: Mapping[str, int]) -> Rates:
    """Return a set's rates: each of the rules and each verdict with its number of rows, zeros included.

    `rules` are those that were checked (`checked_rules`): a later set must not be held against a zero that
    nobody measured. `broken` counts rows by broken rule.
    """
    counts = {rule: min(broken.get(rule, 0), rows) for rule in rules}
    return Rates(rows, {**counts, **{str(verdict): verdicts.get(verdict, 0) for verdict in Verdict}})


def checked_rules(
    profile: Profile, strength: Strength, thresholds: Thresholds, *, with_tokenizer: bool
) -> list[str]:
    """Return the rules of the rows that an audit checks, sorted."""
    return sorted(
        rule
        for rule, spec in RULES.items()
        if spec.scope == "row"
        and strength in spec.strengths
        and (with_tokenizer or not spec.needs_tokenizer)
        and severity_of(spec, profile, thresholds) is not None
    )


def check_rates(rates: Rates, thresholds: Thresholds, stored: Rates | None = None) -> Hits:
    """Return the hits of a set's rates: too few rows, caps that are broken, drift from a stored set."""
    hits: Hits = []
    if rates.rows < thresholds.min_rows:
        hits.append(("few-rows", "", None, None, f"{rates.rows} rows, at least {thresholds.min_rows} wanted"))
    if rates.rows < thresholds.rate_min_rows:
        return hits
    for name, cap in sorted(thresholds.caps.items()):
        count = rates.counts.get(name, 0)
        if count > cap * rates.rows:
            told = f"{name}: {count} of {rates.rows} rows ({100 * count / rates.rows:.3g} %)"
            hits.append(("rate-over-cap", "", None, None, f"{told}, the cap is {100 * cap:.3g} %"))
    if stored is None or stored.rows < thresholds.rate_min_rows:
        return hits
    for name in sorted(set(rates.counts) & set(stored.counts)):
        now, then = rates.counts[name] / rates.rows, stored.counts[name] / stored.rows
        z = z_score(rates.counts[name], rates.rows, stored.counts[name], stored.rows)
        if abs(now - then) >= thresholds.drift_min_change and abs(z) >= thresholds.drift_min_z:
            told = (
                f"{name}: {100 * now:.3g} % of {rates.rows} rows, stored {100 * then:.3g} % of {stored.rows}"
            )
            hits.append(("rate-drift", "", None, None, f"{told} (z = {z:.1f})"))
    return hits


def z_score(count: int, rows: int, other_count: int, other_rows: int) -> float:
    """Return how many standard errors two proportions differ by: the pooled two-proportion z test."""
    pooled = (count + other_count) / (rows + other_rows)
    error = math.sqrt(pooled * (1 - pooled) * (1 / rows + 1 / other_rows))
    return (count / rows - other_count / other_rows) / error if error else 0.0
