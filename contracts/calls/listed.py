"""Calls as one JSON list after a tag: Apertus, Cohere, and the older Mistral models.

Place in the flow: a tool syntax. Imports `contracts.calls.base`, `contracts.calls.jsontext` and
`contracts.calls.tagged` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.calls.base import Handed, Mark, ReadCall, Section, ToolSyntax, text_of
from contracts.calls.jsontext import json_items, json_members, skip, value_end
from contracts.calls.tagged import TaggedCalls, json_call


@dataclass(frozen=True)
class ListedCalls(ToolSyntax):
    """`section_begin list_begin item (separator item)* list_end section_end`.

    `item` is a template with `{name}`, `{arguments}` and `{index}` (braces doubled): a JSON object with the
    name under `name_key` and the arguments under one of `arguments_keys`, or, `name_key` empty, an object
    whose one key is the name.
    """

    section_begin: str
    section_end: str
    item: str
    list_begin: str = "["
    list_end: str = "]"
    separator: str = ", "
    name_key: str = "name"
    arguments_keys: tuple[str, ...] = ("arguments", "parameters")
    prefix: str = ""
    lead: str = ""
    keeps_text: bool = False
    alone: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the section's two tags."""
        return tuple(tag for tag in (self.section_begin, self.section_end) if tag)

    @property
    def begins(self) -> tuple[str, ...]:
        """Return the section's beginning."""
        return (self.section_begin,)

    def write(self, calls: Sequence[Handed]) -> str:
        """Return the section."""
        items = self.separator.join(
            self.item.format(name=call["name"], arguments=call["arguments"], index=index)
            for index, call in enumerate(calls)
        )
        return self.section_begin + self.list_begin + items + self.list_end + self.section_end

    def read(self, raw: bytes, marks: Sequence[Mark], start: int, stop: int) -> Section:
        """Read the list, and the tag that ends the section."""
        own = [mark for mark in marks if start <= mark.start < stop]
        begin = own[0]
        section = Section(start, stop)
        calls, at = read_list(raw, begin.end, stop, self)
        section.calls.extend(calls)
        end = next((m for m in own[1:] if m.text == self.section_end and m.start >= at), None)
        section.stray.extend(m for m in own[1:] if at <= m.start and m is not end)
        section.open = end is None or any(not call.complete for call in calls)
        if end is None:
            if at < stop:
                section.between.append((at, stop))
            return section
        section.end = end.end
        if at < end.start:
            section.between.append((at, end.start))
        return section


def read_list(raw: bytes, at: int, stop: int, syntax: ListedCalls) -> tuple[list[ReadCall], int]:
    """Read a JSON list of calls that begins at byte `at`, and tell the byte at which it ends."""
    # Bytes that are no UTF-8 must keep their length.
    text = raw[at:stop].decode("utf-8", "surrogateescape")
    begin = skip(text, 0)
    if text[begin : begin + 1] != "[":
        return [], at

    def byte(place: int) -> int:
        return at + len(text[:place].encode("utf-8", "surrogateescape"))

    spans = list(json_items(text, begin))
    calls, written = [], []
    for index, (first, last) in enumerate(spans):
        item = text_of(raw, byte(first), byte(last))
        name, arguments, whole = _parts(item, syntax)
        own = syntax.item.format(name=name, arguments=arguments.strip(), index=index)
        calls.append(ReadCall(name, arguments, byte(first), whole, item == own))
        written.append(item)
    end = value_end(text, begin)
    if end is None:  # the list breaks off
        last = spans[-1][1] if spans else begin
        if text[last:].strip(" \t\r\n,[]"):
            name, arguments, _ = _parts(text_of(raw, byte(last), stop), syntax)
            calls.append(ReadCall(name, arguments, byte(last), False, False))
        return calls, stop
    whole_list = syntax.list_begin + syntax.separator.join(written) + syntax.list_end
    if calls and text_of(raw, at, byte(end)) != whole_list:
        first_call = calls[0]
        calls[0] = ReadCall(
            first_call.header, first_call.arguments, first_call.start, first_call.complete, False
        )
    return calls, byte(end)


def _parts(item: str, syntax: ListedCalls) -> tuple[str, str, bool]:
    if syntax.name_key:
        return json_call(item, syntax.name_key, syntax.arguments_keys)
    members = list(json_members(item.strip()))
    name, arguments = members[0] if members else ("", "")
    return name, arguments, bool(name)


@dataclass(frozen=True)
class TaggedOrListed(TaggedCalls):
    """Calls each after a tag of its own; a JSON list after one tag is read too, as another spelling."""

    def read(self, raw: bytes, marks: Sequence[Mark], start: int, stop: int) -> Section:
        """Read a list where a bracket follows the tag, single calls otherwise."""
        begin = next(mark for mark in marks if mark.start == start)
        calls, at = read_list(raw, begin.end, stop, _LIST)
        if not calls:
            return super().read(raw, marks, start, stop)
        section = Section(start, at, open=any(not call.complete for call in calls))
        section.calls.extend(
            ReadCall(call.header, call.arguments, call.start, call.complete, False) for call in calls
        )
        return section


_LIST = ListedCalls("", "", '{{"name": "{name}", "arguments": {arguments}}}')
