"""Calls as JSON between tags: hermes, Qwen, DeepSeek, InternLM, Mistral and their like.

Place in the flow: a tool syntax. Imports `contracts.calls.base` and `contracts.calls.jsontext` only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.calls.base import Handed, Mark, ReadCall, Section, ToolSyntax, text_of
from contracts.calls.jsontext import json_members, json_prefix, value_end


@dataclass(frozen=True)
class TaggedCalls(ToolSyntax):
    """`section_begin call (separator call)* section_end`, each call `call_begin body call_end`.

    `body` is a template with `{name}` and `{arguments}` (braces doubled, as `str.format` has them): a JSON
    object with the name under `name_key` and the arguments under one of `arguments_keys`, or the name, a
    text, and the arguments alone. `section_begin` and `section_end` may be empty. `call_end` empty: the call
    ends where its JSON does. `inner` lists markers that stand inside a call.
    """

    call_begin: str
    call_end: str
    body: str
    name_key: str = "name"
    arguments_keys: tuple[str, ...] = ("arguments", "parameters")
    section_begin: str = ""
    section_end: str = ""
    separator: str = ""
    inner: tuple[str, ...] = ()
    prefix: str = ""
    lead: str = ""
    keeps_text: bool = False
    parallel: bool = True

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the tags that are not empty, stripped of the white space around them, none twice."""
        tags = (self.section_begin, self.section_end, self.call_begin, *self.inner, self.call_end)
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
        """Read the calls from `start` on; what stands between them and is not the separator is told."""
        own = [mark for mark in marks if start <= mark.start < stop]
        section = Section(start, stop)
        begin, closing = self.call_begin.strip(), self.section_end.strip()
        at = own.pop(0).end if self.section_begin else start
        closed = not closing
        while own:
            mark = own.pop(0)
            if closing and mark.text == closing:
                self._gap(section, raw, at, mark.start, _outer(self.section_end))
                at, closed = mark.end, True
                break
            if mark.text != begin:
                section.stray.append(mark)
                continue
            if not closing and section.calls and raw[at : mark.start].strip():
                break  # text between calls without a section: the next call is a section of its own
            before = self.separator if section.calls else _outer(self.section_begin, end=True)
            self._gap(section, raw, at, mark.start, before + _outer(self.call_begin))
            call, at = self._call(raw, mark, own, stop)
            section.calls.append(call)
            own = [m for m in own if m.start >= at]
        section.open = not closed or any(not call.complete for call in section.calls)
        if closed:
            section.end = at
        elif at < stop:
            section.between.append((at, stop))
        return section

    def _gap(self, section: Section, raw: bytes, at: int, end: int, own: str) -> None:
        """Note what stands between two tags unless it is the family's own."""
        if text_of(raw, at, end) != own:
            section.between.append((at, end))

    def _call(self, raw: bytes, begin: Mark, marks: Sequence[Mark], stop: int) -> tuple[ReadCall, int]:
        """Read one call from its opening tag on, and tell where it ends."""
        tags = {self.call_begin.strip(), self.section_end.strip()} - {"", self.call_end.strip()}
        following = next((m.start for m in marks if m.text in tags), stop)
        if self.call_end.strip():
            finish = next((m for m in marks if m.text == self.call_end.strip()), None)
            complete = finish is not None and finish.start <= following
            limit, end = (
                (finish.start, finish.end) if finish is not None and complete else (following, following)
            )
        else:
            # A tag inside the JSON's texts is no tag: these parsers count brackets.
            middle = self._middle if self._plain else ""
            size = json_prefix(raw[begin.end : stop], middle, following - begin.end)
            complete = size is not None
            limit = end = following if size is None else begin.end + size
        body = text_of(raw, begin.end, limit)
        name, arguments, whole = self.parts(body)
        written = self.body.format(name=name, arguments=arguments.strip())
        canonical = body == _outer(self.call_begin, end=True) + written + _outer(self.call_end)
        return ReadCall(name, arguments, begin.start, complete and whole, canonical), end

    @property
    def _plain(self) -> bool:
        """Whether the body is no JSON object but a name and the arguments alone."""
        return not self.body.startswith("{{")

    @property
    def _middle(self) -> str:
        """Return the text between name and arguments."""
        return self.body.partition("{name}")[2].partition("{arguments}")[0]

    def parts(self, body: str) -> tuple[str, str, bool]:
        """Return name and arguments as they are written, and whether they could be read at all."""
        if self._plain:
            head, _, rest = self.body.partition("{name}")
            tail = rest.partition("{arguments}")[2].strip()
            text = body.strip()
            # What stands before a marker in front of the name is not looked at.
            mark = next((mark for mark in self.inner if mark in head and mark in text), None)
            text = text.partition(mark)[2] if mark else text.removeprefix(head)
            name, found, arguments = text.partition(self._middle)
            end = value_end(arguments)
            if end is None or arguments[end:].strip() not in ("", tail):
                return name, arguments.strip().removesuffix(tail).strip(), bool(found)
            return name, arguments[:end], bool(found)
        return json_call(body, self.name_key, self.arguments_keys)


def json_call(body: str, name_key: str, arguments_keys: Sequence[str]) -> tuple[str, str, bool]:
    """Return the name and the arguments that a call's JSON object holds, and whether it has a name."""
    members = dict(json_members(body.strip()))
    try:
        name = json.loads(members.get(name_key, '""'))
    except ValueError:
        name = ""
    arguments = next((members[key] for key in arguments_keys if key in members), "")
    whole = isinstance(name, str) and bool(name)
    return (name if isinstance(name, str) else ""), arguments, whole


def _outer(tag: str, *, end: bool = False) -> str:
    """Return the white space that a tag is written with before it, or after it."""
    return tag[len(tag.rstrip()) :] if end else tag[: len(tag) - len(tag.lstrip())]
