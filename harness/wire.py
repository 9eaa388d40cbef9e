"""What a response body says: fields, token ids, finish, usage; as sent, and nothing guessed.

Place in the flow: between the client and the capture. Pure functions on bytes; imports `contracts.records`
and `harness.wire_json`.

Bodies are JSON or, streamed, server-sent events. What an API promises and a body lacks is a
`MalformedResponse` that names the field; what is optional and absent is None. Of repeated JSON keys the
last one counts, as it does for every application behind `json.loads`.

`Fields.tool_calls` of a whole response is cut out of the body, character for character. A stream has no such
text: its calls are put together from the deltas as the OpenAI client does it (strings of one index joined)
and written as compact JSON with the keys in SGLang's order: id, index, type, function.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contracts.records import Fields, Json, Usage
from harness.wire_json import (
    compact_json,
    decode_text,
    json_object,
    json_span,
    malformed,
    raise_if_error,
    stream_objects,
)


@dataclass(frozen=True, slots=True)
class WireResponse:
    """One response, parsed. Ids are the engine's own; `text` is `/generate`'s."""

    fields: Fields
    text: str | None
    prompt_token_ids: tuple[int, ...] | None
    response_token_ids: tuple[int, ...] | None
    finish_reason: str | None
    matched_stop: int | str | None
    usage: Usage | None
    request_id: str | None
    output_logprobs: tuple[float, ...] | None = None


def parse_chat(body: bytes) -> WireResponse:
    """Parse a `/v1/chat/completions` answer.

    Raises:
        HttpStatusError: the body is an error object.
        MalformedResponse: it is not JSON, or a promised field is missing or of another type.
    """
    data = json_object(body)
    raise_if_error(data, body)
    choice = _choice(data, body)
    message = choice.get("message")
    if not isinstance(message, dict):
        malformed("choices[0].message", message, "an object", body)
    calls: str | None = None
    if message.get("tool_calls") is not None:
        if not isinstance(message["tool_calls"], list):
            malformed("choices[0].message.tool_calls", message["tool_calls"], "a list", body)
        text = decode_text(body)
        span = json_span(text, ("choices", 0, "message", "tool_calls"))
        calls = None if span is None else text[span[0] : span[1]]
    ids = choice.get("response_token_ids", choice.get("token_ids"))
    extension = _object_or_empty(data.get("sglext"), "sglext", body)
    if ids is None:
        ids = _first(extension.get("output_ids"))
    return WireResponse(
        fields=Fields(
            reasoning_content=_text(message.get("reasoning_content"), "message.reasoning_content", body),
            content=_text(message.get("content"), "message.content", body),
            tool_calls=calls,
        ),
        text=None,
        prompt_token_ids=_ids(
            choice.get("prompt_token_ids", extension.get("input_ids")), "prompt_token_ids", body
        ),
        response_token_ids=_ids(ids, "response_token_ids", body),
        finish_reason=_text(choice.get("finish_reason"), "choices[0].finish_reason", body),
        matched_stop=_matched(choice.get("matched_stop"), body),
        usage=_usage(data.get("usage")),
        request_id=_text(data.get("id"), "id", body),
        output_logprobs=_chat_logprobs([choice]),
    )


@dataclass(slots=True)
class _Stream:
    """What the deltas of one streamed choice add up to."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    choices: list[Mapping[str, Json]] = field(default_factory=list)
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    usage: Usage | None = None
    request_id: str | None = None
    prompt_ids: Any = None
    output_ids: Any = None


