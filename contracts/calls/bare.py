"""Calls as bare JSON objects: the answer begins with one, or a tag leads to them. Llama 3's kind.

Place in the flow: a tool syntax. Imports `contracts.calls.base`, `contracts.calls.jsontext` and
`contracts.calls.tagged` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.calls.base import Handed, Mark, ReadCall, Section, ToolSyntax, text_of
from contracts.calls.jsontext import skip, value_end
from contracts.calls.tagged import json_call


@dataclass(frozen=True)
class BareCalls(ToolSyntax):
    """`body (separator body)*` as the whole answer, or `text lead body (separator body)*`.

    `lead` is a tag; `body` a template of a JSON object with `{name}` and `{arguments}` (braces doubled).
    """

    body: str
    separator: str
    lead: str = ""
    name_key: str = "name"
    arguments_keys: tuple[str, ...] = ("parameters", "arguments")
    keeps_text: bool = True

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the tag."""
        return (self.lead,)

    @property
    def begins(self) -> tuple[str, ...]:
        """Return the tag; an answer that begins with a call needs none."""
        return (self.lead,)

    def find(self, raw: bytes, marks: Sequence[Mark], at: int, stop: int) -> int | None:
        """Return the first byte of the first call: the answer's own, or what follows the tag."""
        tag = next((mark for mark in marks if mark.start >= at and mark.end <= stop), None)
        if tag is None:
            text = text_of(raw, at, stop)
            named = text.startswith("{") and json_call(text, self.name_key, self.arguments_keys)[2]
            return at if named else None
        return tag.start if tag.start == at else tag.end

    def leaves(self, content: str) -> bool:
        """Whether a content is none that is read for calls: one that begins with a brace."""
        return not content.startswith("{")

    def write(self, calls: Sequence[Handed]) -> str:
        """Return the objects; the layout writes the tag where a text precedes them."""
        return self.separator.join(
            self.body.format(name=call["name"], arguments=call["arguments"]) for call in calls
        )

    def read(self, raw: bytes, marks: Sequence[Mark], start: int, stop: int) -> Section:
        """Read objects up to the first thing that is none."""
        tagged = next((mark for mark in marks if mark.start == start), None)
        section = Section(start, stop)
        at = start if tagged is None else tagged.end
        while True:
            # Bytes that are no UTF-8 must keep their length.
            text = raw[at:stop].decode("utf-8", "surrogateescape")
            begin = skip(text, 0)
            end = value_end(text, begin) if text[begin : begin + 1] == "{" else None
            if end is None:
                break
            item = text_of(raw, at, at + len(text[:end].encode("utf-8", "surrogateescape")))
            name, arguments, whole = json_call(item, self.name_key, self.arguments_keys)
            own = self.body.format(name=name, arguments=arguments.strip())
            section.calls.append(ReadCall(name, arguments, at, whole, item == own and tagged is None))
            at += len(text[:end].encode("utf-8", "surrogateescape"))
            if not raw[at:stop].startswith(self.separator.encode()):
                break
            following = at + len(self.separator.encode())
            if not raw[following:stop].lstrip().startswith(b"{"):
                break
            at = following
        section.end = at
        rest = text_of(raw, at, stop)
        if rest.lstrip().startswith("{") and (not section.calls or rest.startswith("{")):
            name, arguments, _ = json_call(rest, self.name_key, self.arguments_keys)
            section.calls.append(ReadCall(name, arguments, at, False, False))
            section.end, section.open = stop, True
        elif not section.calls and tagged is None:
            section.end = stop
        return section
