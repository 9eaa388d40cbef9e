"""Tool syntaxes: the kinds of ways in which families write their calls.

Place in the flow: grammar under the formats. Imports its own modules only. A new kind is a new module here;
a family that uses a kind names it, with its markers, in its own file under `contracts/formats`.
"""

from contracts.calls.bare import BareCalls
from contracts.calls.base import Handed, Mark, ReadCall, Section, ToolSyntax
from contracts.calls.harmony import HarmonyCalls
from contracts.calls.keyed import KeyedCalls
from contracts.calls.listed import ListedCalls, TaggedOrListed
from contracts.calls.marked import MarkedCalls
from contracts.calls.parameters import ParameterCalls
from contracts.calls.pythonic import PythonicCalls
from contracts.calls.tagged import TaggedCalls

__all__ = [
    "BareCalls",
    "Handed",
    "HarmonyCalls",
    "KeyedCalls",
    "ListedCalls",
    "Mark",
    "MarkedCalls",
    "ParameterCalls",
    "PythonicCalls",
    "ReadCall",
    "Section",
    "TaggedCalls",
    "TaggedOrListed",
    "ToolSyntax",
]
