"""A conversation in the spellings that data sets have, read into OpenAI's: one reader for import and capture.

Place in the flow: under the importers and `harness.recording.rowforms`. Imports records and strict_json of
`contracts`.

Known are `role`/`content` and `from`/`value`, content as parts, calls as `tool_calls`, as the older
`function_call`, and as turns of their own (`from: function_call`, ShareGPT; `role: tool_call`). What is of
another form is refused by its name; what is not read is listed, never dropped without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.records import Json
from contracts.strict_json import NotJson, loads

ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "function-response": "tool",
    "tool_response": "tool",
}
"""Who spoke, by `role` or `from`, to OpenAI's role."""

CALLERS = ("function_call", "function-call", "tool_call")
"""Turns that are nothing but a call, its JSON the text."""

REASONING = ("reasoning_content", "reasoning", "thinking")
WEIGHTS = ("weight", "loss_weight", "train", "loss")
"""Keys of a message that say whether it is trained on: a number, or true and false."""

_READ = {
    *("role", "from", "content", "value", "tool_calls", "function_call", "tool_call_id", "name"),
    *REASONING,
    *WEIGHTS,
}
_THOUGHTS, _CALLS = ("reasoning", "thinking"), ("tool_call", "function_call")


class Malformed(ValueError):
    """A record that holds no conversation of a known form; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages with OpenAI's keys, those that are set alone, calls as objects with their arguments as text.

    `weights` says for each message whether it is trained on, None where nothing does. `unread` are the keys
    of messages that were not read.
    """

    messages: list[dict[str, Json]]
    weights: list[float | None]
    unread: set[str] = field(default_factory=set)


def conversation(value: Any, column: str, *, system: Any = None) -> Conversation:
    """Read the messages of a record.

    Args:
        value: the list of messages, or its JSON text.
        column: where it stood, for the error.
        system: the record's own system message, beside its messages.

    Raises:
        Malformed: it is none, or a message is of a form that a row can't hold.
    """
    value = decoded(value, f"`{column}`")
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise Malformed(f"`{column}` is no list of messages")
    made = Conversation([], [])
    for index, told in enumerate(value):
        message, weight = _message(told, f"message {index}", made.unread)
        made.messages.append(message)
        made.weights.append(weight)
    if isinstance(system, str) and system:
        first = made.messages[0]
        if first["role"] not in ("system", "developer"):
            made.messages.insert(0, {"role": "system", "content": system})
            made.weights.insert(0, None)
        elif first.get("content") != system:
            raise Malformed("`system` is not the system message that the conversation begins with")
    _paired(made.messages)
    return made


def _message(told: Any, where: str, unread: set[str]) -> tuple[dict[str, Json], float | None]:
    if not isinstance(told, Mapping):
        raise Malformed(f"{where} is {type(told).__name__}, not an object")
    said = next((told[key] for key in ("role", "from") if told.get(key) is not None), None)
    if said is None:
        raise Malformed(f"{where} has neither `role` nor `from`; its keys are {_names(told)}")
    content = next((told[key] for key in ("content", "value") if told.get(key) is not None), None)
    unread.update(str(key) for key, value in told.items() if key not in _READ and value is not None)
    message: dict[str, Json]
    if isinstance(said, str) and said in CALLERS:
        if content is None:
            raise Malformed(f"{where} is a call without its text")
        message = {"role": "assistant", "tool_calls": _spoken(content, where)}
        return message, _weight(told, where)
    role = ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        raise Malformed(f"{where} has the role {said!r}; known are {', '.join(sorted((*ROLES, *CALLERS)))}")
    text, reasoning, calls = _content(content, role, where)
    told_thoughts = {told[key] for key in REASONING if isinstance(told.get(key), str)}
    for key in REASONING:
        if not isinstance(told.get(key), str | None):
            raise Malformed(f"{where}: `{key}` is {type(told[key]).__name__}, not text")
    thoughts = sorted(told_thoughts | ({reasoning} if reasoning is not None else set()))
    if len(thoughts) > 1:
        raise Malformed(f"{where} holds its reasoning twice, and the two differ")
    calls += tool_calls(told.get("tool_calls"), where)
    if told.get("function_call") is not None:
        calls.append(_function(told["function_call"], where))
    message = {"role": role}
    if text is not None:
        message["content"] = text
    if thoughts:
        message["reasoning_content"] = thoughts[0]
    if calls:
        message["tool_calls"] = list(calls)
    for key in ("tool_call_id", "name"):
        if not isinstance(told.get(key), str | None):
            raise Malformed(f"{where}: `{key}` is {type(told[key]).__name__}, not text")
        if told.get(key) is not None:
            message[key] = told[key]
    if text is None and not (role == "assistant" and (calls or thoughts)):
        raise Malformed(f"{where} has no content; its keys are {_names(told)}")
    refuse_unwritable(message, where)
    return message, _weight(told, where)


