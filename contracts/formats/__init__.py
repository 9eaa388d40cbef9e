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
from contracts.formats.base import Format

__all__ = ["FORMATS", "Format", "format_for", "format_named", "format_of_markers"]


@lru_cache(maxsize=1)
def _load() -> Mapping[str, Format]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")
    modules = (importlib.import_module(f"{__name__}.{name}") for name in names)
    return MappingProxyType({module.FORMAT.name: module.FORMAT for module in modules})


FORMATS: Mapping[str, Format] = _load()


def format_for(reasoning_parser: str | None, tool_parser: str | None) -> Format | None:
    """Return the format that both SGLang parser names belong to; None where neither is given.

    Two parsers of different families make a format of both: the one's thinking, the other's calls.

    Raises:
        ShardgateError: a name belongs to no format.
    """
    if reasoning_parser is None and tool_parser is None:
        return None
    thinking = [f for f in FORMATS.values() if reasoning_parser in f.reasoning_parsers]
    calling = [f for f in FORMATS.values() if tool_parser in f.tool_parsers]
    if reasoning_parser is None and calling:
        return calling[0]
    if tool_parser is None and thinking:
        return thinking[0]
    if not thinking or not calling:
        raise _unmapped(reasoning_parser, tool_parser)
    both = next((found for found in thinking if found in calling), None)
    return both or thinking[0].with_tools_of(calling[0])


def format_named(name: str) -> Format | None:
    """Return the format of a name, two families' joined by `+` included; None where there is none."""
    first, plus, second = name.partition("+")
    found, other = FORMATS.get(first), FORMATS.get(second)
    if not plus or found is None:
        return found
    return None if other is None else found.with_tools_of(other)


def _unmapped(reasoning_parser: str | None, tool_parser: str | None) -> ShardgateError:
    reasoning = sorted({name for f in FORMATS.values() for name in f.reasoning_parsers})
    tools = sorted({name for f in FORMATS.values() for name in f.tool_parsers})
    return ShardgateError(
        what="no format is mapped to these parsers",
        where=f"reasoning parser {reasoning_parser!r}, tool-call parser {tool_parser!r}",
        why=f"shardgate knows the reasoning parsers {', '.join(reasoning)}; the tool-call parsers "
        f"{', '.join(tools)}",
        remedy="use mapped ones, or add the family (docs/adding-a-format.md)",
    )


def format_of_markers(token_id: Callable[[str], int | None]) -> Format | None:
    """Return the format whose markers are all tokens of a vocabulary; the one with most markers wins.

    `token_id` is a codec's: the id of a marker, None where it is no token.
    """
    fitting = [
        f for f in FORMATS.values() if f.markers and all(token_id(marker) is not None for marker in f.markers)
    ]
    return max(fitting, key=lambda f: len(f.markers), default=None)
