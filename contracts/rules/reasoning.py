"""Reasoning rules: the template switch, and what is odd about the thinking.

Place in the flow: rules. Imports formats and registry of `contracts`; polars while a check runs. That the
fields agree with the markers in the ids is judged in `contracts.rules.fidelity`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from contracts.formats import FORMATS
from contracts.records import ThinkingMode
from contracts.rules.registry import RATE_BUT_SFT, Context, Hit, Row, RuleSpec, blank, bulk, row_check
from contracts.rules.structural import parse

if TYPE_CHECKING:
    import polars as pl


@row_check(
    RuleSpec(
        "template-switch",
        "the template switch that was sent is not the one that the template reads, or says the other mode",
        "send the format's own switch in `chat_template_kwargs`; a wrong one is ignored silently",
        column="template_kwargs",
    ),
    reads=("template_kwargs", "thinking_mode"),
)
def template_switch(row: Row, ctx: Context) -> Iterator[Hit]:
    """Check the switch's name against the format's, and its value against the thinking mode."""
    fmt, kwargs = ctx.format, parse(row["template_kwargs"])
    if fmt is None or not isinstance(kwargs, Mapping):
        return
    others = {other.template_switch for other in FORMATS.values()} - {fmt.template_switch}
    wrong = sorted(others.intersection(kwargs))
    if wrong:
        yield (
            "template-switch",
            None,
            f"`{wrong[0]}` was sent, the template of {fmt.name} reads `{fmt.template_switch}`",
        )
        return
    asked, mode = kwargs.get(fmt.template_switch), row["thinking_mode"]
    if asked is not None and not isinstance(asked, bool):
        yield "template-switch", None, f"`{fmt.template_switch}` is {asked!r}, not true or false"
        return
    if not fmt.template_switch or (mode == ThinkingMode.INSTANT) == (
        fmt.asked(kwargs) is ThinkingMode.INSTANT
    ):
        return
    value = "false" if mode == ThinkingMode.INSTANT else "true"
    said = f"was sent as {str(asked).lower()}" if asked is not None else f"was not sent as {value}"
    yield "template-switch", None, f"mode {mode}, but `{fmt.template_switch}` {said}"


@bulk(
    RuleSpec(
        "reasoning-empty",
        "a row in thinking mode has an answer and no reasoning",
        "nothing, where the model really did not think: dropping such rows biases a drafter",
        column="reasoning_content",
        kind="quality",
        severities=RATE_BUT_SFT,
    )
)
def reasoning_empty(ctx: Context) -> pl.Expr:
    """Hold where a parsed response in thinking mode has reasoning, or was cut before any."""
    import polars as pl

    if ctx.format is not None and not ctx.format.thinks:
        return pl.lit(True)
    raw = pl.col("sampling_params").str.contains('"mode":"raw"', literal=True)
    return raw | (pl.col("thinking_mode") == "instant") | ~blank("reasoning_content")


@bulk(
    RuleSpec(
        "cut-by-length",
        "the response was cut by the token limit",
        "raise `max_tokens`, or keep them: a drafter must learn long answers too",
        column="finish_reason",
        kind="quality",
        report="speculators#835",
        severities=RATE_BUT_SFT,
    )
)
def cut_by_length(ctx: Context) -> pl.Expr:
    """Hold where the response was not cut."""
    import polars as pl

    return pl.col("finish_reason") != "length"


@bulk(
    RuleSpec(
        "aborted",
        "the request was aborted",
        "generate these rows again",
        column="finish_reason",
        kind="quality",
    )
)
def aborted(ctx: Context) -> pl.Expr:
    """Hold where the response was not aborted."""
    import polars as pl

    return pl.col("finish_reason") != "abort"
