"""Messages on channels, each with a header: harmony, gpt-oss's format.

Place in the flow: a layout. Imports `contracts.calls`, `contracts.layouts` and `contracts.records` only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contracts.calls import HarmonyCalls, Mark
from contracts.layouts.base import Layout, Parts, Piece
from contracts.layouts.think import segment_answer
from contracts.records import SegmentKind

if TYPE_CHECKING:
    from contracts.formats.base import Format
    from contracts.framing import Framing
    from contracts.truth import Truth


@dataclass(frozen=True)
class HarmonyLayout(Layout):
    """`channel analysis message reasoning end start role channel final message content`.

    The prompt ends with `start role`, so the first message has none. Content before calls stands in a
    message of its own on the channel `preamble`.
    """

    start: str = "<|start|>"
    role: str = "assistant"
    channel: str = "<|channel|>"
    message: str = "<|message|>"
    end: str = "<|end|>"
    thought: str = "analysis"
    answer: str = "final"
    preamble: str = "commentary"

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the marks of a message."""
        return (self.start, self.channel, self.message, self.end)

    def pieces(self, fmt: Format, parts: Parts) -> list[Piece]:
        """Return the message of the reasoning, that of the content, and the calls."""
        own = isinstance(fmt.tools, HarmonyCalls)
        out: list[Piece] = []
        if parts.reasoning:
            out.append((SegmentKind.OPENER, f"{self.channel}{self.thought}{self.message}"))
            out.append((SegmentKind.REASONING, parts.reasoning))
            if parts.closed:
                out.append((SegmentKind.CLOSER, self.end))
        inline = bool(parts.calls) and not own
        if parts.content or inline:
            name = self.preamble if parts.calls and own else self.answer
            begin = f"{self.start}{self.role}" if out else ""
            out.append((SegmentKind.CLOSER, f"{begin}{self.channel}{name}{self.message}"))
            out.append((SegmentKind.CONTENT, parts.content))
            if parts.calls and own:
                out.append((SegmentKind.CLOSER, self.end))
        if parts.calls and fmt.tools is not None:
            lead = fmt.tools.lead if parts.content else ""
            out.append((SegmentKind.TOOL_SECTION, lead + fmt.tools.write(parts.calls)))
        return out

    def segment(self, truth: Truth, framing: Framing) -> None:
        """Walk over the messages: by header and channel each is reasoning, content or a call."""
        raw, fmt = truth.raw, framing.format
        stop = truth.ends[0].start if truth.ends else len(raw)
        marks = [mark for mark in truth.marks if mark.end <= stop]
        at = 0
        while at < stop:
            if isinstance(fmt.tools, HarmonyCalls) and fmt.tools.header_at(raw, at):
                at = self._calls(truth, fmt.tools, marks, at, stop)
                continue
            begin = next((m for m in marks if m.start >= at and m.text in (self.start, self.channel)), None)
            if begin is None or begin.start > at:
                # Text outside any message.
                until = stop if begin is None else begin.start
                segment_answer(truth, framing, _within(marks, at, until), at, until)
                at = until
                continue
            at = self._message(truth, framing, marks, at, stop)
        if truth.ends:
            truth.segments.append((SegmentKind.END, stop, len(raw)))

    def _calls(self, truth: Truth, syntax: HarmonyCalls, marks: list[Mark], at: int, stop: int) -> int:
        section = syntax.read(truth.raw, marks, at, stop)
        truth.calls.extend(section.calls)
        truth.section_open = section.open
        truth.sections.append((at, section.end))
        truth.segments.append((SegmentKind.TOOL_SECTION, at, section.end))
        return section.end

    def _message(self, truth: Truth, framing: Framing, marks: list[Mark], at: int, stop: int) -> int:
        """Read one message from its first mark on; return where the next one begins."""
        message = next((m for m in marks if m.start >= at and m.text == self.message), None)
        channel = next((m for m in marks if m.start >= at and m.text == self.channel), None)
        if message is None:
            truth.segments.append((SegmentKind.CLOSER, at, stop))  # a header that breaks off
            return stop
        named = channel is not None and channel.start < message.start
        name = truth.raw[channel.end : message.start].decode("utf-8", "replace") if channel and named else ""
        limits = (self.start, self.channel, self.end)
        limit = next((m for m in marks if m.start >= message.end and m.text in limits), None)
        body = stop if limit is None else limit.start
        after = limit.end if limit is not None and limit.text == self.end else body
        if name.strip().startswith(self.thought):
            truth.thinking = True
            truth.openers += 1
            truth.segments.append((SegmentKind.OPENER, at, message.end))
            truth.segments.append((SegmentKind.REASONING, message.end, body))
            if after > body and limit is not None:
                truth.closer = truth.closer or limit
                truth.segments.append((SegmentKind.CLOSER, body, after))
            return after
        truth.closer = truth.closer or Mark(name, at, message.end, truth.token_at(at))
        truth.segments.append((SegmentKind.CLOSER, at, message.end))
        segment_answer(truth, framing, _within(marks, message.end, body), message.end, body)
        if after > body:
            truth.segments.append((SegmentKind.CLOSER, body, after))
        return after


def _within(marks: list[Mark], start: int, stop: int) -> list[Mark]:
    return list(_inside(marks, start, stop))


def _inside(marks: list[Mark], start: int, stop: int) -> Iterator[Mark]:
    return (mark for mark in marks if start <= mark.start and mark.end <= stop)
