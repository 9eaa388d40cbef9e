"""Rules about the parts of messages and calls: each stands where its role has it, and nothing is unheard of.

Place in the flow: rules. Imports registry and structural of `contracts`; polars while a check runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from contracts.records import Profile, Severity
from contracts.rules.registry import Batch, Context, Hit, Row, RuleSpec, bulk, column, row_check
from contracts.rules.structural import parse

if TYPE_CHECKING:
    import polars as pl

CALL_KEYS = frozenset({"id", "type", "index", "function", "name", "arguments"})
EMPTY_CALLS = ("", "[]", "null")


@bulk(
    RuleSpec(
        "message-fields",
        "a message has reasoning, calls or a call's id that its role does not have",
        "put reasoning and calls on the assistant's messages, `tool_call_id` on the tool's",
        column="messages",
        kind="quality",
        report="Automodel's ShareGPT converter drops reasoning and calls; templates render them by role",
        severities={Profile.SFT: Severity.ERROR},
        message="messages {places}",
    ),
    seen=lambda ctx: {"places": column("messages").list.eval(_places()).list.drop_nulls().list.join(", ")},
)
def message_fields(ctx: Context) -> pl.Expr:
    """Hold where only the assistant reasons and calls, and only the tool answers a call."""
    return ~column("messages").list.eval(_misplaced()).list.any().fill_null(False)


def _misplaced() -> pl.Expr:
    import polars as pl

    part = pl.element().struct.field
    said = part("reasoning_content").fill_null("") != ""
    called = ~part("tool_calls").fill_null("").is_in(list(EMPTY_CALLS))
    answers = part("tool_call_id").fill_null("") != ""
    role = part("role")
    return ((role != "assistant") & (said | called)) | ((role != "tool") & answers)


def _places() -> pl.Expr:
    import polars as pl

    at = pl.int_range(pl.len()).cast(pl.String)
    return pl.when(_misplaced()).then(
        pl.concat_str([at, pl.lit(" ("), pl.element().struct.field("role"), pl.lit(")")])
    )


_OWN_KEY = r'[{,]\s*"(?:id|type|index|function|name|arguments)"\s*:'
_ANY_KEY = r'[{,]\s*"(?:[^"\\]|\\.)*"\s*:'
"""Inside the text of arguments each quote has a backslash before it, so that no key is found there."""


def _odd_calls(batch: Batch, ctx: Context) -> pl.Series:
    """Return the rows whose calls have a key besides their own; some more than those that do."""
    import polars as pl

    left = pl.element().struct.field("tool_calls").str.replace_all(_OWN_KEY, "").str.contains(_ANY_KEY)
    return batch.frame.select(column("messages").list.eval(left.fill_null(False)).list.any()).to_series()


@row_check(
    RuleSpec(
        "call-keys",
        "a tool call has keys that the wire's form lacks",
        "store calls as the server sent them: id, type, index, function with name and arguments",
        column="tool_calls",
        kind="quality",
        report="SpecForge#429, axolotl#3136: types that differ per row",
    ),
    suspects=_odd_calls,
)
def call_keys(row: Row, ctx: Context) -> Iterator[Hit]:
    """Check the keys of every call of the conversation."""
    texts = [(message or {}).get("tool_calls") for message in row["messages"] or ()]
    for index, text in enumerate(texts):
        calls = parse(text) if text else None
        for call in calls if isinstance(calls, list) else ():
            if not isinstance(call, Mapping):
                continue
            function = call.get("function")
            inner = set(function) if isinstance(function, Mapping) else set()
            odd = sorted({*call, *inner} - CALL_KEYS)
            if odd:
                yield "call-keys", None, f"message {index}: {', '.join(map(repr, odd))[:120]}"
                break
