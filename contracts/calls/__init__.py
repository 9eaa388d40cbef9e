"""Tool syntaxes: the kinds of ways in which families write their calls.

Place in the flow: grammar under the formats. Imports its own modules only. A new kind is a new module here;
a family that uses a kind names it, with its markers, in its own file under `contracts/formats`.
"""

from contracts.calls.base import Handed, Mark, ReadCall, Section, ToolSyntax
from contracts.calls.marked import MarkedCalls
from contracts.calls.tagged import TaggedCalls

__all__ = ["Handed", "Mark", "MarkedCalls", "ReadCall", "Section", "TaggedCalls", "ToolSyntax"]
