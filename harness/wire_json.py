"""JSON out of bytes: decoded as it is, its errors named, and any value found as the text that it was sent in.

Place in the flow: under the wire. Pure functions; imports `harness.sse` and `harness.wire_errors`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from json import JSONDecoder
from typing import Any, NoReturn

from contracts.records import Json
from harness.sse import DONE, sse_events
from harness.wire_errors import MalformedResponse, excerpt, status_error

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = JSONDecoder()


def decode_text(body: bytes) -> str:
    """Return the body as text; surrogates that a server wrote as bytes are kept.

    Raises:
        MalformedResponse: the bytes are not UTF-8; the message says where.
    """
    try:
        return body.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise MalformedResponse(
            what=f"the response is not UTF-8: byte {error.start} is {body[error.start]:#04x}",
            why=excerpt(body),
            remedy="look for a proxy or a compression between client and server",
            body=body,
        ) from None


def json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that the body is.

    Raises:
        MalformedResponse: it is something else (an HTML page, nothing, a cut object).
    """
    text = decode_text(body)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedResponse(
            what="the response is empty" if not text.strip() else "the response is not JSON",
            why=f"{error}; it begins: {excerpt(body)}" if text.strip() else "no byte came before the end",
            remedy="check that the base URL is the SGLang server itself, not a proxy or a web page",
            body=body,
        ) from None
    if not isinstance(data, dict):
        malformed("the response", data, "a JSON object", body)
    return data


def stream_objects(body: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects of a whole SSE body, in order.

    Raises:
        MalformedResponse: there are no events, one is not JSON, or the end mark `[DONE]` is missing.
    """
    objects: list[dict[str, Any]] = []
    for event in sse_events(body):
        if event.data.strip() == DONE:
            return objects
        try:
            objects.append(json_object(event.data))
        except MalformedResponse as error:
            raise MalformedResponse(
                what=f"event {len(objects)} of the stream is not a JSON object",
                why=error.why or error.what,
                remedy="the stream was cut or altered on its way: send the request again",
                body=body,
            ) from None
    # An error event may be the last that a server sends.
    for data in objects:
        raise_if_error(data, body)
    raise MalformedResponse(
        what="the stream ended before its end mark" if objects else "the response is not an event stream",
        why=f"{len(objects)} events came, and no [DONE]" if objects else f"it begins: {excerpt(body)}",
        remedy="the server or a proxy cut it: read the server's log, then send the request again",
        body=body,
    )


def raise_if_error(data: Mapping[str, Json], body: bytes) -> None:
    """Raise `HttpStatusError` where an object is an error in one of the shapes that SGLang uses."""
    found = data.get("error")
    if found is None and data.get("object") != "error":
        return
    code = found.get("code") if isinstance(found, dict) else data.get("code")
    raise status_error(code if isinstance(code, int) else 0, error_message(data), body=body)


def error_message(data: Json) -> str:
    """Return the server's own words out of an error object, "" where there are none."""
    for _ in range(3):
        if isinstance(data, str):
            return data
        if not isinstance(data, dict):
            break
        data = next((data[key] for key in ("error", "message", "detail") if data.get(key)), None)
    return data if isinstance(data, str) else "" if data is None else compact_json(data)


def json_span(text: str, path: Sequence[str | int]) -> tuple[int, int] | None:
    """Return where in a JSON text the value at `path` stands, as [start, end); None if it is not there.

    `text` must be valid JSON. Of repeated keys the last one counts.
    """
    start = _skip_space(text, 0)
    for step in path:
        found = _member(text, start, step) if isinstance(step, str) else _item(text, start, step)
        if found is None:
            return None
        start = found
    return start, _DECODER.raw_decode(text, start)[1]


def compact_json(value: Json) -> str:
    """Write JSON as SGLang's responses do: no spaces, characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _skip_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return position if found is None else found.end()


def _member(text: str, start: int, key: str) -> int | None:
    if text[start] != "{":
        return None
    found: int | None = None
    position = _skip_space(text, start + 1)
    while text[position] != "}":
        name, position = _DECODER.raw_decode(text, position)
        position = _skip_space(text, _skip_space(text, position) + 1)  # past the colon
        if name == key:
            found = position
        position = _skip_space(text, _DECODER.raw_decode(text, position)[1])
        if text[position] == ",":
            position = _skip_space(text, position + 1)
    return found


def _item(text: str, start: int, index: int) -> int | None:
    if text[start] != "[":
        return None
    position, count = _skip_space(text, start + 1), 0
    while text[position] != "]":
        if count == index:
            return position
        position = _skip_space(text, _DECODER.raw_decode(text, position)[1])
        if text[position] == ",":
            position = _skip_space(text, position + 1)
        count += 1
    return None


def malformed(name: str, seen: Json, wanted: str, body: bytes) -> NoReturn:
    """Raise `MalformedResponse` for a field that holds something else than was promised."""
    shown = "missing or null" if seen is None else f"a {type(seen).__name__}: {str(seen)[:60]!r}"
    raise MalformedResponse(
        what=f"the response's {name} is {shown}; {wanted} was expected",
        why=f"it begins: {excerpt(body)}",
        remedy="check that the server is an SGLang that serves this endpoint",
        body=body,
    )
