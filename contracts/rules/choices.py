"""Rules about what the request said of tool calls and adapters, held against what the row has.

Place in the flow: rules. Imports registry and requests of `contracts`; polars while a check runs. Only rows
whose request says anything of the kind are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from contracts.records import Json, Mode
from contracts.rules.registry import (
    Batch,
    Context,
    Hit,
    Row,
    RuleSpec,
    bulk,
    column,
    off_for_test,
    row_check,
)
from contracts.rules.requests import Request, request_of, rows_asking
from contracts.rules.tools import read_calls

if TYPE_CHECKING:
    import polars as pl

FREE = (None, "auto")
"""A tool choice that leaves the model free."""


def _says(request: Request) -> bool:
    return (
        request.get("tool_choice") not in FREE
        or request.get("parallel_tool_calls") is False
        or bool(request.get("lora_path"))
    )


def _choosing(batch: Batch, ctx: Context) -> pl.Series:
    import polars as pl

    return pl.Series(rows_asking(batch, _says))


@row_check(
    RuleSpec(
        "call-unasked",
        "there are tool calls although the request forbade them",
        "take parameters and response from the same request; servers parse no call at `tool_choice: none`",
        column="tool_calls",
        report="sglang 0.5.23 takes the tools out of the prompt at `tool_choice: none`",
    ),
    RuleSpec(
        "call-missing",
        "the request demanded a tool call, and the response that ended by itself has none of the kind",
        "take parameters and response from the same request; look in the server's log for a call that broke",
        column="tool_calls",
        severities=off_for_test(),
    ),
    RuleSpec(
        "calls-several",
        "the response has several tool calls although the request asked for one at most",
        "nothing, where the server does not hold the model to it",
        column="tool_calls",
        kind="quality",
    ),
    RuleSpec(
        "lora-differs",
        "the request named an adapter that the row does not",
        "record the adapter in the column `lora`; the tokens are its own, not the base model's",
        column="lora",
    ),
    suspects=_choosing,
)
def choices_kept(row: Row, ctx: Context) -> Iterator[Hit]:
    """Hold tool choice, number of calls and adapter of one request against its row."""
    request = request_of(row["sampling_params"])
    adapter = request.get("lora_path")
    if isinstance(adapter, str) and adapter and adapter not in (row["lora"] or ""):
        yield "lora-differs", None, f"the request named {adapter!r}, the row {row['lora']!r}"
    choice, calls = request.get("tool_choice"), read_calls(row["tool_calls"] or "null") or []
    names = [name for _, name, _ in calls]
    if choice == "none" and names:
        yield "call-unasked", None, f"it calls {', '.join(names)}"
    if request.get("parallel_tool_calls") is False and len(names) > 1:
        yield "calls-several", None, f"it calls {', '.join(names)}"
    parsed = request.get("mode") == Mode.TOOLS and row["tools"] is not None
    if not parsed or choice in (*FREE, "none") or row["finish_reason"] not in ("stop", "tool_calls"):
        return
    wanted = _named(choice)
    if not names or (wanted is not None and wanted not in names):
        said = ", ".join(names) or "nothing"
        yield "call-missing", None, f"the request demanded {wanted or 'a call'}, it calls {said}"


def _named(choice: Json) -> str | None:
    """Return the function that a tool choice names, None where any will do."""
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


@bulk(
    RuleSpec(
        "finish-calls",
        "the finish reason says that there are calls, and there are none",
        "look in the server's log for a call that broke; take finish reason and fields from one response",
        column="finish_reason",
        kind="quality",
        report="sglang#21377, sglang#25362",
        message="finish reason {finish}, calls {calls}",
    ),
    seen=lambda ctx: {"finish": column("finish_reason"), "calls": column("tool_calls")},
)
def finish_calls(ctx: Context) -> pl.Expr:
    """Hold where a finish reason of `tool_calls` comes with calls; `/generate` says `stop` for both."""
    called = ~column("tool_calls").fill_null("").is_in(["", "[]", "null"])
    return (column("finish_reason") != "tool_calls") | called
