"""The registry of formats: one module a model family, found by listing this package.

Place in the flow: data under the judge and the rules. Imports its own modules only. Adding a format is
adding a module with a `FORMAT` here and a fixture folder; nothing else lists the families.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from contracts.errors import ShardgateError
from contracts.formats.base import Format, ToolSyntax

__all__ = ["FORMATS", "Format", "ToolSyntax", "format_for", "format_of_markers"]


@lru_cache(maxsize=1)
def _load() -> Mapping[str, Format]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")
    modules = (importlib.import_module(f"{__name__}.{name}") for name in names)
    return MappingProxyType({module.FORMAT.name: module.FORMAT for module in modules})


FORMATS: Mapping[str, Format] = _load()


def format_for(reasoning_parser: str | None, tool_parser: str | None) -> Format | None:
    """Return the format that both SGLang parser names belong to; None where neither is given.

    Raises:
        ShardgateError: a name belongs to no format, or the two belong to different ones.
    """
    if reasoning_parser is None and tool_parser is None:
        return None
    for found in FORMATS.values():
        fits_reasoning = reasoning_parser is None or reasoning_parser in found.reasoning_parsers
        fits_tools = tool_parser is None or tool_parser in found.tool_parsers
        if fits_reasoning and fits_tools:
            return found
    known = "; ".join(
        f"{f.name}: reasoning {', '.join(f.reasoning_parsers)}, tools {', '.join(f.tool_parsers) or 'none'}"
        for f in FORMATS.values()
    )
    raise ShardgateError(
        what="no format is mapped to these parsers",
        where=f"reasoning parser {reasoning_parser!r}, tool-call parser {tool_parser!r}",
        why=f"shardgate knows {known}",
        remedy="use a mapped pair, or add the family (docs/adding-a-format.md)",
    )


def format_of_markers(token_id: Callable[[str], int | None]) -> Format | None:
    """Return the format whose markers are all tokens of a vocabulary; the one with most markers wins.

    `token_id` is a codec's: the id of a marker, None where it is no token.
    """
    fitting = [f for f in FORMATS.values() if all(token_id(marker) is not None for marker in f.markers)]
    return max(fitting, key=lambda f: len(f.markers), default=None)
