"""Conversations without ids, in each spelling that trainers have: role/content, from/value, SpecForge's.

Place in the flow: an importer. Imports conversation, judgement and shard of `contracts` and this package's
base and forms.

Rows are of strength `text`: nothing is proven, and each is judged by its text alone. That a server ran a
parser is taken as the source's claim; thinking found inside `content` contradicts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from contracts.conversation import Conversation, Malformed, conversation, declarations
from contracts.framing import framing_for
from contracts.importers.base import ImportOptions, Place, Unfit, known
from contracts.importers.forms import what_it_is
from contracts.judgement import judge_fields
from contracts.records import Fields, Mode, ThinkingMode
from contracts.shard import (
    CONSTANT_COLUMNS,
    NONE,
    RUN_COLUMNS,
    UNKNOWN,
    Row,
    dump,
    message_struct,
)

KEYS = ("conversations", "messages", "conversation")
NAMES = ("id", "uuid", "conversation_id")
MEDIA = ("image", "images", "video", "videos", "audio", "audios")
PREFERENCES = ("chosen", "rejected", "chosen_messages", "rejected_messages", "rejected_response")


def rows_of(record: Mapping[str, Any], place: Place, options: ImportOptions, unread: set[str]) -> list[Row]:
    """Return the rows of one conversation: one, or with `every_turn` one a turn of the assistant.

    `unread` is given the keys that no row has a place for.

    Raises:
        Unfit: it is no conversation that ends with the assistant.
    """
    told = read(record)
    messages = [message_struct(message) for message in told.messages]
    tools = tools_of(record)
    unread.update(str(key) for key, value in record.items() if key not in READ and value is not None)
    unread.update(f"messages.{key}" for key in told.unread)
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns or turns[-1] != len(messages) - 1:
        last = messages[-1]["role"]
        raise Unfit(
            f"the last message is the {last}'s, not the assistant's: there is no response in it; "
            "prompts are recorded with `shardgate capture`"
        )
    wanted = turns if options.every_turn else turns[-1:]
    wanted = [index for index in wanted if told.weights[index] != 0]
    if not wanted:
        raise Unfit("the response is marked not to be trained on (its weight is 0)")
    name = next((str(record[key]) for key in NAMES if _named(record, key)), None)
    base = name or f"{place.dataset}-{place.number}"
    parents = {index: turns[turns.index(index) - 1] for index in wanted if index != turns[0]}
    return [
        text_row(
            messages[: index + 1],
            tools,
            place,
            options,
            sample_id=f"{base}-{turns.index(index)}" if options.every_turn and len(turns) > 1 else base,
            conversation_id=str(record.get("conversation_id") or base),
            turn=turns.index(index),
            parent=f"{base}-{turns.index(index) - 1}" if parents.get(index) in wanted else None,
        )
        for index in wanted
    ]


def _named(record: Mapping[str, Any], key: str) -> bool:
    value = record.get(key)
    return isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip() != ""


def read(record: Mapping[str, Any]) -> Conversation:
    """Return a record's messages.

    Raises:
        Unfit: there are none, one is of a form that a row can't hold, or the record holds media, or a
            response that is marked as a bad one.
    """
    media = [key for key in MEDIA if record.get(key)]
    if media:
        raise Unfit(f"it holds media ({', '.join(media)}): no ids are known for them; leave such rows out")
    pair = [key for key in PREFERENCES if record.get(key) is not None]
    if pair:
        raise Unfit(
            f"it holds preferences ({', '.join(pair)}), and which of two answers the target generated is not "
            "told; write that one into the conversation"
        )
    if record.get("label") is False:
        raise Unfit("its response is marked as a bad one (`label` is false)")
    key = next((key for key in KEYS if record.get(key) is not None), None)
    value = record[key] if key else None
    if key is None and all(isinstance(record.get(name), list) for name in ("prompt", "completion")):
        key, value = "prompt", [*record["prompt"], *record["completion"]]
    if key is None:
        raise Unfit(what_it_is(record))
    try:
        return conversation(value, key, system=record.get("system"))
    except Malformed as error:
        raise Unfit(str(error)) from error


def tools_of(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the declared tools in OpenAI's form, None where there are none.

    Raises:
        Unfit: they are no list of declarations, nor the JSON text of one.
    """
    told = record.get("tools")
    try:
        return declarations(record.get("functions") if told is None else told, bare=True)
    except Malformed as error:
        raise Unfit(str(error)) from error


READ = frozenset((*KEYS, *NAMES, "tools", "functions", "system", "label", "status", "error", "primary_id"))
"""The keys of a record that are read, whatever its form."""


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
