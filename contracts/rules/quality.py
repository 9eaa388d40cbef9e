"""Quality rules over whole columns: loops, thinking without an end, markers in text, loss behind the cut.

Place in the flow: rules. Imports registry, reasoning and mask helpers; polars and numpy while a check runs. A
row that breaks one of these is what the model said, and one may not want it: most are rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.records import Profile, Severity
from contracts.rules.registry import RATE_BUT_SFT, Context, RuleSpec, blank, bulk

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

BLOCK = 32
"""Tokens that are compared at once when loops are looked for."""
NEEDED = 4
"""How many tokens of a block must be seen a second time: the longest pattern is a block less this."""
PAIRS_AT_ONCE = 4096
"""Places and periods that are looked at together."""


def _raw() -> pl.Expr:
    import polars as pl

    return pl.col("sampling_params").str.contains(r'"mode":\s*"raw"')


def _finished() -> pl.Expr:
    import polars as pl

    return pl.col("finish_reason").is_in(["stop", "tool_calls"])


@bulk(
    RuleSpec(
        "repetition-loop",
        "the response repeats a few tokens over and over",
        "nothing, where the model really looped; many such rows raise a drafter's acceptance artificially",
        column="response_token_ids",
        kind="quality",
        report="tokenspeed#1305",
        severities=RATE_BUT_SFT,
        strengths=("token",),
    )
)
def repetition_loop(ctx: Context) -> pl.Expr:
    """Hold where no pattern of a few tokens is repeated over the threshold's number of tokens."""
    import polars as pl

    return pl.col("response_token_ids").map_batches(
        lambda ids: ~looping(ids, ctx.thresholds.loop_tokens), return_dtype=pl.Boolean
    )


