"""Structural rules: nulls, roles, content, the target message, media, JSON columns, closed vocabularies.

Place in the flow: rules. Imports the registry, the shard's schema and the records; polars while a check runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from contracts.records import Mode, ThinkingMode, Transport, Verdict
from contracts.rules.registry import Batch, Context, Hit, Row, RuleSpec, bulk, row_check
from contracts.sampling import impossible

if TYPE_CHECKING:
    import polars as pl

_FIX_EXPORT = "repair the step that wrote the row; the token ids and the capture say what it must be"

ROLE_LETTERS = {"system": "s", "developer": "s", "user": "u", "assistant": "a", "tool": "t"}
ROLE_ORDER = r"^s?(ua(t+a)*)+$"
"""One system message at most, first; each user message answered; tool results only after the assistant."""


@bulk(
    RuleSpec(
        "null-value",
        "a column that may not be null is null",
        _FIX_EXPORT,
        message="null in: {columns}",
        report="NeMo and TRL converters turn a null into the text `None`",
    ),
    seen=lambda ctx: {"columns": _null_names(ctx)},
)
def null_value(ctx: Context) -> pl.Expr:
    """Hold where no required column, element or struct field is null."""
    import polars as pl

    flat = [pl.col(name).is_not_null() for name in required_columns(ctx.strength)]
    lists = [
        ~pl.col(name).list.eval(pl.element().is_null()).list.any().fill_null(False)
        for name in ("prompt_token_ids", "response_token_ids", "losses", "messages")
    ]
    fields = [
        ~pl.col("messages").list.eval(pl.element().struct.field(name).is_null()).list.any().fill_null(False)
        for name in ("role", "content")
    ]
    return pl.all_horizontal([*flat, *lists, *fields])


def _null_names(ctx: Context) -> pl.Expr:
    import polars as pl

    flat = [pl.when(pl.col(name).is_null()).then(pl.lit(name)) for name in required_columns(ctx.strength)]
    inside = pl.when(
        pl.col("messages").list.eval(pl.element().struct.field("content").is_null()).list.any()
    ).then(pl.lit("messages[].content"))
    return pl.concat_str([*flat, inside], separator=", ", ignore_nulls=True)


def required_columns(strength: str) -> list[str]:
    """Return the names of the columns that may not be null at this strength."""
    from contracts.shard import arrow_schema

    return [field.name for field in arrow_schema(strength) if not field.nullable]


def _roles() -> pl.Expr:
    import polars as pl

    return (
        pl.col("messages")
        .list.eval(
            pl.element()
            .struct.field("role")
            .replace_strict(ROLE_LETTERS, default="x", return_dtype=pl.String)
        )
        .list.join("")
    )


@bulk(
    RuleSpec(
        "role-order",
        "the messages' roles do not follow system? (user assistant (tool+ assistant)*)+",
        "split or drop the conversation: trainers cut it at the bad place with a warning only; where yours "
        "reads it whole, `--waive role-order --reason TEXT`",
        column="messages",
        report="SpecForge and TorchSpec cut a conversation at a bad order",
        message="roles in order: {roles} (s system, u user, a assistant, t tool, x other)",
    ),
    seen=lambda ctx: {"roles": _roles()},
)
def role_order(ctx: Context) -> pl.Expr:
    """Hold where the conversation is one that every trainer reads whole and ends with the assistant."""
    return _roles().str.contains(ROLE_ORDER)


def _target(name: str) -> pl.Expr:
    import polars as pl

    return pl.col("messages").list.last().struct.field(name)


@bulk(
    RuleSpec(
        "target-differs",
        "the last message is not what the response's fields say",
        _FIX_EXPORT,
        column="messages",
        report="verl#3960, NeMo-RL#2821",
        message="the target message differs from the fields in: {columns}",
    ),
    seen=lambda ctx: {"columns": _target_differs()},
)
def target_differs(ctx: Context) -> pl.Expr:
    """Hold where content, reasoning and calls of the last message are the row's own; null and "" are one."""
    import polars as pl

    return pl.all_horizontal(
        [
            pl.col(name).fill_null("") == _target(name).fill_null("")
            for name in ("content", "reasoning_content", "tool_calls")
        ]
    )


def _target_differs() -> pl.Expr:
    import polars as pl

    return pl.concat_str(
        [
            pl.when(pl.col(name).fill_null("") != _target(name).fill_null("")).then(pl.lit(name))
            for name in ("content", "reasoning_content", "tool_calls")
        ],
        separator=", ",
        ignore_nulls=True,
    )


def _allowed(ctx: Context) -> dict[str, tuple[str, ...]]:
    return {
        "finish_reason": (*ctx.thresholds.finish_reasons, *(("unknown",) if ctx.strength == "text" else ())),
        "text_source": ("served", "derived"),
        "transport": tuple(Transport),
        "thinking_mode": tuple(ThinkingMode),
        "verdict": tuple(Verdict),
    }


