"""The forms in which data sets keep a prompt: OpenAI messages, one text, ShareGPT turns, the rest of a row.

Place in the flow: under `harness.recording.prompts`. Imports `contracts.records`, `harness.modes`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from contracts.records import Json
from harness.modes import GENERATE_NAMES

_SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
"""ShareGPT's `from` → the role."""

_OPENAI_NAMES = {own: openai for openai, own in GENERATE_NAMES.items()} | {"max_new_tokens": "max_tokens"}
_KEPT = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")


class NotAPrompt(Exception):
    """A row that no prompt can be made of; its text says why."""


def messages_of(raw: Mapping[str, Any]) -> list[dict[str, Json]]:
    """Return a row's messages: from `messages`, `prompt` (a text or messages) or `conversations`.

    Raises:
        NotAPrompt: the row has none of them, or what it has is malformed.
    """
    for column in ("messages", "prompt", "conversations"):
        value = raw.get(column)
        if value is None:
            continue
        if column == "prompt" and isinstance(value, str):
            value = [{"role": "user", "content": value}]
        value = _decoded(value, column)
        if not isinstance(value, list) or not value:
            raise NotAPrompt(f"`{column}` is no list of messages")
        messages = [_message(one, column, index) for index, one in enumerate(value)]
        system = raw.get("system")
        if isinstance(system, str) and system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
        return messages
    raise NotAPrompt("it has none of `messages`, `prompt`, `conversations`")


def _message(one: Any, column: str, index: int) -> dict[str, Json]:
    where = f"`{column}`[{index}]"
    if not isinstance(one, Mapping):
        raise NotAPrompt(f"{where} is a {type(one).__name__}, not an object")
    if "role" in one:
        message = {key: one[key] for key in _KEPT if one.get(key) is not None}
    elif "from" in one:
        speaker = str(one["from"])
        if speaker not in _SPEAKERS:
            raise NotAPrompt(f"{where}: nobody is known as {speaker!r}")
        message = {"role": _SPEAKERS[speaker], "content": one.get("value")}
    else:
        raise NotAPrompt(f"{where} has neither `role` nor `from`")
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        raise NotAPrompt(f"{where} has the role {role!r}")
    if "tool_calls" in message:
        message["tool_calls"] = _calls(message["tool_calls"], where)
        if not message["tool_calls"]:
            del message["tool_calls"]
    if content is None and not (role == "assistant" and message.get("tool_calls")):
        raise NotAPrompt(f"{where} has no content")
    if content is not None:
        message["content"] = _text(content, where)
    _refuse_unwritable(message, where)
    return message


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise NotAPrompt(f"{where} has a content that is a {type(content).__name__}")
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise NotAPrompt(f"{where} holds media or other parts that are no text")
    return "".join(map(str, texts))


def _calls(value: Any, where: str) -> list[dict[str, Json]]:
    value = _decoded(value, f"{where}.tool_calls")
    if not isinstance(value, list):
        raise NotAPrompt(f"{where}.tool_calls is no list")
    for call in value:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise NotAPrompt(f"{where}.tool_calls holds a call without a function's name")
    return [dict(call) for call in value]


def _refuse_unwritable(value: Any, where: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise NotAPrompt(f"{where} holds half a character (a lone surrogate), which no shard keeps") from None
    except (TypeError, ValueError) as error:
        raise NotAPrompt(f"{where} has no JSON form: {error}") from None


def _decoded(value: Any, where: str) -> Any:
    """Return what a column holds as JSON text, a usual way around a table's schema; else the value."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise NotAPrompt(f"{where} is text, and no JSON: {error}") from None


def tools_of(raw: Mapping[str, Any]) -> list[dict[str, Json]]:
    """Return the tools that a row declares, none as an empty list.

    Raises:
        NotAPrompt: they are no OpenAI-style declarations.
    """
    value = raw.get("tools")
    if value is None or value == "":
        return []
    value = _decoded(value, "`tools`")
    if value is None:
        return []
    if not isinstance(value, list):
        raise NotAPrompt("`tools` is no list")
    for index, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise NotAPrompt(
                f'`tools`[{index}] is not {{"type": "function", "function": {{"name": ..., ...}}}}'
            )
    _refuse_unwritable(value, "`tools`")
    return [dict(tool) for tool in value]


def settings_of(raw: Mapping[str, Any]) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return a row's own sampling parameters, by OpenAI's names, and its template arguments.

    Raises:
        NotAPrompt: one of them is no object.
    """
    sampling: dict[str, Json] = {}
    kwargs: dict[str, Json] = {}
    for column, into in (
        ("sampling", sampling),
        ("sampling_params", sampling),
        ("template_kwargs", kwargs),
        ("chat_template_kwargs", kwargs),
    ):
        value = raw.get(column)
        if value is None:
            continue
        value = _decoded(value, f"`{column}`")
        if not isinstance(value, Mapping):
            raise NotAPrompt(f"`{column}` is no object")
        _refuse_unwritable(dict(value), f"`{column}`")
        into.update(value)
    return openai_names(sampling), kwargs


def openai_names(sampling: Mapping[str, Json]) -> dict[str, Json]:
    """Return sampling parameters by OpenAI's names; SGLang's own (`max_new_tokens`) are taken too."""
    return {_OPENAI_NAMES.get(name, name): value for name, value in sampling.items() if value is not None}


def samples_of(sampling: Mapping[str, Json], default: int) -> int:
    """Return how many generations a prompt is asked for: its own `n`, else the run's.

    Raises:
        NotAPrompt: `n` is no count.
    """
    number = sampling.get("n", default)
    if type(number) is not int or not 1 <= number <= 999:
        raise NotAPrompt(f"n is {number!r}, not a number from 1 to 999")
    return number


def name_of(raw: Mapping[str, Any]) -> str:
    """Return the row's own name, "" where it has none."""
    for column in ("id", "prompt_id", "conversation_id", "uuid"):
        value = raw.get(column)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return str(value)
    return ""
