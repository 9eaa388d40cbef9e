"""Tool rules: calls are JSON of the wire's form, tools are declared, ids and results match one to one.

Place in the flow: rules. Imports registry and structural helpers of `contracts`. That the calls in the fields
are the calls in the ids is judged in `contracts.rules.fidelity`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from contracts.rules.registry import Batch, Context, Hit, Row, RuleSpec, row_check
from contracts.rules.structural import BAD, parse

if TYPE_CHECKING:
    import polars as pl

_RECORD = "record the rows again; calls are stored as the wire's own JSON text"


def _with_calls(batch: Batch, ctx: Context) -> pl.Series:
    from contracts.rules.matched_calls import odd_calls

    return odd_calls(batch)


@row_check(
    RuleSpec(
        "calls-not-json",
        "tool calls are not a JSON list of functions whose arguments are strings",
        _RECORD,
        column="tool_calls",
        report="SpecForge#429, axolotl#3136",
    ),
    RuleSpec(
        "tools-missing",
        "there are tool calls, but the row declares no tools",
        "store the tools that the request declared; a template renders another prompt without them",
        column="tools",
        report="sglang#39583",
    ),
    RuleSpec(
        "call-ids",
        "tool call ids are missing or used twice, or results do not match the calls one to one",
        "repair the conversation: each result names one earlier call, each earlier call has one result",
        column="messages",
        report="sglang#10600",
    ),
    RuleSpec(
        "tool-undeclared",
        "a call names a tool that is not declared",
        "nothing, where the model really said so",
        column="tool_calls",
        kind="quality",
    ),
    RuleSpec(
        "arguments-not-json",
        "a call's arguments are not a JSON object",
        "nothing, where the model really said so",
        column="tool_calls",
        kind="quality",
        report="sglang#34604",
    ),
    suspects=_with_calls,
)
def tool_rules(row: Row, ctx: Context) -> Iterator[Hit]:
    """Check the calls of every message and of the response."""
    messages = row["messages"] or ()
    if not row["tool_calls"] and not any(m["tool_calls"] or m["role"] == "tool" for m in messages):
        return
    known = declared(row["tools"])
    ids: list[str] = []
    open_ids: list[str] = []
    last = len(messages) - 1
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                named = message["tool_call_id"]
                yield "call-ids", None, f"message {index} answers {named!r}, which is no open call"
            else:
                open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            yield "call-ids", None, f"no result for {open_ids[0]!r} before message {index}"
            open_ids = []
        if message["tool_calls"] is None:
            continue
        where = "the response" if index == last else f"message {index}"
        calls = read_calls(message["tool_calls"])
        if calls is None:
            yield (
                "calls-not-json",
                "tool_calls" if index == last else "messages",
                f"{where}: {message['tool_calls'][:80]!r}",
            )
            continue
        if calls and known is None:
            yield "tools-missing", None, f"{where} calls {calls[0][1]!r}"
        for call_id, name, arguments in calls:
            if not call_id or call_id in ids:
                yield "call-ids", None, f"{where}: id {call_id!r} is {'used twice' if call_id else 'missing'}"
            ids.append(call_id)
            if known is not None and name not in known:
                yield "tool-undeclared", None, f"{where} calls {name!r}"
            if not isinstance(_loads(arguments), Mapping):
                yield "arguments-not-json", None, f"{where}: {name} with {arguments[:60]!r}"
        if index != last:
            open_ids = [call_id for call_id, _, _ in calls]


def read_calls(text: str) -> list[tuple[str, str, str]] | None:
    """Return (id, name, arguments) of each call; None where the text is not the wire's form."""
    value = parse(text)
    if value is None:
        return []
    if not isinstance(value, list):
        return None
    out = []
    for call in value:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or call.get("type", "function") != "function":
            return None
        if not isinstance(call.get("index"), int | None):
            return None
        name, arguments = function.get("name"), function.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, str):
            return None
        out.append((str(call.get("id") or ""), name, arguments))
    return out


def declared(tools: str | None) -> set[str] | None:
    """Return the names of the functions that a row's tools declare; None where it declares none."""
    value: Any = None if tools is None else parse(tools)
    if not isinstance(value, list) or value is BAD:
        return None
    names = (tool.get("function", tool) for tool in value if isinstance(tool, Mapping))
    return {str(function.get("name")) for function in names if isinstance(function, Mapping)} or None


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
