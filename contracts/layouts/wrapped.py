"""Thinking, then content that has a frame of its own: white space or tags that the parser takes away.

Place in the flow: a layout. Imports `contracts.calls`, `contracts.layouts` and `contracts.records` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from contracts.calls import Mark
from contracts.layouts.base import Parts, Piece
from contracts.layouts.think import ThinkLayout
from contracts.records import SegmentKind

if TYPE_CHECKING:
    from contracts.formats.base import Format
    from contracts.framing import Framing
    from contracts.truth import Truth


@dataclass(frozen=True)
class WrappedLayout(ThinkLayout):
    """`opener reasoning closer gap content_begin content content_end`, or calls with bare text before them.

    `gap` stands before calls too, unless they have a prefix of their own. `thinking` repeats the opener and
    the closer where the content's tags are markers of the format. `strips` is what the parser takes from the
    content's beginning, however often it comes.
    """

    gap: str = ""
    content_begin: str = ""
    content_end: str = ""
    thinking: tuple[str, ...] = ()
    strips: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the think markers and the content's tags."""
        return (*self.thinking, self.content_begin, self.content_end) if self.thinking else ()

    def leaves(self, content: str) -> bool:
        """Whether a content does not begin with what the parser takes away."""
        return not self.strips or not content.startswith(self.strips)

    def pieces(self, fmt: Format, parts: Parts) -> list[Piece]:
        """Return what the plain layout makes, with the gap after the closer and the content in its tags."""
        out: list[Piece] = []
        prefix = fmt.tools.prefix if parts.calls and fmt.tools else ""
        for kind, text in super().pieces(fmt, parts):
            if kind is SegmentKind.CLOSER and not prefix:
                out.append((kind, text + self.gap))
            elif kind is SegmentKind.CONTENT and text and not parts.calls:
                out.append((SegmentKind.CLOSER, self.content_begin))
                out.append((kind, text))
                out.append((SegmentKind.CLOSER, self.content_end))
            else:
                out.append((kind, text))
        return [piece for piece in out if piece[1]]

    def segment(self, truth: Truth, framing: Framing) -> None:
        """Divide as the plain layout does, then take the gap and the content's tags out of the content."""
        super().segment(truth, framing)
        raw, gap = truth.raw, self.gap.encode()
        out: list[tuple[SegmentKind, int, int]] = []
        for kind, start, end in truth.segments:
            if kind is not SegmentKind.CONTENT:
                out.append((kind, start, end))
                continue
            if gap and out and out[-1][0] is SegmentKind.CLOSER and raw[start:end].startswith(gap):
                out[-1] = (SegmentKind.CLOSER, out[-1][1], start + len(gap))
                start += len(gap)
            out.extend(self._unwrap(truth, start, end))
        truth.segments[:] = out

    def _unwrap(self, truth: Truth, start: int, end: int) -> list[tuple[SegmentKind, int, int]]:
        """Divide one content at its tags: they are framing, as the thinking's closer is."""
        begin, finish = self.content_begin.encode(), self.content_end.encode()
        plain = [(SegmentKind.CONTENT, start, end)]
        if not begin or not truth.raw[start:end].startswith(begin):
            return plain
        inner = start + len(begin)
        truth.closer = truth.closer or Mark(self.content_begin, start, inner, truth.token_at(start))
        found = truth.raw.find(finish, inner, end) if finish else -1
        stop = end if found < 0 else found
        after = stop if found < 0 else stop + len(finish)
        ranges = (
            (SegmentKind.CLOSER, start, inner),
            (SegmentKind.CONTENT, inner, stop),
            (SegmentKind.CLOSER, stop, after),
            (SegmentKind.CONTENT, after, end),
        )
        return [each for each in ranges if each[2] > each[1]]
