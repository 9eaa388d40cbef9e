"""How the rows of a batch are laid out: one pattern for all rows whose requests framed them alike.

Place in the flow: under `contracts.rules.proven`. Imports calls, formats, judgement and layouts of
`contracts`; numpy and polars inside functions.

For each group the real rebuilder lays out, and the real judge judges, one stand-in response with the
group's parts (has it reasoning, has it content, how many calls); only if that is `exact` is there a
pattern: the texts that stand before and between the parts, and behind the last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from contracts.calls import PythonicCalls
from contracts.formats import Format
from contracts.layouts.harmony import HarmonyLayout
from contracts.layouts.think import ThinkLayout
from contracts.layouts.wrapped import WrappedLayout
from contracts.records import Fields, Mode, Verdict
from contracts.rules.handed import NOT_PLAIN, handed
from contracts.rules.proven_calls import CALL_ID, LITERAL, parts_of, readable_calls, stand_ins
from contracts.rules.tails import UNKNOWN, tails
from contracts.tokens import Codec

if TYPE_CHECKING:
    import numpy as np

    from contracts.rules.registry import Batch

MAX_CALLS = 64
"""Calls of one response; a response with more is judged."""

_REASONING, _CONTENT = "some thinking", "an answer"
_KEYS = (
    "template_kwargs",
    "constraint",
    "reasoning_parser",
    "tool_parser",
    "finish_reason",
    "matched_stop",
)

Slot = Literal["reasoning", "content", "header", "arguments", "written"]
Edges = dict[str, tuple[set[str], set[str]]]
"""Texts that a part must not begin with, and must not end with: with its neighbour they made a marker."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """How the rows of a group are laid out.

    The text is before + reasoning + between + content, then for each call lead + header + middle +
    arguments (`calls` holds lead and middle), then after. `markers` is how many marker tokens that is,
    besides those that written arguments hold; `ended` tells that the last one is an end token. `raw` is a
    response that no parser cut: its text is its content, whatever that holds but for end tokens.
    """

    before: str = ""
    between: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    after: str = ""
    markers: int = 0
    ended: bool = False
    raw: bool = False
    edges: Edges = field(default_factory=dict)


@lru_cache(maxsize=64)
def texts_of(fmt: Format, codec: Codec) -> dict[str, bool]:
    """Return the markers and end tokens of a format, none twice, and whether each is a token."""
    return {text: codec.token_id(text) is not None for text in (*fmt.markers, *fmt.end_tokens)}


@lru_cache(maxsize=64)
def readable(fmt: Format, codec: Codec) -> bool:
    """Whether a format's rows can be proven here: a layout and a syntax that are known, markers apart.

    A marker that is a token must be its own text, and none may stand inside another: then as many of their
    texts as of their tokens means that none was spelled in ordinary tokens.
    """
    texts = texts_of(fmt, codec)
    return (
        type(fmt.layout) in (ThinkLayout, WrappedLayout, HarmonyLayout)
        and readable_calls(fmt.tools, tuple(texts))
        and not any(one != other and one in other for one in texts for other in texts)
        and all(
            (token := codec.token_id(text)) is None or codec.decode_bytes([token]) == text.encode()
            for text in texts
        )
        and all(codec.token_id(text) is not None for text in fmt.end_tokens)
    )


def marker_ids(fmt: Format, codec: Codec) -> list[int]:
    """Return the ids of the markers and end tokens that are tokens."""
    return [token for text in texts_of(fmt, codec) if (token := codec.token_id(text)) is not None]


def patterns_of(batch: Batch, fmt: Format, codec: Codec) -> tuple[np.ndarray[Any, Any], list[Pattern | None]]:
    """Return each row's group, and each group's pattern (None: the judge's)."""
    import numpy as np
    import polars as pl

    from contracts.rules.structural import parse

    frame = batch.frame
    modes = {}
    for text in frame["sampling_params"].unique().to_list():
        value = parse(text) if text is not None else None
        mode = value.get("mode") if isinstance(value, dict) else None
        modes[text] = mode if isinstance(mode, str) and mode in set(Mode) else None
    counts = handed(batch).counts
    # A list without calls is not what a response without any hands out.
    counts = np.where((counts == 0) & frame["tool_calls"].is_not_null().to_numpy(), NOT_PLAIN, counts)
    keys = frame.select(
        pl.col("sampling_params").replace_strict(modes, return_dtype=pl.String).alias("mode"),
        *(pl.col(name).cast(pl.String) for name in _KEYS),
        tools=pl.col("tools").is_null(),
        thinks=pl.col("reasoning_content").fill_null("") != "",
        says=pl.col("content").fill_null("") != "",
        tail=pl.Series(tails(batch, fmt, codec)),
        calls=pl.Series(np.minimum(counts, MAX_CALLS + 1)),
    )
    ranked = keys.select(pl.struct(pl.all()).rank("dense").alias("group") - 1).to_series()
    groups = ranked.to_numpy().astype("int64")
    _, firsts = np.unique(groups, return_index=True)
    patterns: list[Pattern | None] = []
    for at in firsts.tolist():
        mode, tail, count = keys["mode"][at], keys["tail"][at], keys["calls"][at]
        known = mode is not None and tail != UNKNOWN and 0 <= count <= MAX_CALLS
        row = batch.table.slice(at, 1).to_pylist()[0] if known else None
        patterns.append(_pattern(row, count, fmt, codec) if row is not None else None)
    return groups, patterns


def _pattern(row: dict[str, Any], count: int, fmt: Format, codec: Codec) -> Pattern | None:
    """Lay out and judge a group's stand-in; `row` is any row of the group, read for its framing alone."""
    from contracts.judgement import judge_fields
    from contracts.rebuild import rebuild
    from contracts.rules.fidelity import framing_of_row
    from contracts.shard import decode_matched_stop

    matched = decode_matched_stop(row["matched_stop"])
    framing = framing_of_row(row, fmt, codec)
    if framing.mode is Mode.RAW:
        plain = row["finish_reason"] != "tool_calls" and not isinstance(matched, str) and not count
        return Pattern(raw=True) if plain else None
    bare_list = isinstance(fmt.tools, PythonicCalls) and not fmt.tools.section_begin
    if (count and fmt.tools is None) or (bare_list and isinstance(matched, str)):
        return None
    calls = stand_ins(fmt.tools, count) if fmt.tools is not None else []
    thought = _REASONING if row["reasoning_content"] else None
    said = _CONTENT if row["content"] else None
    wire = [
        {"id": c["id"], "function": {"name": c["name"], "arguments": c["arguments"]}, "type": "function"}
        for c in calls
    ]
    fields = Fields(thought, said, json.dumps(wire) if wire else None)
    text = rebuild(fields, framing).text
    slots: list[tuple[Slot, str]] = [("reasoning", thought)] if thought else []
    slots += [("content", said)] if said else []
    own: Slot = "arguments" if type(fmt.tools) in LITERAL else "written"
    for call in calls if fmt.tools is not None else ():
        header, written = parts_of(fmt.tools, call)  # type: ignore[arg-type]
        slots += [("header", header), (own, written)]
    pieces = _cut(text, [part for _, part in slots])
    if pieces is None:
        return None
    ids = codec.encode(text)
    judged = judge_fields(
        ids, fields, codec=codec, framing=framing, finish_reason=row["finish_reason"], matched_stop=matched
    )
    if judged.verdict is not Verdict.EXACT or judged.losses or not judged.claims.captured:
        return None
    texts = texts_of(fmt, codec)
    edges = _edges(pieces, [kind for kind, _ in slots], tuple(texts))
    tokens = marker_ids(fmt, codec)
    spelled = [one for one, is_token in texts.items() if is_token]
    markers = sum(token in tokens for token in ids)
    if edges is None or markers != sum(text.count(one) for one in spelled):
        return None
    inside = sum(part.count(one) for kind, part in slots if kind == "written" for one in spelled)
    found = dict(zip([kind for kind, _ in slots[:2]], pieces, strict=False))
    first = len(slots) - 2 * len(calls)
    return Pattern(
        found.get("reasoning", ""),
        found.get("content", ""),
        tuple((pieces[first + 2 * n], pieces[first + 2 * n + 1]) for n in range(len(calls))),
        pieces[-1],
        markers - inside,
        any(text.endswith(end) for end in fmt.end_tokens),
        edges=edges,
    )


def _cut(text: str, parts: Sequence[str]) -> list[str] | None:
    """Cut a stand-in's text at its parts; None where they do not stand in it once, in order."""
    pieces = []
    for part in parts:
        before, found, rest = text.partition(part)
        if not found or part in rest:
            return None
        pieces.append(before)
        text = rest
    return [*pieces, text]


def _edges(pieces: Sequence[str], slots: Sequence[Slot], texts: Sequence[str]) -> Edges | None:
    """Return what parts free of markers must not begin or end with, so that no marker comes about at a seam.

    None where a seam is unsafe whatever the parts are. Headers are words, written arguments begin and end
    with texts of their family's own.
    """
    edges: Edges = {slot: (set(), set()) for slot in slots}
    for number, piece in enumerate(pieces):
        left = slots[number - 1] if number else None
        right = slots[number] if number < len(slots) else None
        if not piece and left and right and right != "written":
            return None
        for text in texts:
            if left and right and "written" not in (left, right) and piece != text and piece in text:
                return None
            for n in range(1, len(text)):
                if left and piece.startswith(text[n:]):
                    if left == "header" and CALL_ID.fullmatch(f"x{text[:n]}"):
                        return None
                    edges[left][1].add(text[:n])
                if right and piece.endswith(text[:n]):
                    if right == "header" and CALL_ID.fullmatch(f"x{text[n]}"):
                        return None
                    edges[right][0].add(text[n:])
    return edges
