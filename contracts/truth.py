"""What the token ids themselves say: where reasoning, content and calls begin and end.

Place in the flow: the checker's side of the judge. Imports calls, formats, framing, records and tokens of
`contracts`. Markers are read by id where the vocabulary has them as tokens; text that merely spells a
marker is listed apart (`spelled`), since a parser takes it for one and the model did not write one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.calls import Mark, ReadCall, ToolSyntax
from contracts.formats import Format
from contracts.framing import Framing
from contracts.records import SegmentKind
from contracts.tokens import Codec, UndecodableToken

UNSEEN = b"\xff"
"""Stands for a token that is in the vocabulary and is no UTF-8: every decoder makes U+FFFD of both."""


@dataclass(slots=True)
class Truth:
    """The response as its ids tell it. Byte ranges are half-open; `raw` is the bytes of all tokens.

    `segments` lists (kind, start, end) byte ranges in order. `between` is text inside a section outside any
    call, `after` the byte ranges of text after a section. `undecodable` holds (index, id).
    """

    raw: bytes
    offsets: list[int]
    segments: list[tuple[SegmentKind, int, int]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    spelled: list[Mark] = field(default_factory=list)
    undecodable: list[tuple[int, int]] = field(default_factory=list)
    calls: list[ReadCall] = field(default_factory=list)
    openers: int = 0
    late_opener: Mark | None = None
    closer: Mark | None = None
    thinking: bool = False
    sections: list[tuple[int, int]] = field(default_factory=list)
    section_open: bool = False
    stray: list[Mark] = field(default_factory=list)
    between: list[tuple[int, int]] = field(default_factory=list)
    call_in_reasoning: Mark | None = None
    ends: list[Mark] = field(default_factory=list)

    def text_of(self, kind: SegmentKind) -> str:
        """Return the text of all segments of a kind, joined."""
        return b"".join(self.raw[a:b] for k, a, b in self.segments if k is kind).decode("utf-8", "replace")

    def first(self, kind: SegmentKind) -> int | None:
        """Return the first byte of a kind's first segment."""
        return next((a for k, a, _ in self.segments if k is kind), None)

    def token_at(self, byte: int) -> int:
        """Return the index of the token that holds a byte."""
        return max(0, bisect_right(self.offsets, byte) - 1)

    def kind_at(self, byte: int) -> SegmentKind:
        """Return the segment that a byte lies in (the last one past the end)."""
        for kind, start, end in self.segments:
            if start <= byte < end:
                return kind
        return self.segments[-1][0] if self.segments else SegmentKind.CONTENT

    def runs(self) -> tuple[tuple[SegmentKind, int], ...]:
        """Return run lengths over the tokens: (segment, token count), a token belonging to its first byte."""
        out: list[tuple[SegmentKind, int]] = []
        for index in range(len(self.offsets) - 1):
            kind = self.kind_at(self.offsets[index])
            if out and out[-1][0] is kind:
                out[-1] = (kind, out[-1][1] + 1)
            else:
                out.append((kind, 1))
        return tuple(out)


def read_truth(ids: Sequence[int], codec: Codec, framing: Framing) -> Truth:
    """Read a response's ids (end token included) into the parts that the model wrote."""
    truth = _lay_out(ids, codec)
    _find_marks(truth, ids, codec, framing.format)
    _segment(truth, framing)
    return truth


def _lay_out(ids: Sequence[int], codec: Codec) -> Truth:
    undecodable: list[tuple[int, int]] = []
    try:
        parts = codec.token_bytes(ids)
    except UndecodableToken:
        parts = []
        for index, token_id in enumerate(ids):
            try:
                parts.extend(codec.token_bytes([token_id]))
            except UndecodableToken as error:
                parts.append(b"" if error.foreign else UNSEEN)
                if error.foreign:
                    undecodable.append((index, token_id))
    offsets = [0]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return Truth(raw=b"".join(parts), offsets=offsets, undecodable=undecodable)


def _find_marks(truth: Truth, ids: Sequence[int], codec: Codec, fmt: Format) -> None:
    by_id: dict[int, str] = {}
    by_text: list[str] = []
    for marker in (*fmt.markers, *fmt.end_tokens):
        token = codec.token_id(marker)
        if token is not None:
            by_id[token] = marker
        elif marker in fmt.markers:
            by_text.append(marker)
    for index, token_id in enumerate(ids):
        marker_text = by_id.get(token_id)
        if marker_text is None:
            continue
        mark = Mark(marker_text, truth.offsets[index], truth.offsets[index + 1], index)
        (truth.ends if marker_text in fmt.end_tokens else truth.marks).append(mark)
    taken = {mark.start for mark in (*truth.marks, *truth.ends)}
    for marker_text in (*fmt.markers, *fmt.end_tokens):
        needle, at = marker_text.encode(), -1
        while (at := truth.raw.find(needle, at + 1)) != -1:
            if at in taken:
                continue
            mark = Mark(marker_text, at, at + len(needle), truth.token_at(at))
            (truth.marks if marker_text in by_text else truth.spelled).append(mark)
    truth.marks.sort(key=lambda mark: mark.start)
    truth.spelled.sort(key=lambda mark: mark.start)


def _segment(truth: Truth, framing: Framing) -> None:
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
        at = _segment_reasoning(truth, framing, marks, closer, at, stop)
        marks = [mark for mark in marks if mark.start >= at]
    _segment_answer(truth, framing, marks, at, stop)
    if truth.ends:
        truth.segments.append((SegmentKind.END, stop, len(raw)))


def _segment_reasoning(
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


def _segment_answer(truth: Truth, framing: Framing, marks: list[Mark], at: int, stop: int) -> None:
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
    if lead and text.endswith(lead) and len(text) > len(lead):
        begin -= len(lead)
    return at, begin
