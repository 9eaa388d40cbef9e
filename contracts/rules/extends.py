"""Whether a row's prompt extends its parent's: message by message, and token by token.

Place in the flow: under the rules over conversations (`contracts.rules.turns`), which know the parents.
Imports the tape; polars in functions. Only rows with a parent, and their parents, are read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from contracts.rules.tape import Tape, read_again

if TYPE_CHECKING:
    import polars as pl

Pair = tuple[int, int]
"""(row, its parent) by running number."""
MOVED = ("system", "developer")
"""Agents write these anew each turn."""


def compared(tape: Tape, pairs: Sequence[Pair]) -> list[tuple[str, int, str]]:
    """Return (rule, row, message) of each row whose messages or tokens do not go on from its parent's."""
    if not pairs:
        return []
    found: list[tuple[str, int, str]] = []
    said = _read(tape, {row for pair in pairs for row in pair}, "messages", _said)
    raw = _read(tape, {parent for _, parent in pairs}, "response_text_raw", lambda value: value or "")
    differing = set()
    for row, parent in pairs:
        told = _differs(said.get(row), said.get(parent), raw.get(parent) or "")
        if told:
            differing.add(row)
            found.append(("parent-differs", row, told))
    left = [pair for pair in pairs if pair[0] not in differing]
    return found + _split(tape, left)


def _read(tape: Tape, rows: Iterable[int], column: str, made: Any) -> dict[int, Any]:
    """Return running number → what `made` makes of the row's value; a row group is held at a time."""
    by_shard: dict[str, dict[int, int]] = {}
    for index, (shard, row) in tape.places(rows).items():
        by_shard.setdefault(shard, {})[row] = index
    return {
        places[row]: made(value)
        for shard, places in by_shard.items()
        for row, value in read_again(shard, places, column)
        if value is not None
    }


def _said(messages: Any) -> list[tuple[str, str]]:
    return [
        (str(message["role"]), (message["content"] or "").strip())
        for message in messages
        if message is not None
    ]


def _differs(
    own: Sequence[tuple[str, str]] | None, parent: Sequence[tuple[str, str]] | None, raw: str
) -> str:
    """Return where a row's messages leave its parent's, "" where they do not."""
    if not own or not parent:
        return ""
    mine = [message for message in own[:-1] if message[0] not in MOVED]
    its = [message for message in parent if message[0] not in MOVED]
    if len(mine) < len(its):
        return f"it has {len(mine)} messages before the response, its parent {len(its)} with its own"
    for index, (here, there) in enumerate(zip(mine, its, strict=False)):
        last = index == len(its) - 1
        # Of the answer the next prompt may have less: thinking is taken out of it.
        same = here == there or (last and here[0] == there[0] and (here[1] in there[1] or here[1] in raw))
        if not same:
            return f"message {index} is {here[0]} {here[1][:40]!r}, its parent's {there[0]} {there[1][:40]!r}"
    return ""


def _split(tape: Tape, pairs: Sequence[Pair]) -> list[tuple[str, int, str]]:
    """Return the rows whose prompt's ids do not begin with the parent's prompt and response."""
    column = tape.column
    parents = {parent for _, parent in pairs}
    ends = {parent: (int(column("prompt")[parent]), int(column("response")[parent])) for parent in parents}
    with_ids = [(row, parent) for row, parent in pairs if ends[parent][0] and column("prompt")[row]]
    prompts = _read(tape, parents, "prompt_token_ids", _hash)
    responses = _read(tape, parents, "response_token_ids", _hash)
    lengths: dict[int, int] = dict(with_ids)
    own = _read_prefixes(tape, lengths, ends)
    found = []
    for row, parent in with_ids:
        begun = (prompts.get(parent), responses.get(parent))
        if row not in own or None in begun or own[row] == begun:
            continue
        where = "the parent's prompt" if own[row][0] != begun[0] else "the parent's response"
        found.append(("prompt-rewritten", row, f"its ids leave {where}"))
    return found


def _read_prefixes(
    tape: Tape, parents: Mapping[int, int], ends: Mapping[int, tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """Return row → hashes of its prompt where the parent's prompt and response should stand."""
    by_shard: dict[str, dict[int, int]] = {}
    for index, (shard, row) in tape.places(parents).items():
        by_shard.setdefault(shard, {})[row] = index
    out = {}
    for shard, places in by_shard.items():
        for row, ids in read_again(shard, places, "prompt_token_ids"):
            if ids is not None:
                prompt, response = ends[parents[places[row]]]
                out[places[row]] = (_hash(ids[:prompt]), _hash(ids[prompt : prompt + response]))
    return out


def _hash(ids: pl.Series) -> int:
    """Return a hash of some ids."""
    return hash(ids.to_numpy().tobytes())
