"""Conversations without ids, in each spelling that trainers have: role/content, from/value, SpecForge's.

Place in the flow: an importer. Imports judgement and shard of `contracts` and the base of this package.

Rows are of strength `text`: nothing is proven, and each is judged by its text alone. That a server ran a
parser is taken as the source's claim; thinking found inside `content` contradicts it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from contracts.framing import framing_for
from contracts.importers.base import ImportOptions, Place, Unfit, known, text_or_none
from contracts.judgement import judge_fields
from contracts.records import Fields, Mode, ThinkingMode
from contracts.shard import (
    CONSTANT_COLUMNS,
    NONE,
    RUN_COLUMNS,
    UNKNOWN,
    Row,
    ShardError,
    dump,
    message_struct,
)

ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
KEYS = ("conversations", "messages", "conversation")
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


def rows_of(record: Mapping[str, Any], place: Place, options: ImportOptions) -> list[Row]:
    """Return the rows of one conversation: one, or with `every_turn` one a turn of the assistant.

    Raises:
        Unfit: it is no conversation that ends with the assistant.
    """
    messages = messages_of(record)
    tools = tools_of(record.get("tools"))
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns or turns[-1] != len(messages) - 1:
        last = messages[-1]["role"]
        raise Unfit(f"the last message is the {last}'s, not the assistant's: there is no response in it")
    wanted = turns if options.every_turn else turns[-1:]
    name = next((str(record[key]) for key in ("id", "uuid", "conversation_id") if _named(record, key)), None)
    base = name or f"{place.dataset}-{place.number}"
    return [
        text_row(
            messages[: index + 1],
            tools,
            place,
            options,
            sample_id=base if len(wanted) == 1 else f"{base}-{turns.index(index)}",
            conversation_id=str(record.get("conversation_id") or base),
            turn=turns.index(index),
            parent=f"{base}-{turns.index(index) - 1}" if options.every_turn and index != turns[0] else None,
        )
        for index in wanted
    ]


def _named(record: Mapping[str, Any], key: str) -> bool:
    value = record.get(key)
    return isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip() != ""


def messages_of(record: Mapping[str, Any]) -> list[dict[str, str | None]]:
    """Return a record's messages as the shard has them.

    Raises:
        Unfit: there are none, or one is of a form that a row can't hold.
    """
    key = next((key for key in KEYS if record.get(key) is not None), None)
    if key is None:
        raise Unfit(
            f"none of {', '.join(KEYS[:2])} is in it; it has {', '.join(sorted(record)) or 'nothing'}"
        )
    value = record[key]
    if isinstance(value, str):
        value = _json(value, key)
    if not isinstance(value, Sequence) or not value:
        raise Unfit(f"`{key}` is no list of messages")
    return [_message(message, index) for index, message in enumerate(value)]


def _message(message: Any, index: int) -> dict[str, str | None]:
    if not isinstance(message, Mapping):
        raise Unfit(f"message {index} is {type(message).__name__}, not an object")
    said = message.get("role", message.get("from"))
    role = ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        raise Unfit(f"message {index} has the role {said!r}; known are {', '.join(sorted(ROLES))}")
    content = message["content"] if "content" in message else message.get("value")
    reasoning = next((message[key] for key in REASONING_KEYS if message.get(key) is not None), None)
    calls = message.get("tool_calls")
    if isinstance(calls, Sequence) and not isinstance(calls, str):
        calls = [_call(call, index) for call in calls] or None
    elif calls is not None and not isinstance(calls, str):
        raise Unfit(f"message {index}: tool_calls is {type(calls).__name__}, not a list")
    if content is not None and not isinstance(content, str | list):
        raise Unfit(f"message {index}: the content is {type(content).__name__}, not text")
    try:
        struct = message_struct(
            {
                "role": role,
                "content": content,
                "reasoning_content": text_or_none(reasoning, f"message {index}: the reasoning"),
                "tool_calls": calls or None,
                "tool_call_id": text_or_none(message.get("tool_call_id"), f"message {index}: tool_call_id"),
                "name": text_or_none(message.get("name"), f"message {index}: the name"),
            }
        )
    except ShardError as error:
        raise Unfit(f"message {index}: {error.what}") from error
    return struct


def _call(call: Any, index: int) -> Any:
    """Return a call whose arguments are the text that the wire has; parquet and datasets make objects."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise Unfit(f"message {index}: a tool call without a function")
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    own = {key: value for key, value in call.items() if value is not None and key != "function"}
    return {
        **own,
        "function": {**{k: v for k, v in function.items() if v is not None}, "arguments": arguments},
    }


