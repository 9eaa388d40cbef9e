"""Calls as messages of their own, addressed to a function on a channel: harmony, gpt-oss's format.

Place in the flow: a tool syntax. Imports `contracts.calls.base` only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.calls.base import Handed, Mark, ReadCall, Section, ToolSyntax, text_of


@dataclass(frozen=True)
class HarmonyCalls(ToolSyntax):
    """`start role channel name to=recipient.function constrain json message arguments call_end`.

    `call_end` is an end token: one response holds one call, and the rebuilder leaves the token to the end.
    """

    start: str = "<|start|>"
    role: str = "assistant"
    channel: str = "<|channel|>"
    channel_name: str = "commentary"
    recipient: str = "functions."
    constrain: str = "<|constrain|>"
    message: str = "<|message|>"
    end: str = "<|end|>"
    call_end: str = "<|call|>"
    parallel: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the message's markers, without those that end it."""
        return (self.start, self.channel, self.constrain, self.message)

    @property
    def begins(self) -> tuple[str, ...]:
        """Return what begins a message."""
        return (self.start,)

    def takes(self, name: str) -> bool:
        """Whether a function's name survives: the parsers read what follows the last dot."""
        return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name) is not None

    def follows(self, text: str) -> bool:
        """Whether a text survives before a call: what may begin the channel's name is taken for filler."""
        return not self.channel_name.startswith(text.strip().lower())

    def name_of(self, header: str) -> str | None:
        """Return the function that a recipient names."""
        return header.strip().removeprefix(self.recipient) or None

    def write(self, calls: Sequence[Handed]) -> str:
        """Return the messages; the last one's end token is the response's."""
        return self.call_end.join(
            f"{self.start}{self.role}{self.channel}{self.channel_name} to={self.recipient}{call['name']} "
            f"{self.constrain}json{self.message}{call['arguments']}"
            for call in calls
        )

    def header_at(self, raw: bytes, at: int) -> re.Match[bytes] | None:
        """Match a call's header at a byte: from `start`, or where the prompt wrote that, from the channel."""
        start, role, channel = (re.escape(t.encode()) for t in (self.start, self.role, self.channel))
        message = re.escape(self.message.encode())
        to = rb"\s+to=(?P<%s>[^\s<]*)"
        pattern = rb"(?:%s%s)?(?:%s)?%s\s*(?:commentary|analysis)(?:%s)?[^<]*(?:<\|constrain\|>[^<]*)?%s" % (
            *(start, role, to % b"early", channel, to % b"late"),
            message,
        )
        found = re.compile(pattern).match(raw, at)
        return found if found and (found["early"] or found["late"]) else None

    def find(self, raw: bytes, marks: Sequence[Mark], at: int, stop: int) -> int | None:
        """Return where the next message to a function begins."""
        for mark in marks:
            begins = at <= mark.start < stop and mark.text in (self.start, self.channel)
            if begins and self.header_at(raw, mark.start):
                return mark.start
        return None

    def read(self, raw: bytes, marks: Sequence[Mark], start: int, stop: int) -> Section:
        """Read the messages to functions that follow one another from `start` on."""
        section = Section(start, start)
        while section.end < stop and (header := self.header_at(raw, section.end)):
            begin = section.end
            limits = (
                m.start for m in marks if m.start >= header.end() and m.text in (self.start, self.channel)
            )
            limit = min(next(limits, stop), stop)
            closed = raw.find(self.end.encode(), header.end(), limit)
            body_end = closed if closed >= 0 else limit
            own = self.call_end.encode()
            finished = closed < 0 and limit == stop and raw.startswith(own, stop)
            target = (header["early"] or header["late"]).decode("utf-8", "replace")
            written = f"{self.start}{self.role}{self.channel}{self.channel_name} to={target} "
            written += f"{self.constrain}json{self.message}"
            section.calls.append(
                ReadCall(
                    target,
                    text_of(raw, header.end(), body_end),
                    begin,
                    finished,
                    header[0] == written.encode() and target.startswith(self.recipient),
                )
            )
            section.end = limit if closed < 0 else closed + len(self.end)
        section.open = any(not call.complete for call in section.calls)
        return section
