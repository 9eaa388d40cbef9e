"""JSON read so that nothing of it is lost: a key that stands twice, NaN and the like are errors.

Place in the flow: under what reads data from elsewhere. Imports the standard library only.

`json.loads` keeps the last of two equal keys and takes `NaN` for a number; both would be another record than
the one that stands in the file.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn


class NotJson(ValueError):
    """A text that is no JSON, or JSON that no reader keeps whole; the text says why."""


def loads(text: str | bytes) -> Any:
    """Return what a JSON text holds.

    Raises:
        NotJson: it is none, a key stands twice in one object, or a number is none.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except NotJson:
        raise
    except (ValueError, RecursionError) as error:
        raise NotJson(" ".join(str(error).split())[:200]) from None


def values(text: str) -> list[Any]:
    """Return the JSON values of a text that holds one after the other, white space between them.

    Raises:
        NotJson: as `loads`.
    """
    decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
    out, at = [], 0
    text = text.strip()
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except NotJson:
            raise
        except (ValueError, RecursionError) as error:
            raise NotJson(" ".join(str(error).split())[:200]) from None
        out.append(value)
        while at < len(text) and text[at].isspace():
            at += 1
    return out


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = next(key for n, (key, _) in enumerate(pairs) if key in dict(pairs[:n]))
        raise NotJson(f"the key {twice[:60]!r} stands twice in one object")
    return made


def _constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is no JSON number")