def _content(content: Any, role: str, where: str) -> tuple[str | None, str | None, list[Json]]:
    """Return text, reasoning and calls of a content that is text, or parts in that order."""
    if content is None or isinstance(content, str):
        return content, None, []
    if not isinstance(content, Sequence):
        raise Malformed(f"{where}: the content is {type(content).__name__}, not text")
    kinds = [str(part.get("type", "text")) if isinstance(part, Mapping) else "" for part in content]
    media = sorted({kind for kind in kinds if kind not in ("text", *_THOUGHTS, *_CALLS)})
    if media:
        named = ", ".join(kind or "parts that are no object" for kind in media)
        raise Malformed(f"{where} holds media or other parts that are no text: {named}; leave such rows out")
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    for kind, part in zip(kinds, content, strict=True):
        value = next((part[key] for key in ("text", "value", kind) if part.get(key) is not None), None)
        if kind in _CALLS:
            calls += _spoken(value, where)
            continue
        if not isinstance(value, str):
            raise Malformed(f"{where} holds a part of type {kind} without text")
        if calls or (kind in _THOUGHTS and texts):
            raise Malformed(
                f"{where} holds its parts in the order {', '.join(kinds)}: a row keeps reasoning, text and "
                "calls in this order alone"
            )
        (thoughts if kind in _THOUGHTS else texts).append(value)
    if role != "assistant" and (thoughts or calls):
        raise Malformed(f"{where} is the {role}'s and holds reasoning or calls")
    text = "".join(texts) if texts or not (thoughts or calls) else None
    return text, "".join(thoughts) if thoughts else None, calls


def tool_calls(value: Any, where: str) -> list[Json]:
    """Return calls as objects whose arguments are the text that the wire has.

    Raises:
        Malformed: they are no list of calls with a function's name, nor the JSON text of one.
    """
    value = decoded(value, f"{where}.tool_calls") if value != "" else None
    if value is None:
        return []
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise Malformed(f"{where}: tool_calls is {type(value).__name__}, not a list")
    out: list[Json] = []
    for call in value:
        function = call.get("function") if isinstance(call, Mapping) else None
        if function is None and isinstance(call, Mapping) and isinstance(call.get("name"), str):
            function, call = call, {}  # the function alone, as templates take it too
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Malformed(f"{where}: a tool call without a function's name")
        own = {key: item for key, item in call.items() if item is not None and key != "function"}
        rest = {key: item for key, item in function.items() if item is not None}
        if not own:
            own = {"type": "function"}
        out.append({**own, "function": {**rest, "arguments": _arguments(function, where)}})
    return out


def _arguments(function: Mapping[str, Any], where: str) -> str:
    value = function.get("arguments", function.get("parameters") if len(function) == 2 else None)
    if isinstance(value, str):
        return value
    if value is None:
        return "{}"  # no argument at all, as OpenAI writes it
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Malformed(f"{where}: the arguments of a call have no JSON form: {error}") from None


