"""JSON in a model's own bytes: where a value ends, and an object's members as they are written.

Place in the flow: under the tool syntaxes. Imports the standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

_DECODER = json.JSONDecoder()


def skip(text: str, at: int) -> int:
    """Return the place of the next character that is no JSON white space."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def value_end(text: str, at: int = 0) -> int | None:
    """Return where the JSON value that begins at `at` ends, white space before it allowed; None for none."""
    try:
        return _DECODER.raw_decode(text, skip(text, at))[1]
    except (ValueError, RecursionError):
        return None


def json_prefix(raw: bytes, after: str = "", within: int | None = None) -> int | None:
    """Return how many bytes a JSON value at the beginning takes; with `after`, one that follows that text.

    The text, or the value's beginning, must lie in the first `within` bytes.
    """
    # Bytes that are no UTF-8 must keep their length.
    text = raw.decode("utf-8", "surrogateescape")
    at = 0
    if after:
        at = text.find(after)
        if at < 0:
            return None
        at += len(after)
    at = skip(text, at)
    if within is not None and len(text[:at].encode("utf-8", "surrogateescape")) > within:
        return None
    end = value_end(text, at)
    return None if end is None else len(text[:end].encode("utf-8", "surrogateescape"))


def json_members(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of a JSON object with their values as written; ends quietly where it breaks off."""
    at = text.find("{") + 1
    if at <= 0:
        return
    try:
        while True:
            at = skip(text, at)
            key, at = _DECODER.raw_decode(text, at)
            at = skip(text, at)
            if not isinstance(key, str) or text[at : at + 1] != ":":
                return
            start = skip(text, at + 1)
            _, at = _DECODER.raw_decode(text, start)
            yield key, text[start:at]
            at = skip(text, at)
            if text[at : at + 1] != ",":
                return
            at += 1
    except (ValueError, RecursionError):
        return


def json_items(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a JSON list's items, `at` being its opening bracket; ends where it breaks off."""
    at = skip(text, at + 1)
    while at < len(text) and text[at] != "]":
        end = value_end(text, at)
        if end is None:
            return
        yield at, end
        at = skip(text, end)
        if text[at : at + 1] != ",":
            return
        at = skip(text, at + 1)
