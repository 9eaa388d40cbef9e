"""What the token ids themselves say: where reasoning, content and calls begin and end.

Place in the flow: the checker's side of the judge. Imports calls, formats, framing, records and tokens of
`contracts`. Markers are read by id where the vocabulary has them as tokens; text that merely spells a
marker is listed apart (`spelled`), since a parser takes it for one and the model did not write one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from contracts.calls import Mark, ReadCall
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

        def more(kind: SegmentKind, count: int) -> None:
            if count and out and out[-1][0] is kind:
                out[-1] = (kind, out[-1][1] + count)
            elif count:
                out.append((kind, count))

        starts = self.offsets[:-1]
        at = 0
        for kind, begin, end in self.segments:
            if begin != (starts[at] if at < len(starts) else begin):
                break  # a segment that begins inside a token, or a gap: token by token from here on
            upto = bisect_left(starts, end, at)
            more(kind, upto - at)
            at = upto
        for start in starts[at:]:
            more(self.kind_at(start), 1)
        return tuple(out)


def read_truth(ids: Sequence[int], codec: Codec, framing: Framing) -> Truth:
    """Read a response's ids (end token included) into the parts that the model wrote."""
    truth = _lay_out(ids, codec)
    _find_marks(truth, ids, codec, framing.format)
    framing.format.layout.segment(truth, framing)
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
    offsets = [0, *accumulate(map(len, parts))]
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
    for index in [index for index, token_id in enumerate(ids) if token_id in by_id]:
        marker_text = by_id[ids[index]]
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
