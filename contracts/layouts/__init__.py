"""Layouts: how a family frames its reasoning, its content and its calls in one response.

Place in the flow: grammar under the formats. Imports its own modules only. Most families think between an
opener and a closer (`ThinkLayout`, the default); the others write messages on channels. A new kind is a new
module here; a family that uses a kind names it in its own file under `contracts/formats`.
"""

from contracts.layouts.base import Layout, Parts, Piece
from contracts.layouts.harmony import HarmonyLayout
from contracts.layouts.think import THINK, ThinkLayout
from contracts.layouts.wrapped import WrappedLayout

__all__ = ["THINK", "HarmonyLayout", "Layout", "Parts", "Piece", "ThinkLayout", "WrappedLayout"]
