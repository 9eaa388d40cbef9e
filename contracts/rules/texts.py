"""Rules of rows whose text is all there is: thinking inside the answer, and rows mended on an assumption.

Place in the flow: rules. Imports losses and registry of `contracts`; polars while a check runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.losses import ASSUMED
from contracts.rules.registry import Context, RuleSpec, bulk, column

if TYPE_CHECKING:
    import polars as pl


@bulk(
    RuleSpec(
        "thinking-in-content",
        "the content holds the end of the thinking, and the reasoning is empty",
        "generate these rows again from a server with `--reasoning-parser`; or split them by "
        "`shardgate repair --assume opener-missing`, which marks them",
        column="content",
        report="the seed case; smg#1873",
        strengths=("text",),
        message="content begins {begins}",
    ),
    seen=lambda ctx: {"begins": column("content").str.slice(0, 40)},
)
def thinking_in_content(ctx: Context) -> pl.Expr:
    """Hold where no closer stands in a parsed answer without reasoning; an instant answer may mention one."""
    import polars as pl

    closer = ctx.format.closer if ctx.format else ""
    if not closer:
        return pl.lit(True)
    raw = column("sampling_params").str.contains('"mode":"raw"', literal=True)
    thought = column("reasoning_content").fill_null("").str.strip_chars() != ""
    said = column("content").str.contains(closer, literal=True).fill_null(False)
    return raw | thought | (column("thinking_mode") == "instant") | ~said


@bulk(
    RuleSpec(
        "mended-on-assumption",
        "the row's fields were mended on an assumption that nothing proves",
        "generate these rows again; where they are wanted as they are, waive the rule, and the certificate "
        "keeps the reason",
        column="losses",
        message="losses {losses}",
    ),
    seen=lambda ctx: {"losses": column("losses").list.join(", ")},
)
def mended_on_assumption(ctx: Context) -> pl.Expr:
    """Hold where no loss of the row is an assumption that `shardgate repair` made."""
    import polars as pl

    return ~column("losses").list.eval(pl.element().is_in(sorted(ASSUMED))).list.any().fill_null(False)