def _spoken(content: Any, where: str) -> list[Json]:
    """Return the calls of a turn whose text is one, or a list of them: `{"name": ..., "arguments": ...}`."""
    value = decoded(content, f"{where}, a call,")
    calls = value if isinstance(value, list) else [value]
    return [_function(call, where) for call in calls]


def _function(value: Any, where: str) -> Json:
    function = decoded(value, f"{where}, a call,")
    if isinstance(function, Mapping) and isinstance(function.get("function"), Mapping):
        return tool_calls([function], where)[0]
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise Malformed(f'{where}: a call that is not {{"name": ..., "arguments": ...}}')
    left = sorted(set(map(str, function)) - {"name", "arguments", "parameters"})
    if left:
        raise Malformed(f"{where}: a call with {', '.join(left[:5])} beside its name and arguments")
    arguments = _arguments(function, where)
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _paired(messages: list[dict[str, Json]]) -> None:
    """Give calls an id, and results the id of the call that they answer, where the form pairs them by order.

    Only where not one call and not one result has an id: `function_call` and ShareGPT have none.
    """
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    results = [message for message in messages if message["role"] == "tool"]
    if not calls or any(isinstance(call, dict) and call.get("id") for call in calls):
        return
    if any(message.get("tool_call_id") for message in results):
        return
    number, open_ids = 0, []
    for message in messages:
        if message.get("tool_calls"):
            named: list[Json] = []
            for call in message["tool_calls"]:
                open_ids.append(f"call_{number:024d}")
                named.append({"id": open_ids[-1], **call})
                number += 1
            message["tool_calls"] = named
        elif message["role"] == "tool" and open_ids:
            message["tool_call_id"] = open_ids.pop(0)
        elif message["role"] != "tool":
            open_ids = []


def _weight(told: Mapping[str, Any], where: str) -> float | None:
    for key in WEIGHTS:
        value = told.get(key)
        if value is None:
            continue
        if not isinstance(value, bool | int | float):
            raise Malformed(f"{where}: `{key}` is {value!r}, neither a number nor true or false")
        return float(value)
    return None


def declarations(value: Any, *, bare: bool) -> list[dict[str, Json]] | None:
    """Return the declared tools in OpenAI's form, None where there are none.

    `bare` takes functions without their wrapper, as ShareGPT's and OpenAI's older sets have them.

    Raises:
        Malformed: they are no list of declarations, nor the JSON text of one.
    """
    value = decoded(value, "`tools`") if not isinstance(value, str) or value.strip() else None
    if value is None:
        return None
    if not isinstance(value, list):
        raise Malformed(f"`tools` is {type(value).__name__}, no list")
    out: list[dict[str, Json]] = []
    for index, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if function is None and bare and isinstance(tool, Mapping) and isinstance(tool.get("name"), str):
            out.append({"type": "function", "function": dict(tool)})
            continue
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Malformed(
                f'`tools`[{index}] is not {{"type": "function", "function": {{"name": ..., ...}}}}'
            )
        out.append(dict(tool))
    refuse_unwritable(out, "`tools`")
    return out or None


def decoded(value: Any, where: str) -> Any:
    """Return what a column holds as JSON text, a usual way around a table's schema; else the value.

    Raises:
        Malformed: it is a text, and no JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return loads(value)
    except NotJson as error:
        raise Malformed(f"{where} is text, and no JSON: {error}") from None


def refuse_unwritable(value: Any, where: str) -> None:
    """Raise `Malformed` where a value has no JSON text in UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise Malformed(f"{where} holds half a character (a lone surrogate), which no shard keeps") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise Malformed(f"{where} has no JSON form: {error}") from None


def _names(value: Mapping[str, Any]) -> str:
    return ", ".join(sorted(str(key) for key in value)[:12]) or "none"
