"""Calls between marker tokens of their own, ids included: Kimi K2's kind.

Place in the flow: a tool syntax. Imports `contracts.calls.base` only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.calls.base import Handed, Mark, ReadCall, Section, Spelling, ToolSyntax, text_of


@dataclass(frozen=True)
class MarkedCalls(ToolSyntax):
    """`section_begin (call_begin id argument_begin arguments call_end)+ section_end`, no white space.

    `id_pattern` has the group `name`: the id carries the function's name.
    """

    section_begin: str
    section_end: str
    call_begin: str
    argument_begin: str
    call_end: str
    id_pattern: re.Pattern[str]
    spelling: Spelling = "any"
    has_ids: bool = True
    keeps_text: bool = True

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the section's five markers."""
        return (self.section_begin, self.section_end, self.call_begin, self.argument_begin, self.call_end)

    @property
    def begins(self) -> tuple[str, ...]:
        """Return the section's own beginning; a call without a section is none."""
        return (self.section_begin,)

    def name_of(self, header: str) -> str | None:
        """Return the function name that a call id carries, or None."""
        found = self.id_pattern.match(header.strip())
        return found.group("name") if found else None

    def write(self, calls: Sequence[Handed]) -> str:
        """Return the section."""
        inner = (
            f"{self.call_begin}{call['id']}{self.argument_begin}{call['arguments']}{self.call_end}"
            for call in calls
        )
        return self.section_begin + "".join(inner) + self.section_end

    def read(self, raw: bytes, marks: Sequence[Mark], start: int, stop: int) -> Section:
        """Read up to the section's end; whatever stands outside a well-formed call is between or stray."""
        end = next((m for m in marks if m.text == self.section_end and m.start > start), None)
        section = Section(start, stop if end is None else end.end, open=end is None)
        begin = next(m for m in marks if m.start == start)
        inner = [m for m in marks if begin.end <= m.start < section.end and m is not end]
        self._read_calls(raw, section, inner, begin.end, stop if end is None else end.start)
        return section

    def _read_calls(self, raw: bytes, section: Section, marks: list[Mark], at: int, stop: int) -> None:
        index = 0
        while index < len(marks):
            mark = marks[index]
            if mark.text != self.call_begin:
                section.stray.append(mark)
                index += 1
                continue
            if mark.start > at:
                section.between.append((at, mark.start))
            following = [m.text for m in marks[index + 1 : index + 3]]
            if following == [self.argument_begin, self.call_end]:
                argument, end = marks[index + 1], marks[index + 2]
                header, arguments = (
                    text_of(raw, mark.end, argument.start),
                    text_of(raw, argument.end, end.start),
                )
                section.calls.append(ReadCall(header, arguments, mark.start, True))
                at = end.end
                index += 3
                continue
            # A call that breaks off: its header or its arguments run to the next call or the section's end.
            following_call = next(
                (n for n in range(index + 1, len(marks)) if marks[n].text == self.call_begin), len(marks)
            )
            at = marks[following_call].start if following_call < len(marks) else stop
            header_end = marks[index + 1].start if index + 1 < len(marks) else at
            has_arguments = bool(following) and following[0] == self.argument_begin
            arguments = text_of(raw, marks[index + 1].end, at) if has_arguments else ""
            section.calls.append(ReadCall(text_of(raw, mark.end, header_end), arguments, mark.start, False))
            index = following_call
        if at < stop:
            section.between.append((at, stop))