def parse_chat_stream(body: bytes) -> WireResponse:
    """Parse a streamed `/v1/chat/completions` answer: the whole SSE body.

    Raises:
        HttpStatusError: an error event came.
        MalformedResponse: an event is not what the API promises, or the stream ends before its end mark.
    """
    state = _Stream()
    for data in stream_objects(body):
        raise_if_error(data, body)
        state.request_id = state.request_id or _text(data.get("id"), "id", body)
        state.usage = _usage(data.get("usage")) or state.usage
        extension = _object_or_empty(data.get("sglext"), "sglext", body)
        state.prompt_ids = extension.get("input_ids", state.prompt_ids)
        if extension.get("output_ids") is not None:
            state.output_ids = _first(extension["output_ids"])
        if not isinstance(data.get("choices"), list):
            malformed("choices", data.get("choices"), "a list", body)
        for choice in data["choices"]:
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                _add_choice(state, choice, body)
    if not state.choices:
        malformed("choices", [], "a choice in at least one event", body)
    calls = [state.calls[index] for index in sorted(state.calls)]
    return WireResponse(
        fields=Fields(
            reasoning_content="".join(state.reasoning) if state.reasoning else None,
            content="".join(state.content) if state.content else None,
            tool_calls=compact_json(calls) if calls else None,
        ),
        text=None,
        prompt_token_ids=_ids(state.prompt_ids, "sglext.input_ids", body),
        response_token_ids=_ids(state.output_ids, "sglext.output_ids", body),
        finish_reason=state.finish_reason,
        matched_stop=state.matched_stop,
        usage=state.usage,
        request_id=state.request_id,
        output_logprobs=_chat_logprobs(state.choices),
    )


def _add_choice(state: _Stream, choice: Mapping[str, Json], body: bytes) -> None:
    state.choices.append(choice)
    delta = _object_or_empty(choice.get("delta"), "choices[0].delta", body)
    for name, parts in (("content", state.content), ("reasoning_content", state.reasoning)):
        text = _text(delta.get(name), f"choices[0].delta.{name}", body)
        if text is not None:
            parts.append(text)
    deltas = delta.get("tool_calls") or []
    if not isinstance(deltas, list):
        malformed("choices[0].delta.tool_calls", deltas, "a list or null", body)
    for position, call in enumerate(deltas):
        if not isinstance(call, dict):
            malformed("choices[0].delta.tool_calls[]", call, "an object", body)
        index = call.get("index")
        _add_call(state.calls, position if index is None else index, call, body)
    if choice.get("finish_reason") is not None:
        state.finish_reason = _text(choice["finish_reason"], "choices[0].finish_reason", body)
        state.matched_stop = _matched(choice.get("matched_stop"), body)


def _add_call(calls: dict[int, dict[str, Any]], index: Any, call: Mapping[str, Json], body: bytes) -> None:
    if not isinstance(index, int) or isinstance(index, bool):
        malformed("choices[0].delta.tool_calls[].index", index, "a whole number", body)
    function = _object_or_empty(call.get("function"), "choices[0].delta.tool_calls[].function", body)
    known = calls.setdefault(
        index,
        {"id": None, "index": index, "type": "function", "function": {"name": None, "arguments": None}},
    )
    if call.get("type") is not None:
        known["type"] = call["type"]
    for target, name, value in (
        (known, "id", call.get("id")),
        (known["function"], "name", function.get("name")),
        (known["function"], "arguments", function.get("arguments")),
    ):
        text = _text(value, f"choices[0].delta.tool_calls[].{name}", body)
        if text is not None:
            target[name] = (target[name] or "") + text


def parse_generate(body: bytes) -> WireResponse:
    """Parse a `/generate` answer. `fields.content` is the text as well: it is all that this transport has.

    Raises:
        HttpStatusError, MalformedResponse: as `parse_chat`.
    """
    data = json_object(body)
    raise_if_error(data, body)
    return _generated([data], body)


def parse_generate_stream(body: bytes) -> WireResponse:
    """Parse a streamed `/generate` answer.

    SGLang sends the whole text and ids so far in each event, or only what is new when it was booted for
    that; the engine's own `completion_tokens` tells which.

    Raises:
        HttpStatusError, MalformedResponse: as `parse_chat_stream`.
    """
    events = []
    for data in stream_objects(body):
        raise_if_error(data, body)
        events.append(data)
    if not events:
        malformed("data", None, "at least one event", body)
    return _generated(events, body)