def tools_of(value: Any) -> list[Any] | None:
    """Return the declared tools, None where there are none.

    Raises:
        Unfit: they are no list, nor the JSON text of one.
    """
    if isinstance(value, str):
        value = _json(value, "tools") if value.strip() else None
    if value is None or (isinstance(value, list) and not value):
        return None
    if not isinstance(value, list):
        raise Unfit(f"`tools` is {type(value).__name__}, not a list")
    return value


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unfit(f"`{what}` is a text that is no JSON: {str(error)[:100]}") from error


def text_row(
    messages: Sequence[dict[str, str | None]],
    tools: Sequence[Any] | None,
    place: Place,
    options: ImportOptions,
    *,
    sample_id: str,
    conversation_id: str,
    turn: int,
    parent: str | None,
) -> Row:
    """Build a row of strength `text` from a conversation that ends with the response."""
    target, fmt = messages[-1], options.format
    mode = Mode.TOOLS if tools or target["tool_calls"] else Mode.REASONING
    fields = Fields(target["reasoning_content"], target["content"] or None, target["tool_calls"])
    common = common_columns(place, options, mode, tools)
    parsers = {name: common[name] for name in ("reasoning_parser", "tool_parser")}
    framing = framing_for(
        fmt,
        codec=None,
        mode=mode,
        prompt_ids=None,
        finish_reason=None,
        matched_stop=None,
        thinking_mode=ThinkingMode(common["thinking_mode"]),
        reasoning_parsed=parsers["reasoning_parser"] != NONE,
        tools_parsed=bool(tools) and parsers["tool_parser"] != NONE,
    )
    judged = judge_fields(None, fields, codec=None, framing=framing, finish_reason=None, matched_stop=None)
    return {
        **common,
        "sample_id": sample_id,
        "conversation_id": conversation_id,
        "turn_index": turn,
        "sample_index": 0,
        "parent_sample_id": parent,
        "messages": list(messages),
        "prompt_token_ids": None,
        "response_token_ids": None,
        "loss_mask": None,
        "output_logprobs": None,
        "response_text_raw": None,
        "text_source": "derived",
        "reasoning_content": fields.reasoning_content,
        "content": fields.content,
        "tool_calls": fields.tool_calls,
        "finish_reason": UNKNOWN,
        "matched_stop": None,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "reasoning_tokens": None,
        "claims": dict.fromkeys(("captured", "text", "rebuilt", "tokens")),
        "verdict": str(judged.verdict),
        "losses": [loss.name for loss in judged.losses],
    }


def common_columns(
    place: Place, options: ImportOptions, mode: Mode, tools: Sequence[Any] | None
) -> dict[str, Any]:
    """Return the columns that an import knows from its options and the record's place."""
    fmt = options.format
    thinks = options.thinking
    asked = fmt.default_mode if thinks is None else _mode(thinks)
    switch: dict[str, bool] = {}
    if thinks is not None and fmt.template_switch and fmt.asked({}) is not asked:
        switch = {fmt.template_switch: thinks}
    provenance: dict[str, str | None] = {name: known(options, name) for name in CONSTANT_COLUMNS}
    provenance |= {name: options.provenance.get(name) for name in RUN_COLUMNS}
    return {
        "source_dataset": place.dataset,
        "source_row_index": place.number - 1,
        "tools": dump(list(tools)) if tools else None,
        "constraint": None,
        "transport": "chat",
        "endpoint": UNKNOWN,
        "thinking_mode": str(asked),
        "template_kwargs": dump(switch),
        "sampling_params": dump({**options.sampling, "mode": str(mode)}),
        **provenance,
        "request_id": None,
        "created_at": place.written_at,
    }


def _mode(thinks: bool) -> ThinkingMode:
    return ThinkingMode.THINKING if thinks else ThinkingMode.INSTANT


def specforge_status(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (kind, reason) where SpecForge's regeneration itself says that the record came to nothing."""
    status = record.get("status")
    if status in (None, "success"):
        return
    kind = "skipped" if status == "skipped" else "failed"
    yield kind, f"status {status!r}: {str(record.get('error') or 'no reason told')[:200]}"