@bulk(
    RuleSpec(
        "value-unknown",
        "a column with a closed vocabulary holds another word",
        _FIX_EXPORT,
        message="{values}",
    ),
    seen=lambda ctx: {"values": _unknown_values(ctx)},
)
def value_unknown(ctx: Context) -> pl.Expr:
    """Hold where finish reason, text source, transport, thinking mode and verdict are known words."""
    import polars as pl

    return pl.all_horizontal([pl.col(name).is_in(list(words)) for name, words in _allowed(ctx).items()])


def _unknown_values(ctx: Context) -> pl.Expr:
    import polars as pl

    return pl.concat_str(
        [
            pl.when(~pl.col(name).is_in(list(words)).fill_null(False)).then(
                pl.format("{} is {}", pl.lit(name), pl.col(name).fill_null("null"))
            )
            for name, words in _allowed(ctx).items()
        ],
        separator=", ",
        ignore_nulls=True,
    )


@row_check(
    RuleSpec(
        "column-not-json",
        "a JSON column does not hold the JSON that it must",
        _FIX_EXPORT,
        report="SpecForge#429, axolotl#3136",
    ),
    RuleSpec(
        "sampling-impossible",
        "a sampling parameter has a value that no request can have",
        "record the parameters from the request itself",
        column="sampling_params",
    ),
    reads=("tools", "template_kwargs", "sampling_params", "constraint"),
)
def json_columns(row: Row, ctx: Context) -> Iterator[Hit]:
    """Check that tools are a list of functions, and the parameters objects."""
    for column, kind in (
        ("tools", list),
        ("template_kwargs", dict),
        ("sampling_params", dict),
        ("constraint", dict),
    ):
        text = row[column]
        if text is None:
            continue
        value: Any = parse(text)
        if not isinstance(value, kind):
            yield "column-not-json", column, f"{column} is not a JSON {kind.__name__}: {text[:80]!r}"
        elif column == "tools" and not all(_is_tool(tool) for tool in value):
            yield "column-not-json", column, "tools holds an entry that declares no function by name"
        elif column == "sampling_params" and isinstance(value, dict) and value.get("mode") not in set(Mode):
            told = f"sampling_params must tell the `mode` ({', '.join(Mode)}): {value.get('mode')!r}"
            yield "column-not-json", column, told
        elif column == "sampling_params" and isinstance(value, dict):
            for name in impossible(value):
                yield "sampling-impossible", None, f"{name} is {value[name]!r}"


def _with_media(batch: Batch, ctx: Context) -> pl.Series:
    import numpy as np
    import polars as pl

    from contracts.columns import ids_of, rows_with

    # A tool's result is often a list of objects too: only a part's type makes it media.
    content = pl.element().struct.field("content")
    named = content.str.contains(rf'"type"\s*:\s*"(?:{"|".join(_MEDIA)})"') | content.str.contains(
        r"\u00", literal=True
    )
    parts = (content.str.starts_with("[{") & named).fill_null(False)
    found = batch.frame.select(pl.col("messages").list.eval(parts).list.any().fill_null(False)).to_series()
    media = ctx.ids_of(ctx.thresholds.media_tokens)
    if media:
        values, offsets = ids_of(batch, "prompt_token_ids")
        found = found | pl.Series(rows_with(np.isin(values, media), offsets))
    return found


@row_check(
    RuleSpec(
        "media-unsupported",
        "the conversation holds images or other media",
        "leave conversations with media out: engine placeholders break token ids and ranges",
        column="messages",
    ),
    suspects=_with_media,
)
def media(row: Row, ctx: Context) -> Iterator[Hit]:
    """Check that no content is a list of parts, and that the prompt holds no placeholder."""
    for index, message in enumerate(row["messages"] or ()):
        content = (message or {}).get("content") or ""
        if content.startswith("[{") and (kinds := _media_kinds(content)):
            yield "media-unsupported", None, f"message {index} holds parts of type {', '.join(kinds)}"
    tokens = set(ctx.ids_of(ctx.thresholds.media_tokens))
    found = (
        next((i for i, t in enumerate(row["prompt_token_ids"] or ()) if t in tokens), None)
        if tokens
        else None
    )
    if found is not None:
        yield "media-unsupported", "prompt_token_ids", f"the prompt has a media placeholder at token {found}"


def parse(text: str) -> Any:
    """Decode JSON; a text that is none, or holds a duplicate key, gives `BAD`."""
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError):
        return BAD


class _Bad:
    """What `parse` returns for a text that is no JSON."""


BAD = _Bad()


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)


def _is_tool(tool: Any) -> bool:
    if not isinstance(tool, dict):
        return False
    function = tool.get("function", tool)
    return isinstance(function, dict) and isinstance(function.get("name"), str) and bool(function["name"])


def _media_kinds(content: str) -> list[str]:
    value = parse(content)
    if not isinstance(value, list):
        return []
    kinds = {str(part.get("type", "")) for part in value if isinstance(part, dict)}
    return sorted(kinds.intersection(_MEDIA))


_MEDIA = (
    "image",
    "image_url",
    "input_image",
    "video",
    "video_url",
    "audio",
    "input_audio",
    "audio_url",
    "file",
)
