"""The rule that calls' arguments fit the schema that the request declared for the tool.

Place in the flow: rules. Imports the registry; jsonschema and polars while a check runs. Only rows with calls
are looked at, and each distinct pair of tools and calls once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from contracts.rules.registry import Context, RuleSpec, bulk

if TYPE_CHECKING:
    import polars as pl


@bulk(
    RuleSpec(
        "arguments-off-schema",
        "a call's arguments do not fit the schema that the tool declares",
        "nothing, where the model really said so",
        column="tool_calls",
        kind="quality",
        report="sglang#12932",
        message="{told}",
    ),
    seen=lambda ctx: {"told": _told()},
)
def arguments_off_schema(ctx: Context) -> pl.Expr:
    """Hold where every call's arguments are what the tool's parameters allow; others tell broken JSON."""
    return _told() == ""


def _told() -> pl.Expr:
    """Return what is wrong with each row's calls, "" where nothing is."""
    import polars as pl

    def look(part: pl.Series) -> pl.Series:
        tools, calls = (part.struct.field(name) for name in ("tools", "tool_calls"))
        out = [""] * len(part)
        for index in (tools.is_not_null() & calls.is_not_null()).arg_true().to_list():
            out[index] = misfit(tools[index], calls[index])
        return pl.Series(out, dtype=pl.String)

    return pl.struct("tools", "tool_calls").map_batches(look, return_dtype=pl.String)


@lru_cache(maxsize=4096)
def misfit(tools: str, calls: str) -> str:
    """Return the first misfit of calls (JSON of the wire) with tools (JSON), "" where there is none."""
    schemas = _schemas(tools)
    for name, arguments in _arguments(calls):
        validator = schemas.get(name)
        if validator is None:
            continue
        try:
            error = next(iter(validator.iter_errors(arguments)), None)
        except Exception as error:  # the declared schema itself is none, or refers to elsewhere
            return f"{name}: the declared schema can't be used: {type(error).__name__}"
        if error is not None:
            return f"{name}: {error.message[:160]}"
    return ""


@lru_cache(maxsize=256)
def _schemas(tools: str) -> dict[str, Any]:
    """Return tool name → validator of its parameters, for the tools that declare an object of them."""
    import jsonschema  # type: ignore[import-untyped]

    value = _parsed(tools)
    out = {}
    for tool in value if isinstance(value, list) else ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("parameters"), dict):
            out[str(function.get("name"))] = jsonschema.Draft202012Validator(function["parameters"])
    return out


def _arguments(calls: str) -> Iterator[tuple[str, Any]]:
    value = _parsed(calls)
    for call in value if isinstance(value, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
            arguments = _parsed(function["arguments"])
            if isinstance(arguments, dict):
                yield str(function.get("name")), arguments


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
