"""Thinking between an opener and a closer, then content, then calls: what most families write.

Place in the flow: a layout. Imports `contracts.calls`, `contracts.layouts.base` and `contracts.records` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from contracts.calls import Mark, ToolSyntax
from contracts.layouts.base import Layout, Parts, Piece
from contracts.records import SegmentKind

if TYPE_CHECKING:
    from contracts.formats.base import Format
    from contracts.framing import Framing
    from contracts.truth import Truth


@dataclass(frozen=True)
class ThinkLayout(Layout):
    """`opener reasoning closer content calls`; the template may have written the opener already."""

    def pieces(self, fmt: Format, parts: Parts) -> list[Piece]:
        """Return opener, reasoning, closer, content, calls."""
        out: list[Piece] = []
        syntax = fmt.tools if parts.calls else None
        if parts.opened and (parts.reasoning or parts.closed):
            out.append((SegmentKind.OPENER, fmt.opener))
        out.append((SegmentKind.REASONING, parts.reasoning))
        if parts.closed:
            out.append((SegmentKind.CLOSER, fmt.closer + (syntax.prefix if syntax else "")))
        elif syntax is not None and syntax.prefix_prefilled and not parts.reasoning:
            out.append((SegmentKind.TOOL_SECTION, syntax.prefix))
        out.append((SegmentKind.CONTENT, parts.content))
        if syntax is not None:
            lead = syntax.lead if parts.content or syntax.lead_alone else ""
            out.append((SegmentKind.TOOL_SECTION, lead + syntax.write(parts.calls)))
        return out

    def segment(self, truth: Truth, framing: Framing) -> None:
        """Find the thinking by its markers and by the prompt, then the calls after it."""
        fmt, raw = framing.format, truth.raw
        stop = truth.ends[0].start if truth.ends else len(raw)
        marks = [mark for mark in truth.marks if mark.end <= stop]
        at = 0
        while marks and marks[0].text == fmt.opener and marks[0].start == at:
            mark = marks.pop(0)
            truth.openers += 1
            truth.segments.append((SegmentKind.OPENER, mark.start, mark.end))
            at = mark.end
        closer = next((mark for mark in marks if mark.text == fmt.closer), None)
        thinking = framing.starts_thinking
        opener = next((mark for mark in marks if mark.text == fmt.opener), None)
        closes_first = closer is not None and (opener is None or closer.start < opener.start)
        if truth.openers:
            thinking = True
        elif thinking is None:
            # Unknown prompt, no opener first: a closer shows that there was thinking, and so may a cut.
            thinking = fmt.thinks and (closer is not None or not truth.ends)
        elif not thinking:
            late = opener is not None and closer is not None and not raw[at : opener.start].strip()
            # A prompt that opened nothing, yet the model closed its thinking: it thought without an opener.
            thinking = late or (closes_first and framing.opener_generated and framing.forced)
        truth.thinking = bool(thinking)
        if thinking:
            at = segment_reasoning(truth, framing, marks, closer, at, stop)
            marks = [mark for mark in marks if mark.start >= at]
        segment_answer(truth, framing, marks, at, stop)
        if truth.ends:
            truth.segments.append((SegmentKind.END, stop, len(raw)))


THINK = ThinkLayout()


def segment_reasoning(
    truth: Truth, framing: Framing, marks: list[Mark], closer: Mark | None, at: int, stop: int
) -> int:
    fmt = framing.format
    begins = fmt.tools.begins if fmt.tools else ()
    inside = next((mark for mark in marks if mark.text in begins), None)
    if closer is not None:
        if inside is not None and inside.start < closer.start:
            truth.call_in_reasoning = inside
        end = closer.start
    elif inside is not None:
        truth.call_in_reasoning = inside
        end = inside.start
    else:
        end = stop
    for mark in marks:
        if mark.text == fmt.opener and mark.start < end and not truth.raw[at : mark.start].strip():
            truth.late_opener = mark
            break
    truth.segments.append((SegmentKind.REASONING, at, end))
    if closer is None:
        return end
    truth.closer = closer
    truth.segments.append((SegmentKind.CLOSER, closer.start, closer.end))
    return closer.end


def segment_answer(truth: Truth, framing: Framing, marks: list[Mark], at: int, stop: int) -> None:
    tools = framing.format.tools
    if tools is None:
        truth.segments.append((SegmentKind.CONTENT, at, stop))
        return
    structural = [mark for mark in marks if mark.text in tools.markers]
    while True:
        begin = tools.find(truth.raw, structural, at, stop)
        limit = stop if begin is None else begin
        truth.stray.extend(m for m in structural if at <= m.start < limit)
        if begin is None:
            truth.segments.append((SegmentKind.CONTENT, at, limit))
            return
        start, until = _policy_space(truth, tools, at, begin) if framing.tools_parsed else (at, begin)
        if until > start:
            truth.segments.append((SegmentKind.CONTENT, start, until))
        section = tools.read(truth.raw, structural, begin, stop)
        truth.section_open = section.open
        truth.calls.extend(section.calls)
        truth.between.extend(section.between)
        truth.stray.extend(section.stray)
        truth.sections.append((begin, section.end))
        truth.segments.append((SegmentKind.TOOL_SECTION, until, section.end))
        at = section.end
        if at >= stop:
            return


def _policy_space(truth: Truth, tools: ToolSyntax, at: int, begin: int) -> tuple[int, int]:
    """Return the text's own range between `at` and a section: the family's fixed white space is framing.

    What follows the thinking's closer belongs to the closer, what leads to the calls to the section.
    """
    text, prefix, lead = truth.raw[at:begin], tools.prefix.encode(), tools.lead.encode()
    last = truth.segments[-1] if truth.segments else None
    if prefix and last is not None and last[0] is SegmentKind.CLOSER and text.startswith(prefix):
        truth.segments[-1] = (SegmentKind.CLOSER, last[1], at + len(prefix))
        at += len(prefix)
        text = text[len(prefix) :]
    elif prefix and last is None and tools.prefix_prefilled and text.startswith(prefix):
        truth.segments.append((SegmentKind.TOOL_SECTION, at, at + len(prefix)))
        at += len(prefix)
        text = text[len(prefix) :]
    if lead and text.endswith(lead) and (tools.lead_alone or len(text) > len(lead)):
        begin -= len(lead)
    return at, begin
