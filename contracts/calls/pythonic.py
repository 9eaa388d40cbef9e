"""Calls as a Python list of function calls: Llama 4's and LFM2's kind.

Place in the flow: a tool syntax. Imports `contracts.calls.base` and `contracts.calls.jsontext` only.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.calls.base import (
    Handed,
    Kind,
    Mark,
    ReadCall,
    Section,
    Spelling,
    Texts,
    ToolSyntax,
    same_json,
    text_of,
)
from contracts.calls.jsontext import json_members

_LIST = re.compile(rb"\[[A-Za-z][\w.\-]*\(")
"""A list of calls by its first one; the name may be one that the parsers do not read."""

_WORDS = {"true": "True", "false": "False", "null": "None"}


@dataclass(frozen=True)
class PythonicCalls(ToolSyntax):
    """`section_begin [name(key=value, …), …] section_end`, values as Python literals, texts in double quotes.

    Without `section_begin` a bare list of calls is a section. `dotted` tells whether a name may have dots.
    """

    section_begin: str = ""
    section_end: str = ""
    dotted: bool = False
    keeps_text: bool = False
    spelling: Spelling = "strings"
    kinds: tuple[Kind, ...] = ("string", "integer", "number", "boolean", "array", "object")
    texts: Texts = "any"
    spoils: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the section's markers, none for a bare list."""
        return tuple(text for text in (self.section_begin, self.section_end) if text)

    @property
    def begins(self) -> tuple[str, ...]:
        """Return the section's beginning, nothing for a bare list."""
        return self.markers[:1]

    def takes(self, name: str) -> bool:
        """Whether a name is one of Python's."""
        parts = name.split(".") if self.dotted else [name]
        return all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)

    def find(self, raw: bytes, marks: Sequence[Mark], at: int, stop: int) -> int | None:
        """Return where the next section begins: its marker, or a list whose first element is a call."""
        if self.section_begin:
            return next(
                (m.start for m in marks if at <= m.start < stop and m.text == self.section_begin), None
            )
        found = _LIST.search(raw, at, stop)
        return found.start() if found else None

    def write(self, calls: Sequence[Handed]) -> str:
        """Return the list."""
        inner = ", ".join(f"{call['name']}({self.written(str(call['arguments']))})" for call in calls)
        return f"{self.section_begin}[{inner}]{self.section_end}"

    def written(self, arguments: str) -> str:
        """Return the keywords of a JSON object; other arguments can't be written and stay as they are."""
        try:
            members = json.loads(arguments)
            if not isinstance(members, dict):
                return arguments
            return ", ".join(f"{key}={literal(value)}" for key, value in members.items())
        except (ValueError, RecursionError):
            return arguments

    def read(self, raw: bytes, marks: Sequence[Mark], start: int, stop: int) -> Section:
        """Read the list that begins at `start`, or after the marker there."""
        at, limit = start, stop
        closing: Mark | None = None
        if self.section_begin:
            at = start + len(self.section_begin.encode())
            closing = next((m for m in marks if m.start >= at and m.text == self.section_end), None)
            limit = stop if closing is None else closing.start
        section = Section(start, limit if closing is None else closing.end)
        items, end = _items(raw, at, limit)
        for before, begin, until in items:
            gap = text_of(raw, before, begin)
            if gap != (", " if section.calls else "["):
                section.between.append((before, begin))
            item = text_of(raw, begin, until)
            if item.startswith("{"):
                section.calls.append(_json_call(item, begin))
                continue
            name, opened, rest = item.partition("(")
            complete = bool(opened) and rest.endswith(")")
            section.calls.append(ReadCall(name, rest[:-1] if complete else rest, begin, complete))
        section.open = end is None or (bool(self.section_begin) and closing is None)
        if end is not None and self.section_begin and end < limit:
            section.between.append((end, limit))
        if end is not None and not self.section_begin:
            section.end = end
        return section

    def same_spelling(self, given: str, written: str) -> bool:
        """Whether the arguments, written as keywords again, are what the model wrote."""
        return self.written(given) == written

    def same_meaning(self, given: str, written: str) -> bool:
        """Whether the keywords that the model wrote have the values that were handed out."""
        if written.startswith("{"):
            return same_json(given, written)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                node = ast.parse(f"f({written})", mode="eval").body
                if not isinstance(node, ast.Call) or node.args:
                    return False
                values = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
            return same_json(given, json.dumps(values))
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            return False


def _json_call(item: str, begin: int) -> ReadCall:
    """Read a call that is written as a JSON object, which LFM2's parser takes too."""
    members = dict(json_members(item))
    try:
        name = json.loads(members.get("name", '""'))
    except ValueError:
        name = ""
    whole = isinstance(name, str) and bool(name) and item.endswith("}")
    return ReadCall(name if whole else "", members.get("arguments", ""), begin, whole, canonical=False)


def literal(value: Any) -> str:
    """Return a JSON value as a Python literal, texts in double quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    text = json.dumps(value, ensure_ascii=False)
    # An escaped lone surrogate has no bytes: the model can't have written it as text.
    return _WORDS.get(text, text).encode("utf-8", "replace").decode()


def _items(raw: bytes, at: int, stop: int) -> tuple[list[tuple[int, int, int]], int | None]:
    """Return the elements of the list at a byte, each with where the gap before it begins, and its end."""
    return (list(_scan(raw, at, stop)), _end_of(raw, at, stop))


def _steps(raw: bytes, at: int, stop: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield (index, depth before it, byte) of what stands outside of quotes."""
    depth, quote, index = 0, b"", at
    while index < stop:
        char = raw[index : index + 1]
        if quote:
            if char == b"\\":
                index += 1
            elif char == quote:
                quote = b""
        else:
            if char in (b'"', b"'"):
                quote = char
            yield index, depth, char
            depth += (char in (b"(", b"[", b"{")) - (char in (b")", b"]", b"}"))
            if depth <= 0 and char in (b")", b"]", b"}"):
                return
        index += 1


def _end_of(raw: bytes, at: int, stop: int) -> int | None:
    begin = next((i for i, _, char in _steps(raw, at, stop) if not char.isspace()), at)
    for index, depth, char in _steps(raw, begin, stop):
        if depth == 1 and char == b"]":
            return index + 1
        if depth == 0 and index > begin:
            return None
    return None


def _scan(raw: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    before, begin, last = at, None, at
    for index, depth, char in _steps(raw, at, stop):
        ends = depth == 1 and char in (b",", b"]")
        if ends and begin is not None:
            yield before, begin, last
            before, begin = last, None
        elif depth == 1 and not char.isspace() and not ends and begin is None:
            begin = index
        if not char.isspace():
            last = index + 1
    if begin is not None:
        yield before, begin, stop
