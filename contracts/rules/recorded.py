"""Rules over what was recorded beside the tokens: times, weights, the engine's count of reasoning, markers.

Place in the flow: rules. Imports framing's constants and the registry; polars while a check runs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from contracts.framing import PROMPT_TAIL
from contracts.layouts import THINK
from contracts.rules.registry import Context, RuleSpec, bulk, column

if TYPE_CHECKING:
    import polars as pl


@bulk(
    RuleSpec(
        "time-implausible",
        "the time of the generation lies before there were such models, or far ahead of the clock",
        "record times in UTC and in the right unit; seconds, milli- and microseconds get mixed up",
        column="created_at",
        message="created at {time}",
    ),
    seen=lambda ctx: {"time": column("created_at").dt.to_string("iso:strict")},
)
def time_implausible(ctx: Context) -> pl.Expr:
    """Hold where the time lies between the thresholds' first day and some days ahead of the clock."""
    import polars as pl

    first = datetime.fromisoformat(ctx.thresholds.created_after).replace(tzinfo=UTC)
    last = datetime.now(UTC) + timedelta(days=ctx.thresholds.days_ahead)
    return column("created_at").is_between(pl.lit(first), pl.lit(last))


@bulk(
    RuleSpec(
        "weights-mixed",
        "the row's tokens come from several versions of the weights",
        "leave the row out, or split it where the weights changed",
        column="weight_version",
        message="weight version {version}",
    ),
    seen=lambda ctx: {"version": column("weight_version")},
)
def weights_mixed(ctx: Context) -> pl.Expr:
    """Hold where the weight version is one word, not a list of them."""
    return ~column("weight_version").str.contains(r"^\s*\[").fill_null(False)


@bulk(
    RuleSpec(
        "reasoning-count",
        "the engine counted other reasoning tokens than stand before the closer",
        "generate these rows again; the count or the ids belong to another response",
        column="reasoning_tokens",
        strengths=("token",),
        needs_tokenizer=True,
        message="the engine counted {counted}; the closer is token {closer} of {tokens} (0: none)",
    ),
    seen=lambda ctx: {
        "counted": column("reasoning_tokens"),
        "closer": _closer_at(ctx),
        "tokens": column("response_token_ids").list.len(),
    },
)
def reasoning_count(ctx: Context) -> pl.Expr:
    """Hold where nothing was counted, or all tokens up to the first closer were, with or without it.

    SGLang counts the closer in; a response without one is all reasoning, with or without its end token.
    """
    import polars as pl

    counted, fmt = column("reasoning_tokens"), ctx.format
    if fmt is None or fmt.layout is not THINK or not ctx.ids_of([fmt.closer]):
        return pl.lit(True)
    length = column("response_token_ids").list.len().cast(pl.Int64)
    at = _closer_at(ctx)
    least = pl.when(at > 0).then(at - 1).otherwise(length - 1)
    most = pl.when(at > 0).then(at).otherwise(length)
    return (counted.fill_null(0) == 0) | counted.is_between(least, most)


def _closer_at(ctx: Context) -> pl.Expr:
    """Return the place (from 1) of the first closer in the response, 0 where there is none or no count."""
    import polars as pl

    closer = ctx.ids_of([ctx.format.closer if ctx.format else ""])

    def place(part: pl.Series) -> pl.Series:
        # Looked for only where the engine counted: elsewhere nothing depends on it.
        rows = part.struct.field("reasoning_tokens").fill_null(0) > 0
        out = [0] * len(part)
        if closer and rows.any():
            ids = part.struct.field("response_token_ids").filter(rows)
            found = ids.to_frame("ids").select(
                pl.col("ids").list.eval(pl.element().index_of(closer[0])).list.first() + 1
            )
            for index, value in zip(rows.arg_true().to_list(), found.to_series().to_list(), strict=True):
                out[index] = value or 0
        return pl.Series(out, dtype=pl.Int64)

    return pl.struct("reasoning_tokens", "response_token_ids").map_batches(place, return_dtype=pl.Int64)


@bulk(
    RuleSpec(
        "marker-split",
        "the opener that ends the prompt is spelled in ordinary tokens, not by the model's own one",
        "encode the rendered prompt whole, with the model's own tokenizer and its markers as tokens",
        column="prompt_token_ids",
        report="TorchSpec#108",
        strengths=("token",),
        needs_tokenizer=True,
    )
)
def marker_split(ctx: Context) -> pl.Expr:
    """Hold where a prompt with a prefilled opener has the opener's own token among its last ones."""
    import polars as pl

    fmt = ctx.format
    opener = ctx.ids_of([fmt.opener]) if fmt is not None and fmt.opener_prefilled else []
    if not opener:
        return pl.lit(True)
    tail = column("prompt_token_ids").list.tail(PROMPT_TAIL)
    return (column("thinking_mode") == "instant") | tail.list.contains(opener[0])
