"""The tool calls of a batch's texts at once: names, arguments and ids, one after the other.

Place in the flow: under the rules' fast paths. Imports `contracts.rules.registry` by its types; numpy, orjson
and polars inside functions.

orjson reads what the one-row checks read with Python's own decoder, only less of it: what either of them
takes in another way (a lone surrogate, a key that comes twice, a number of thousands of digits, hundreds of
levels) is left to those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from contracts.rules.registry import Batch

NOT_PLAIN = -1
"""Instead of a number of calls: the text is not plainly the wire's list of calls; it is read one by one."""

MAX_BRACKETS = 300
MAX_DIGITS = 200
MARGIN = 64
"""Arguments with more brackets, or more digits in a row, may be too much for Python's decoder: it is asked,
some levels deeper than it will be."""

_CALL_KEYS = frozenset(("id", "index", "type", "function"))
_FUNCTION_KEYS = frozenset(("name", "arguments"))
_KEY = r'[^\\]"\s*:'
"""The end of a key in JSON. In a text's inside a quote has a backslash before it."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of n texts. `counts` says how many each has (`NOT_PLAIN`: not read here), in the texts'
    order.

    `owner` is each call's text, `nth` its place in it.
    """

    counts: np.ndarray[Any, Any]
    owner: np.ndarray[Any, Any]
    nth: np.ndarray[Any, Any]
    names: pl.Series
    arguments: pl.Series
    ids: pl.Series


def handed(batch: Batch) -> Calls:
    """Return the calls of a batch's responses, read once."""
    if "calls" not in batch.made:
        batch.made["calls"] = read(batch.frame["tool_calls"])
    return batch.made["calls"]  # type: ignore[no-any-return]


def read(texts: pl.Series) -> Calls:
    """Read the calls of each text: lists with the wire's keys and types, no key twice. A null has none."""
    import numpy as np
    import polars as pl

    counts = np.zeros(len(texts), dtype=np.int64)
    at = texts.is_not_null().arg_true().to_numpy()
    some = texts.gather(at)
    lists = _each(some.to_list())
    parts = _parts(lists)
    if parts is None:
        # Some text is odd: each is looked at by itself, and the odd ones are left out.
        keep = np.array([_parts([one]) is not None for one in lists], dtype=bool)
        counts[at[~keep]] = NOT_PLAIN
        at, some = at[keep], some.filter(pl.Series(keep, dtype=pl.Boolean))
        parts = _parts([one for one, kept in zip(lists, keep, strict=True) if kept])
    if parts is None:
        raise TypeError("calls that are plain one by one are not plain together")
    lengths, sizes, names, arguments, ids = parts
    counts[at] = lengths
    owner = np.repeat(np.arange(len(at)), lengths)
    # Each of the wire's keys is a quote before a colon: as many as were read means that none came twice.
    keys = np.bincount(owner, weights=sizes, minlength=len(at)) if len(owner) else np.zeros(len(at))
    once = keys == some.str.count_matches(_KEY).to_numpy()
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns = [pl.Series(part, dtype=pl.String) for part in (names, arguments, ids)]
    if not once.all():
        counts[at[~once]] = NOT_PLAIN
        kept = once[owner]
        owner, nth = owner[kept], nth[kept]
        columns = [column.filter(pl.Series(kept, dtype=pl.Boolean)) for column in columns]
    return Calls(counts, at[owner], nth, *columns)


def objects(texts: pl.Series) -> np.ndarray[Any, Any]:
    """Return which texts are JSON objects without white space around them, for any reader; none for a
    null."""
    import numpy as np

    braces = (texts.str.starts_with("{") & texts.str.ends_with("}")).fill_null(False)
    many = texts.str.count_matches(r"[\[{]") > MAX_BRACKETS
    long = texts.str.contains(rf"[0-9]{{{MAX_DIGITS}}}")
    told: np.ndarray[Any, Any] = np.array([one is not None for one in _each(texts.to_list())], dtype=bool)
    told &= braces.to_numpy()
    for at in np.flatnonzero(told & (many | long).fill_null(False).to_numpy()).tolist():
        told[at] = _read_by_python(texts[at])
    return told


def _read_by_python(text: str) -> bool:
    try:
        json.loads("[" * MARGIN + text + "]" * MARGIN)
    except (ValueError, RecursionError):
        return False
    return True


def _each(texts: Sequence[str | None]) -> list[Any]:
    """Decode each text; None for one that is no JSON."""
    import orjson

    try:
        return list(map(orjson.loads, texts))  # type: ignore[arg-type]
    except orjson.JSONDecodeError:
        return [_loaded(orjson.loads, text) for text in texts]


def _loaded(loads: Callable[[Any], Any], text: str | None) -> Any:
    try:
        return loads(text)
    except ValueError:
        return None


_Parts = tuple["np.ndarray[Any, Any]", list[int], list[str], list[str], list[str]]


def _parts(lists: Sequence[Any]) -> _Parts | None:
    """Return the lengths, and each call's number of keys, name, arguments and id; None where one is odd."""
    import numpy as np

    if set(map(type, lists)) - {list}:
        return None
    calls: list[Mapping[str, Any]] = list(chain.from_iterable(lists))
    try:
        functions = list(map(itemgetter("function"), calls))
        if set(map(type, chain(calls, functions))) - {dict}:
            return None
        names = list(map(itemgetter("name"), functions))
        arguments = list(map(itemgetter("arguments"), functions))
        ids = [call.get("id") or "" for call in calls]
        plain = (
            not set(map(type, chain(names, arguments, ids))) - {str}
            and set(chain.from_iterable(calls)) <= _CALL_KEYS
            and set(chain.from_iterable(functions)) <= _FUNCTION_KEYS
            and {call.get("type", "function") for call in calls} <= {"function"}
            and {type(call.get("index")) for call in calls} <= {int, type(None)}
        )
    except (TypeError, KeyError):
        return None
    if not plain:
        return None
    sizes = [len(call) + 2 for call in calls]
    return np.array(list(map(len, lists)), dtype=np.int64), sizes, names, arguments, ids
