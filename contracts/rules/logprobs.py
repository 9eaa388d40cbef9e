"""Rules about log-probabilities that no engine measured: one value for all tokens, or a stand-in.

Place in the flow: rules. Imports the registry; polars while a check runs. That they are finite, at most 0 and
one a token is `logprobs-bad`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.rules.registry import Context, RuleSpec, bulk, column

if TYPE_CHECKING:
    import polars as pl

STAND_IN = -1000.0
"""No sampled token is as unlikely; vLLM writes -9999 for minus infinity."""
ALIKE = 8
"""Values of this many tokens are never one and the same number by chance, but for 0."""
SURE = 32
"""Tokens that a model may be sure of to the last bit, one after the other."""


@bulk(
    RuleSpec(
        "logprobs-stand-in",
        "the log-probabilities are one value for all tokens, or hold a stand-in for a missing one",
        "record them again or leave the column null; ratios of such numbers mean nothing",
        column="output_logprobs",
        report="vLLM writes -9999 for minus infinity",
        strengths=("token",),
        message="{count} values from {low} to {high}",
    ),
    seen=lambda ctx: _seen(),
)
def logprobs_stand_in(ctx: Context) -> pl.Expr:
    """Hold where the values are absent, or differ and are what a sampled token may have."""
    values = column("output_logprobs").list
    same = (values.len() >= ALIKE) & (values.min() == values.max()) & (values.max() != 0)
    return ~(same | (values.min() <= STAND_IN)).fill_null(False)


@bulk(
    RuleSpec(
        "logprobs-zero",
        "all log-probabilities of a long response are 0: each token was certain",
        "record them again, or leave the column null; a forced or looping response may be so",
        column="output_logprobs",
        kind="quality",
        strengths=("token",),
        message="{count} values from {low} to {high}",
    ),
    seen=lambda ctx: _seen(),
)
def logprobs_zero(ctx: Context) -> pl.Expr:
    """Hold where a response of some length has a value other than 0, or its tokens were forced."""
    values = column("output_logprobs").list
    zero = (values.len() >= SURE) & (values.min() == 0) & (values.max() == 0)
    return column("constraint").is_not_null() | ~zero.fill_null(False)


def _seen() -> dict[str, pl.Expr]:
    values = column("output_logprobs").list
    return {"count": values.len(), "low": values.min(), "high": values.max()}