def looping(ids: pl.Series, loop_tokens: int) -> pl.Series:
    """Return per row (rows,) whether its ids hold a loop of at least `loop_tokens` tokens.

    Blocks at a stride are compared with themselves, shifted by each period: a loop covers a whole block
    wherever it begins. Only where a block repeats itself are the tokens around it looked at, for that period.
    """
    import numpy as np
    import polars as pl

    flat = ids.explode(empty_as_null=False, keep_nulls=False).to_numpy()
    ends = ids.list.len().fill_null(0).cum_sum().to_numpy().astype(np.int64)
    size = min(BLOCK, max(loop_tokens // 2, NEEDED * 2))
    stride = max(loop_tokens - size, 1)
    found = np.zeros(len(ids), dtype=bool)
    if len(flat) < size:
        return pl.Series(ids.name, found)
    if flat.dtype != np.int32:  # nulls among the ids: each is another number, equal to none
        flat = np.unique(flat, return_inverse=True, equal_nan=False)[1].astype(np.int32)
    flat = np.ascontiguousarray(flat)
    blocks = np.lib.stride_tricks.sliding_window_view(flat, size)[::stride]
    periods = size - NEEDED
    # Two tokens at a time, as one number: few places are left to look at one by one.
    pairs = np.ndarray((len(blocks), periods + 1), np.int64, flat, strides=(4 * stride, 4))
    at, period = np.divmod(np.flatnonzero(pairs[:, :1] == pairs[:, 1:]), periods)
    period += 1
    for place in range(2, size - 1):
        inside = np.minimum(place + period, size - 1)
        keep = (place + period >= size) | (blocks[at, place] == blocks[at, inside])
        at, period = at[keep], period[keep]
    rows = np.searchsorted(ends, at * stride, side="right")
    starts = np.concatenate([[0], ends])
    while len(at):
        some = slice(0, PAIRS_AT_ONCE)
        bounds = starts[rows[some]], starts[rows[some] + 1]
        longest = _run_around(flat, at[some] * stride, period[some], *bounds, loop_tokens)
        found[rows[some][longest >= loop_tokens]] = True
        left = np.flatnonzero(~found[rows[PAIRS_AT_ONCE:]]) + PAIRS_AT_ONCE
        at, period, rows = at[left], period[left], rows[left]
    return pl.Series(ids.name, found)


def _run_around(
    flat: np.ndarray,
    place: np.ndarray,
    period: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    reach: int,
) -> np.ndarray:
    """Return the length of the part around each place (n,) that has the period, within `reach` each way.

    `start` and `end` (n,) bound the row that the place is in.
    """
    import numpy as np

    here = place[:, None] + np.arange(-reach, reach)
    there = here + period[:, None]
    inside = (here >= start[:, None]) & (there < end[:, None])
    last = len(flat) - 1
    same = inside & (flat[here.clip(0, last)] == flat[there.clip(0, last)])
    stop = np.zeros((len(place), 1), dtype=bool)
    after = np.argmin(np.hstack([same[:, reach:], stop]), axis=1)
    before = np.argmin(np.hstack([same[:, reach - 1 :: -1], stop]), axis=1)
    longest: np.ndarray = after + before + period
    return longest


@bulk(
    RuleSpec(
        "reasoning-unclosed",
        "the model ended by itself and never closed its thinking",
        "nothing, where the model really did so; the answer is missing in such rows",
        column="reasoning_content",
        kind="quality",
        report="trl#6363, NeMo-Skills#1390",
        severities=RATE_BUT_SFT,
    )
)
def reasoning_unclosed(ctx: Context) -> pl.Expr:
    """Hold where the response was cut, closed its thinking, called a tool, or did not think."""
    import polars as pl

    fmt = ctx.format
    if fmt is None or not fmt.closer:
        return pl.lit(True)
    text = pl.coalesce("response_text_raw", "content").fill_null("")
    begun = pl.lit(True) if fmt.opener_prefilled else text.str.contains(fmt.opener, literal=True)
    parsed_away = (
        ~_raw() & pl.col("response_text_raw").is_null() & (~blank("content") | blank("reasoning_content"))
    )
    thought = (pl.col("thinking_mode") != "instant") & _finished() & begun
    closed = text.str.contains(fmt.closer, literal=True)
    return ~thought | closed | parsed_away | ~blank("tool_calls")


@bulk(
    RuleSpec(
        "answer-empty",
        "the response ended by itself with neither an answer nor a call",
        "nothing, where the model really said nothing",
        column="content",
        kind="quality",
        report="sglang#23341",
        severities=RATE_BUT_SFT,
    )
)
def answerblank(ctx: Context) -> pl.Expr:
    """Hold where the response was cut, or has an answer or a call."""
    return ~_finished() | ~blank("content") | ~blank("tool_calls")


@bulk(
    RuleSpec(
        "marker-in-text",
        "reasoning or content holds the text of one of the format's markers",
        "nothing, where the text is about the marker; templates and parsers may cut such a text",
        column="content",
        kind="quality",
        report="sglang#35083, sglang#39583",
        severities=RATE_BUT_SFT,
    )
)
def marker_in_text(ctx: Context) -> pl.Expr:
    """Hold where neither field of a parsed response mentions a marker; a raw one holds its own."""
    import polars as pl

    texts = [*(ctx.format.markers if ctx.format else ()), *(ctx.format.end_tokens if ctx.format else ())]
    if not texts:
        return pl.lit(True)
    fields = [
        pl.col(name).str.contains_any(texts).fill_null(False) for name in ("reasoning_content", "content")
    ]
    return _raw() | ~pl.any_horizontal(fields)


@bulk(
    RuleSpec(
        "loss-behind-cut",
        "too few tokens with loss are left when the trainer has cut the row to its maximum length",
        "raise the trainer's maximum length, or leave such rows out",
        column="loss_mask",
        kind="quality",
        report="verl#785, trl#6668",
        strengths=("token",),
        message="{left} tokens with loss are left",
    ),
    seen=lambda ctx: {"left": _ones_before(ctx.thresholds.max_length)},
)
def loss_behind_cut(ctx: Context) -> pl.Expr:
    """Hold where enough tokens with loss lie before the trainer's cut, if it has one."""
    import polars as pl

    limit = ctx.thresholds.max_length
    if not limit:
        return pl.lit(True)
    return _ones_before(limit) >= ctx.thresholds.min_loss_tokens


def _ones_before(limit: int) -> pl.Expr:
    """Return how many tokens with loss stand before a limit in tokens, prompt included."""
    import polars as pl

    prompt = pl.col("prompt_token_ids").list.len().cast(pl.Int64)
    response = pl.col("response_token_ids").list.len().cast(pl.Int64)
    start = pl.element().struct.field("start").cast(pl.Int64)
    end = start + pl.element().struct.field("length").cast(pl.Int64)
    inside = end.clip(upper_bound=limit) - start.clip(upper_bound=limit)
    whole = pl.min_horizontal(response, pl.lit(limit) - prompt).clip(lower_bound=0)
    return (
        pl.when(pl.col("loss_mask").is_null())
        .then(whole)
        .otherwise(pl.col("loss_mask").list.eval(inside).list.sum())
    )


@bulk(
    RuleSpec(
        "loss-scattered",
        "no run of neighbouring tokens with loss is long enough for the trainer",
        "leave such rows out, or lower the threshold",
        column="loss_mask",
        kind="quality",
        report="DFlash needs two adjacent ones",
        strengths=("token",),
        message="the longest run has {longest} tokens",
    ),
    seen=lambda ctx: {"longest": _longest_span()},
)
def loss_scattered(ctx: Context) -> pl.Expr:
    """Hold where the longest span has the threshold's number of tokens."""
    return _longest_span() >= ctx.thresholds.min_adjacent_loss_tokens


def _longest_span() -> pl.Expr:
    import polars as pl

    spans = pl.col("loss_mask").list.eval(pl.element().struct.field("length")).list.max().cast(pl.Int64)
    response = pl.col("response_token_ids").list.len().cast(pl.Int64)
    return pl.when(pl.col("loss_mask").is_null()).then(response).otherwise(spans)


@bulk(
    RuleSpec(
        "sampling-unrecorded",
        "the request did not set a parameter that the tokens' distribution depends on",
        "set it in the request, so that the row says it; else the model's own default held",
        column="sampling_params",
        kind="quality",
        severities=dict.fromkeys(Profile, Severity.RATE),
        message="not set: {missing}",
    ),
    seen=lambda ctx: {"missing": _unset(ctx)},
)
def sampling_unrecorded(ctx: Context) -> pl.Expr:
    """Hold where the request's parameters name all that the thresholds require."""
    import polars as pl

    told = [_sets(name) for name in ctx.thresholds.required_sampling]
    return pl.all_horizontal([pl.lit(True), *told])


def _sets(name: str) -> pl.Expr:
    import json

    import polars as pl

    return pl.col("sampling_params").str.contains(f"{json.dumps(name)}:", literal=True)


def _unset(ctx: Context) -> pl.Expr:
    import polars as pl

    named = [pl.when(~_sets(name)).then(pl.lit(name)) for name in ctx.thresholds.required_sampling]
    return pl.concat_str([*named, pl.lit("")], separator=" ", ignore_nulls=True).str.strip_chars()
