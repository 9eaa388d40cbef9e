"""Calls as JSON objects between tags: hermes, Qwen, DeepSeek, Llama and their like.

Place in the flow: a tool syntax. Imports `contracts.calls.base` only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from contracts.calls.base import Handed, Mark, ReadCall, Section, ToolSyntax, text_of


@dataclass(frozen=True)
class TaggedCalls(ToolSyntax):
    """`section_begin call (separator call)* section_end`, each call `call_begin body call_end`.

    `body` is a template with `{name}` and `{arguments}` (braces doubled, as `str.format` has them) of one of
    two kinds: a JSON object with the name under `name_key` and the arguments under `arguments_key`, or, where
    `split` is given, the name, the text `split`, and the arguments alone. `section_begin` and `section_end`
    may be empty. `call_end` empty: the call ends where its JSON does.
    """

    call_begin: str
    call_end: str
    body: str
    name_key: str = "name"
    arguments_key: str = "arguments"
    split: str = ""
    section_begin: str = ""
    section_end: str = ""
    separator: str = ""
    prefix: str = ""
    lead: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the tags that are not empty, stripped of the white space around them, none twice."""
        tags = (self.section_begin, self.section_end, self.call_begin, self.call_end)
        return tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))

    @property
    def begins(self) -> tuple[str, ...]:
        """Return the section's beginning, or a call's where there is no section."""
        return ((self.section_begin or self.call_begin).strip(),)

    def write(self, calls: Sequence[Handed]) -> str:
        """Return the calls in the family's own spelling."""
        inner = self.separator.join(
            self.call_begin + self.body.format(name=call["name"], arguments=call["arguments"]) + self.call_end
            for call in calls
        )
        return self.section_begin + inner + self.section_end

    def read(self, raw: bytes, marks: Sequence[Mark], start: int, stop: int) -> Section:
        """Read the calls from `start` on; white space between them that is not the separator is told."""
        own = [mark for mark in marks if start <= mark.start < stop]
        section = Section(start, stop)
        begin, end = self.call_begin.strip(), self.call_end.strip()
        at = start
        if self.section_begin:
            at = own.pop(0).end
        closing = self.section_end.strip()
        closed = not closing
        while own:
            mark = own[0]
            if closing and mark.text == closing:
                self._gap(section, raw, at, mark.start, bool(section.calls), last=True)
                at, closed = mark.end, True
                break
            if mark.text != begin:
                section.stray.append(own.pop(0))
                continue
            if not closing and section.calls and raw[at : mark.start].strip():
                break  # text between calls without a section: the next call is a section of its own
            self._gap(section, raw, at, mark.start, bool(section.calls))
            own.pop(0)
            finish = next((m for m in own if m.text == end), None) if end else None
            limit = finish.start if finish is not None else stop
            following = next((m for m in own if m.text in (begin, closing) and m.text), None)
            broken = following is not None and following.start < limit and begin != end
            if broken and following is not None:
                limit = following.start
            complete = (finish is not None or not end) and not broken
            section.calls.append(self._call(raw, mark, limit, complete))
            if complete and finish is not None:
                at = finish.end
                own = own[own.index(finish) + 1 :]
            else:
                at = limit
                own = [m for m in own if m.start >= limit]
        section.open = not closed or any(not call.complete for call in section.calls)
        if (closed and closing) or not closing:
            section.end = at
        elif at < stop:
            section.between.append((at, stop))
        return section

    def _gap(self, section: Section, raw: bytes, at: int, end: int, after: bool, last: bool = False) -> None:
        """Note what stands between two calls unless it is the family's own separator."""
        written = text_of(raw, at, end)
        own = self.separator.strip("\0") if after and not last else ""
        edges = {own, own + self._edge(self.call_begin), self._edge(self.section_begin, end=True)}
        if last:
            edges = {"", self._edge(self.section_end)}
        if written not in edges:
            section.between.append((at, end))

    @staticmethod
    def _edge(tag: str, *, end: bool = False) -> str:
        """Return the white space that a tag is written with on its outer side."""
        return tag[len(tag.rstrip()) :] if end else tag[: len(tag) - len(tag.lstrip())]

    def _call(self, raw: bytes, begin: Mark, limit: int, complete: bool) -> ReadCall:
        body = text_of(raw, begin.end, limit)
        inside = self.call_begin[len(self.call_begin.rstrip()) :]
        name, arguments, whole = self._parts(body)
        written = inside + self.body.format(name=name, arguments=arguments.strip())
        outside = self.call_end[: len(self.call_end) - len(self.call_end.lstrip())]
        return ReadCall(name, arguments, begin.start, complete and whole, body == written + outside)

    def _parts(self, body: str) -> tuple[str, str, bool]:
        """Return name and arguments as they are written, and whether they could be read at all."""
        if self.split:
            name, found, arguments = body.partition(self.split)
            tail = self.body.partition("{arguments}")[2]
            text = arguments.rstrip().removesuffix(tail.strip())
            return name.strip(), text.strip(), bool(found)
        members = dict(json_members(body.strip()))
        try:
            name = json.loads(members.get(self.name_key, '""'))
        except ValueError:
            name = ""
        whole = isinstance(name, str) and bool(name)
        return (name if isinstance(name, str) else ""), members.get(self.arguments_key, ""), whole


def json_members(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of a JSON object with their values as written; ends quietly where it breaks off."""
    decoder = json.JSONDecoder()
    at = text.find("{") + 1
    if at <= 0:
        return
    try:
        while True:
            at = _skip(text, at)
            key, at = decoder.raw_decode(text, at)
            at = _skip(text, at)
            if not isinstance(key, str) or text[at : at + 1] != ":":
                return
            start = _skip(text, at + 1)
            _, at = decoder.raw_decode(text, start)
            yield key, text[start:at]
            at = _skip(text, at)
            if text[at : at + 1] != ",":
                return
            at += 1
    except (ValueError, RecursionError):
        return


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
