"""Calls as a name and a map with bare keys and marked texts: Gemma 4's kind.

Place in the flow: a tool syntax. Imports `contracts.calls.base` only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
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


@dataclass(frozen=True)
class KeyedCalls(ToolSyntax):
    """`(call_begin word name { key:value, … } call_end)+`, no white space; texts between `quote` marks."""

    call_begin: str
    call_end: str
    word: str
    quote: str
    keeps_text: bool = True
    spelling: Spelling = "strings"
    kinds: tuple[Kind, ...] = ("string", "integer", "number", "boolean")
    texts: Texts = "any"
    spoils: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the call's markers and the quote."""
        return (self.call_begin, self.call_end, self.quote)

    @property
    def begins(self) -> tuple[str, ...]:
        """Return the beginning of a call; there are no sections."""
        return (self.call_begin,)

    def name_of(self, header: str) -> str | None:
        """Return the name as it stands: the parsers hand it out so."""
        return header or None

    def write(self, calls: Sequence[Handed]) -> str:
        """Return the calls one after the other."""
        return "".join(
            f"{self.call_begin}{self.word}{call['name']}{{{self.written(str(call['arguments']))}}}{self.call_end}"
            for call in calls
        )

    def written(self, arguments: str) -> str:
        """Return the inside of the map; other arguments can't be written and stay as they are."""
        try:
            members = json.loads(arguments)
            return self._value(members)[1:-1] if isinstance(members, dict) else arguments
        except (ValueError, RecursionError):
            return arguments

    def _value(self, value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{self._value(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(self._value(item) for item in value) + "]"
        if isinstance(value, str):
            # An escaped lone surrogate has no bytes: the model can't have written it as text.
            return self.quote + value.encode("utf-8", "replace").decode() + self.quote
        return json.dumps(value)

    def read(self, raw: bytes, marks: Sequence[Mark], start: int, stop: int) -> Section:
        """Read the calls that follow one another from `start` on; text between them ends the section."""
        section = Section(start, start)
        begins = [m for m in marks if start <= m.start < stop and m.text == self.call_begin]
        for number, begin in enumerate(begins):
            if raw[section.end : begin.start].strip():
                break
            if begin.start > section.end:
                section.between.append((section.end, begin.start))
            limit = begins[number + 1].start if number + 1 < len(begins) else stop
            end = next((m for m in marks if begin.end <= m.start < limit and m.text == self.call_end), None)
            body = text_of(raw, begin.end, limit if end is None else end.start)
            name, brace, rest = body.removeprefix(self.word).partition("{")
            whole = body.startswith(self.word) and bool(brace) and rest.endswith("}")
            section.calls.append(
                ReadCall(name, rest[:-1] if whole else rest, begin.start, end is not None and whole)
            )
            section.end = limit if end is None else end.end
            section.open = section.open or end is None
        return section

    def same_spelling(self, given: str, written: str) -> bool:
        """Whether the arguments, written as a map again, are what the model wrote."""
        return self.written(given) == written

    def same_meaning(self, given: str, written: str) -> bool:
        """Whether the map that the model wrote is the JSON that was handed out."""
        quote = re.escape(self.quote)
        parts = re.findall(rf"{quote}(.*?){quote}|([{{}}\[\],:])|([^{{}}\[\],:]+)", written, re.DOTALL)
        out: list[str] = []
        for index, (text, sign, bare) in enumerate(parts):
            key = bare and index + 1 < len(parts) and parts[index + 1][1] == ":"
            out.append(sign or (json.dumps(bare.strip()) if key else bare.strip()) or json.dumps(text))
        return same_json(given, "{" + "".join(out) + "}")
