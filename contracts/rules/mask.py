"""Mask rules: where the loss falls. Spans are (start, length) over prompt + response, never shifted.

Place in the flow: rules. Imports the registry; polars while a check runs. That a mask over an earlier turn
covers exactly what was generated there is a data-set rule, since it needs the parent's row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.rules.registry import Context, RuleSpec, bulk

if TYPE_CHECKING:
    import polars as pl

_DERIVE = "derive the mask again from the token ids: 0 over the prompt, 1 over the response"


def _part(name: str) -> pl.Expr:
    import polars as pl

    return pl.col("loss_mask").list.eval(pl.element().struct.field(name))


def _lengths() -> tuple[pl.Expr, pl.Expr]:
    import polars as pl

    return pl.col("prompt_token_ids").list.len(), pl.col("response_token_ids").list.len()


@bulk(
    RuleSpec(
        "mask-bounds",
        "the mask's spans are empty, out of order, overlapping or past the tokens' end",
        _DERIVE,
        column="loss_mask",
        report="Megatron-Bridge#3359, marin#7237",
        strengths=("token",),
        message="starts {starts}, lengths {lengths}, {tokens} tokens",
    ),
    seen=lambda ctx: {
        "starts": _part("start").cast(_text_list()).list.join(","),
        "lengths": _part("length").cast(_text_list()).list.join(","),
        "tokens": _lengths()[0] + _lengths()[1],
    },
)
def mask_bounds(ctx: Context) -> pl.Expr:
    """Hold where spans are sorted, disjoint, not empty and inside the tokens."""
    import polars as pl

    prompt, response = _lengths()
    ends = pl.col("loss_mask").list.eval(
        pl.element().struct.field("start").cast(pl.Int64) + pl.element().struct.field("length")
    )
    apart = pl.col("loss_mask").list.eval(
        (
            pl.element().struct.field("start").cast(pl.Int64)
            - (pl.element().struct.field("start").cast(pl.Int64) + pl.element().struct.field("length")).shift(
                1
            )
        )
        >= 0
    )
    return pl.col("loss_mask").is_null() | (
        (_part("start").list.min() >= 0)
        & (_part("length").list.min() > 0)
        & (ends.list.max() <= (prompt + response).cast(pl.Int64))
        & apart.list.drop_nulls().list.all()
    ).fill_null(False)


def _text_list() -> pl.DataType:
    import polars as pl

    return pl.List(pl.String)


@bulk(
    RuleSpec(
        "mask-span",
        "the mask does not cover exactly the generated response",
        _DERIVE,
        column="loss_mask",
        report="SpecForge#885 (shifted by one), Automodel#3024 (user tokens), Automodel#3738 (tags)",
        strengths=("token",),
        message="the last span is ({start}, {length}); the response is ({prompt}, {response})",
    ),
    seen=lambda ctx: {
        "start": _part("start").list.last(),
        "length": _part("length").list.last(),
        "prompt": _lengths()[0],
        "response": _lengths()[1],
    },
)
def mask_span(ctx: Context) -> pl.Expr:
    """Hold where the mask is the boundary mask, or its last span is the whole response.

    Earlier spans are declared turns: they need a parent row, and `mask-turn` checks them against it.
    """
    import polars as pl

    prompt, response = _lengths()
    whole = (_part("start").list.last() == prompt) & (_part("length").list.last() == response)
    declared = (pl.col("loss_mask").list.len() == 1) | pl.col("parent_sample_id").is_not_null()
    return pl.col("loss_mask").is_null() | (whole & declared).fill_null(False)


@bulk(
    RuleSpec(
        "few-loss-tokens",
        "fewer tokens carry loss than a trainer needs",
        "leave such rows out, or lower the threshold",
        column="loss_mask",
        kind="quality",
        report="SpecForge drops them silently; DFlash needs two adjacent ones",
        strengths=("token",),
        message="{ones} tokens carry loss",
    ),
    seen=lambda ctx: {"ones": _ones()},
)
def few_loss_tokens(ctx: Context) -> pl.Expr:
    """Hold where at least the threshold's number of tokens carry loss."""
    return _ones() >= ctx.thresholds.min_loss_tokens


def _ones() -> pl.Expr:
    import polars as pl

    return (
        pl.when(pl.col("loss_mask").is_null())
        .then(pl.col("response_token_ids").list.len().cast(pl.Int64))
        .otherwise(_part("length").list.sum().cast(pl.Int64))
    )
