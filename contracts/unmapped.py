"""The parser names of SGLang that no format is mapped to, each with the reason.

Place in the flow: data beside the formats. Imports nothing but the standard library. A test holds this
list and the formats together to what the installed SGLang registers, so that a new release is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TYPED_BLOCKS = "typed blocks under headers of their own, of which shardgate has no layout yet"
_TEMPLATE = "the grammar lies in the model's own response template, not in the parser"

UNMAPPED_REASONING: Mapping[str, str] = MappingProxyType(
    {
        "dots": "its end token is not confirmed",
        "ling3": "moves reasoning without an answer into content, which no layout says yet",
        "minimax-append-think": "adds an opener that the model did not write",
        "minimax-m3": "nested tags and a switch with several modes: no syntax yet",
        "beam": "harmony messages with calls by parameter and name, sorted: no layout yet",
        "inkling": _TYPED_BLOCKS,
        "kimi_k3": "nested channels opened and closed by several tokens: no layout yet",
        "muse": _TYPED_BLOCKS,
        "response_template": _TEMPLATE,
    }
)
UNMAPPED_TOOLS: Mapping[str, str] = MappingProxyType(
    {
        "dots": "its end token is not confirmed",
        "ling3": "which form its model writes is not confirmed",
        "minimax-m3": "nested tags and a switch with several modes: no syntax yet",
        "spark25": "its wire form and end token are not confirmed",
        "beam": "calls as messages with parameters by name, sorted: no syntax yet",
        "inkling": _TYPED_BLOCKS,
        "kimi_k3": "nested channels opened and closed by several tokens: no syntax yet",
        "muse": _TYPED_BLOCKS,
        "response_template": _TEMPLATE,
    }
)
