"""How the parts of a response are framed: the interface of a layout.

Place in the flow: grammar under the formats. Imports `contracts.calls` and `contracts.records` only; formats,
framing and truth by their types alone.

A layout is used from both sides and must not mix them: `pieces` makes the text from the parts that the
response handed out (the rebuilder), `segment` finds in the model's own bytes what the model wrote (the
checker).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contracts.calls import Handed
from contracts.records import SegmentKind

if TYPE_CHECKING:
    from contracts.formats.base import Format
    from contracts.framing import Framing
    from contracts.truth import Truth

Piece = tuple[SegmentKind, str]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a response is made of: its fields, whether the thinking was closed, whether it was opened.

    `opened` tells whether the model writes the opener of its thinking itself.
    """

    reasoning: str
    content: str
    calls: Sequence[Handed]
    closed: bool
    opened: bool


class Layout(ABC):
    """The way in which a family frames reasoning, content and calls.

    Subclasses are frozen dataclasses in this package.
    """

    __slots__ = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the texts that frame the parts, where they are not the format's opener and closer."""
        return ()

    def leaves(self, content: str) -> bool:
        """Whether the reasoning parser leaves a content alone that holds no marker."""
        return True

    @abstractmethod
    def pieces(self, fmt: Format, parts: Parts) -> list[Piece]:
        """Return the response's text without its end token, each piece attributed to its segment."""

    @abstractmethod
    def segment(self, truth: Truth, framing: Framing) -> None:
        """Divide what the model wrote into its segments, calls included; every byte belongs to one."""