def _generated(events: Sequence[Mapping[str, Json]], body: bytes) -> WireResponse:
    last = events[-1]
    meta = last.get("meta_info")
    if not isinstance(meta, dict):
        malformed("meta_info", meta, "an object", body)
    usage = _usage(meta)
    ids = _ids(last.get("output_ids"), "output_ids", body)
    text = _text(last.get("text"), "text", body)
    logprobs = meta.get("output_token_logprobs")
    if len(events) > 1 and ids is not None and usage is not None and len(ids) != usage.completion_tokens:
        parts = [_ids(event.get("output_ids"), "output_ids", body) or () for event in events]
        ids = tuple(token_id for part in parts for token_id in part)
        text = "".join(_text(event.get("text"), "text", body) or "" for event in events)
        metas = [_object_or_empty(event.get("meta_info"), "meta_info", body) for event in events]
        logprobs = [entry for part in metas for entry in _entries(part.get("output_token_logprobs"))]
        if len(ids) != usage.completion_tokens:
            malformed("output_ids", len(ids), f"{usage.completion_tokens} ids over all events", body)
    finish = _object_or_empty(meta.get("finish_reason"), "meta_info.finish_reason", body)
    return WireResponse(
        fields=Fields(content=text),
        text=text,
        prompt_token_ids=_ids(last.get("prompt_token_ids"), "prompt_token_ids", body),
        response_token_ids=ids,
        finish_reason=_text(finish.get("type"), "meta_info.finish_reason.type", body),
        matched_stop=_matched(finish.get("matched"), body),
        usage=usage,
        request_id=_text(meta.get("id"), "meta_info.id", body),
        output_logprobs=_floats(_first(entry) for entry in _entries(logprobs)),
    )


def _choice(data: Mapping[str, Json], body: bytes) -> dict[str, Any]:
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices:
        malformed("choices", choices, "a list with one choice", body)
    if not isinstance(choices[0], dict):
        malformed("choices[0]", choices[0], "an object", body)
    return dict(choices[0])


def _object_or_empty(value: Json, name: str, body: bytes) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        malformed(name, value, "an object", body)
    return value


def _entries(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _first(value: Json) -> Json:
    return value[0] if isinstance(value, list) and value else None


def _text(value: Json, name: str, body: bytes) -> str | None:
    if value is not None and not isinstance(value, str):
        malformed(name, value, "text or null", body)
    return value


def _ids(value: Json, name: str, body: bytes) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        malformed(name, value, "a list of token ids", body)
    for token_id in value:
        if type(token_id) is not int:
            malformed(name, token_id, "a list of whole numbers", body)
    return tuple(value)


def _matched(value: Json, body: bytes) -> int | str | None:
    if value is not None and not isinstance(value, str) and type(value) is not int:
        malformed("matched_stop", value, "a token id, text or null", body)
    return value


def _usage(value: Json) -> Usage | None:
    if not isinstance(value, dict):
        return None
    prompt, completion = value.get("prompt_tokens"), value.get("completion_tokens")
    if type(prompt) is not int or type(completion) is not int:
        return None
    details = value.get("completion_tokens_details")
    reasoning = value.get("reasoning_tokens")
    if reasoning is None and isinstance(details, dict):
        reasoning = details.get("reasoning_tokens")
    return Usage(prompt, completion, reasoning if type(reasoning) is int else None)


def _chat_logprobs(choices: Iterable[Mapping[str, Json]]) -> tuple[float, ...] | None:
    entries: list[Json] = []
    for choice in choices:
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
            entries += logprobs["content"]
    return _floats(entry.get("logprob") if isinstance(entry, dict) else None for entry in entries)


def _floats(values: Iterable[Json]) -> tuple[float, ...] | None:
    """Return the numbers, or None when there are none or one of them is not a finite number."""
    numbers = list(values)
    good = numbers and all(type(v) in (int, float) and math.isfinite(v) for v in numbers)
    return tuple(float(v) for v in numbers) if good else None
