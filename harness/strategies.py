"""Hypothesis strategies for token streams of a format: inside its safe grammar, and disturbed.

Place in the flow: beside the tests; public, usable in another repository's tests. Imports `contracts` and
hypothesis.

Streams are built from pieces so that they shrink piece by piece: the smallest failing stream is what a user
reads. Markers are single ids where the vocabulary has them; `spelled` ones are written in ordinary tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from hypothesis import reject
from hypothesis import strategies as st

from contracts.calls import ToolSyntax
from contracts.formats import Format
from contracts.layouts import Parts
from contracts.records import Json, ThinkingMode
from contracts.tokens import Codec
from harness.odd_inputs import ARGUMENTS, CALL_IDS, CALL_NAMES, ODD_TEXTS


@dataclass(frozen=True, slots=True)
class Stream:
    """One response to judge: ids with the end token, the prompt's thinking mode, how it finished.

    `tools` are the request's declarations, None for none.
    """

    ids: tuple[int, ...]
    thinking_mode: ThinkingMode
    finish_reason: str
    tools: tuple[Mapping[str, Json], ...] | None


DECLARED = {
    "city": "string",
    "count": "integer",
    "ratio": "number",
    "flag": "boolean",
    "tags": "array",
    "options": "object",
}
"""The parameters that `declared_tools` declares with a type; `x` is declared without one."""


def declared_tools(*names: str) -> tuple[Mapping[str, Json], ...]:
    """Return OpenAI-style declarations of tools that take any object."""
    properties: dict[str, Json] = {name: {"type": kind} for name, kind in DECLARED.items()}
    parameters = {"type": "object", "properties": {**properties, "x": {}}}
    return tuple({"type": "function", "function": {"name": n, "parameters": parameters}} for n in names)


TOOLS = declared_tools("f", "get_weather", "a.b-c_d")


@lru_cache(maxsize=64)
def plain_texts(fmt: Format, codec: Codec, *, min_size: int = 0) -> st.SearchStrategy[str]:
    """Texts without any marker of the format that the tokenizer gives back unchanged."""
    words = st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=12))
    forbidden = (*fmt.markers, *fmt.end_tokens, *fmt.reserved)

    def fits(text: str) -> bool:
        if len(text) < min_size or any(marker in text for marker in forbidden):
            return False
        return codec.decode_bytes(codec.encode(text)) == text.encode()

    return st.lists(words, max_size=4).map("".join).filter(fits)


def json_values() -> st.SearchStrategy[dict[str, Json]]:
    """Small JSON objects, keys and texts in any script."""
    scalars = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8)
    values = st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    )
    return st.dictionaries(st.text(max_size=6), values, max_size=3)


def json_objects() -> st.SearchStrategy[str]:
    """JSON objects as text, compact or spaced, ASCII-escaped or not."""
    return st.builds(
        lambda value, ascii_only, tight: json.dumps(
            value, ensure_ascii=ascii_only, separators=(",", ":") if tight else None
        ),
        json_values(),
        st.booleans(),
        st.booleans(),
    )


@lru_cache(maxsize=64)
def safe_streams(fmt: Format, codec: Codec, *, tools: bool = True) -> st.SearchStrategy[Stream]:
    """Streams of the format's safe grammar (`Format.safe_grammar`), canonically encoded."""
    texts = plain_texts(fmt, codec)

    @st.composite
    def draw(pick: Callable[[st.SearchStrategy[object]], object]) -> Stream:
        thinking = pick(st.sampled_from(modes_of(fmt)))
        calls = _safe_calls(fmt, pick) if tools and fmt.tools else []
        suited = texts.filter(fmt.layout.leaves)
        if tools and fmt.tools:
            suited = suited.filter(fmt.tools.leaves)
        content = str(pick(suited if calls else suited.filter(bool)))
        if calls and fmt.tools and not fmt.tools.keeps_text:
            content = content.strip()
        if calls and fmt.tools and (fmt.tools.alone or not fmt.tools.follows(content)):
            content = ""
        reasoning, closed, finish = "", False, "stop"
        if thinking is ThinkingMode.THINKING and fmt.thinks:
            reasoning, closed = str(pick(texts)), bool(pick(st.booleans()))
            if not closed or not fmt.forced(ThinkingMode.THINKING):
                reasoning = reasoning or "r"
            if not closed:
                finish, content, calls = str(pick(st.sampled_from(("stop", "length")))), "", []
        parts = Parts(reasoning, content, calls, closed, opened=not fmt.opener_prefilled)
        written = [text for _, text in fmt.layout.pieces(fmt, parts)]
        text = "".join(written)
        if any(text.count(mark) != sum(part.count(mark) for part in written) for mark in fmt.markers):
            reject()  # two harmless texts make a marker where they meet
        if finish == "stop":
            text += (calls and fmt.call_end) or fmt.end_tokens[0]
        declared = TOOLS if tools and fmt.tools else None
        return Stream(tuple(codec.encode(text)), ThinkingMode(str(thinking)), finish, declared)

    built: st.SearchStrategy[Stream] = draw()
    return built.filter(lambda stream: _still_safe(stream, fmt, codec))


def _still_safe(stream: Stream, fmt: Format, codec: Codec) -> bool:
    # Two harmless texts can make a marker where they meet.
    ids = stream.ids
    tokens = [marker for marker in fmt.markers if codec.token_id(marker) is not None]
    marker_ids = [i for i in ids if codec.decode_bytes([i]).decode("utf-8", "replace") in tokens]
    text = codec.decode_bytes(ids).decode("utf-8", "replace")
    return len(marker_ids) == sum(text.count(marker) for marker in tokens)


def _safe_calls(fmt: Format, pick: Callable[[st.SearchStrategy[object]], object]) -> list[dict[str, str]]:
    syntax = fmt.tools
    assert syntax is not None
    declared = [str(tool["function"]["name"]) for tool in TOOLS]
    names = st.sampled_from([name for name in declared if syntax.takes(name)])
    calls = []
    for index in range(int(str(pick(st.integers(0, 3 if syntax.parallel else 1))))):
        name = str(pick(names))
        arguments = str(pick(safe_arguments(fmt)))
        calls.append({"name": name, "arguments": arguments, "id": f"functions.{name}:{index}"})
    return calls


def modes_of(fmt: Format) -> tuple[ThinkingMode, ...]:
    """The thinking modes that a family has: without a switch it always thinks."""
    if fmt.forcing == "always":
        return (ThinkingMode.THINKING,)
    return (ThinkingMode.THINKING, ThinkingMode.INSTANT)


def safe_arguments(fmt: Format) -> st.SearchStrategy[str]:
    """Arguments that the family's parsers hand out as they were written, see `ToolSyntax.spelling`."""
    syntax = fmt.tools
    assert syntax is not None
    forbidden = (*fmt.markers, *fmt.end_tokens, *fmt.reserved)
    if syntax.spelling == "strings":
        made = _typed_arguments(syntax)
        forbidden = (*forbidden, *syntax.spoils)
    elif syntax.spelling == "dumped":
        made = json_values().map(lambda value: json.dumps(value, ensure_ascii=False))
    else:
        made = json_objects()
    return made.filter(lambda text: not any(marker in text for marker in forbidden))


def _typed_arguments(syntax: ToolSyntax) -> st.SearchStrategy[str]:
    """Arguments of declared types (`declared_tools`) whose values a typed syntax hands out unchanged."""
    texts = st.text(max_size=12) | st.sampled_from(ODD_TEXTS)
    if syntax.texts == "words":
        texts = st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=12)
        texts = texts.filter(lambda text: not text.isdecimal())
    elif syntax.texts == "trimmed":
        texts = texts.filter(lambda text: text == text.strip())
    elif syntax.texts == "prose":
        texts = texts.filter(lambda text: not any(c in text for c in "\"'\\") and not _is_json(text))
    values: dict[str, st.SearchStrategy[Json]] = {
        "city": texts.filter(lambda text: text.lower() not in _TYPED_WORDS),
        "count": st.integers(-(10**9), 10**9),
        "ratio": st.integers(-999, 999).map(lambda number: number + 0.5),
        "flag": st.booleans(),
        "tags": json_values().map(lambda value: list(value.values())),
        "options": json_values(),
    }
    kept = {name: values[name] for name, kind in DECLARED.items() if kind in syntax.kinds}
    pairs = st.lists(st.sampled_from(sorted(kept)), max_size=3, unique=True)
    return pairs.flatmap(
        lambda names: st.tuples(*(kept[name] for name in names)).map(
            lambda drawn: json.dumps(dict(zip(names, drawn, strict=True)), ensure_ascii=False)
        )
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


_TYPED_WORDS = ("true", "false", "null", "none", "nan", "inf", "infinity", "nil", "undefined")


def spell(text: str, codec: Codec) -> list[int]:
    """Write a text in ordinary tokens, character by character, so that no marker token comes out."""
    return [token for char in text for token in codec.encode(char)]


@lru_cache(maxsize=64)
def pieces(fmt: Format, codec: Codec) -> st.SearchStrategy[tuple[int, ...]]:
    """One piece of a disturbed stream: a marker, whole, spelled or half; text, a call, any token."""
    markers = [*fmt.markers, *fmt.end_tokens, *fmt.reserved]
    size = codec.vocab_size or 1
    whole = st.sampled_from([tuple(codec.encode(text)) for text in markers])
    spelled = st.sampled_from([tuple(spell(text, codec)) for text in markers])
    halves = [half for text in markers for half in (text[: len(text) // 2], text[len(text) // 2 :])]
    half = st.sampled_from([tuple(codec.encode(text)) for text in halves])
    odd = st.sampled_from([tuple(codec.encode(text)) for text in ODD_TEXTS])
    split = st.sampled_from([tuple(spell(text, codec)) for text in ("Hello", "日本", '{"a": 1}', "the end")])
    fragment = st.sampled_from([tuple(codec.encode(c))[:1] for c in ("日", "🙂", "é", "\U0001f1e8")])
    text = st.text(max_size=8).map(lambda value: tuple(codec.encode(value)))
    anything = st.integers(0, size - 1).map(lambda token: (token,))
    choices = [whole, spelled, half, odd, split, fragment, text, anything]
    if fmt.tools is not None:
        choices.insert(1, _calls(fmt, codec))
    return st.one_of(choices)


def _calls(fmt: Format, codec: Codec) -> st.SearchStrategy[tuple[int, ...]]:
    syntax = fmt.tools
    assert syntax is not None
    headers = st.sampled_from(CALL_IDS if syntax.has_ids else CALL_NAMES)
    gaps = st.sampled_from(("", "", "", "\n", " ", "x"))

    def build(drawn: list[tuple[str, str]], gap: str, cut: str | None, where: int) -> tuple[int, ...]:
        calls = [{"id": header, "name": header, "arguments": text} for header, text in drawn]
        text = syntax.write(calls)
        if cut is not None and cut in text:
            text = text.replace(cut, "", 1)
        seams = [at for marker in syntax.markers for at in _around(text, marker)] or [0]
        at = seams[where % len(seams)]
        return tuple(codec.encode(text[:at] + gap + text[at:]))

    arguments = st.one_of(st.sampled_from(ARGUMENTS), json_objects(), safe_arguments(fmt))
    some = st.lists(st.tuples(headers, arguments), min_size=1, max_size=2)
    cuts = st.one_of(st.none(), st.none(), st.sampled_from(syntax.markers or ("{",)))
    return st.builds(build, some, gaps, cuts, st.integers(0, 7))


def _around(text: str, marker: str) -> list[int]:
    at = text.find(marker)
    return [] if at < 0 else [at, at + len(marker)]


EDITS = ("drop", "double", "replace", "swap", "split", "space")
"""What `edited_streams` does to a token: leaves it out, writes it twice, puts another piece in its place,
exchanges it with the next, writes it in smaller tokens, puts white space before it."""


@lru_cache(maxsize=64)
def edited_streams(fmt: Format, codec: Codec, *, tools: bool = True) -> st.SearchStrategy[Stream]:
    """Safe streams with one to three of `EDITS` done to tokens, markers as likely as all the rest."""
    markers = {codec.token_id(text) for text in (*fmt.markers, *fmt.end_tokens)} - {None}
    edits = st.tuples(
        st.sampled_from(EDITS), st.booleans(), st.integers(0, 63), pieces(fmt, codec), st.sampled_from(" \n")
    )

    def edit(stream: Stream, drawn: list[tuple[str, bool, int, tuple[int, ...], str]]) -> Stream:
        ids = stream.ids
        for kind, at_marker, where, piece, space in drawn:
            places = [at for at, token in enumerate(ids) if not at_marker or token in markers]
            if not places:
                continue
            at = places[where % len(places)]
            this = ids[at : at + 1]
            new = {
                "drop": (),
                "double": this * 2,
                "replace": piece,
                "swap": ids[at + 1 : at + 2] + this,
                "split": _split(this[0], codec),
                "space": (*codec.encode(space), *this),
            }[kind]
            ids = ids[:at] + new + ids[at + (2 if kind == "swap" else 1) :]
        return _as_finished(replace(stream, ids=ids), fmt, codec)

    return st.builds(edit, safe_streams(fmt, codec, tools=tools), st.lists(edits, min_size=1, max_size=3))


def _split(token: int, codec: Codec) -> tuple[int, ...]:
    try:
        return tuple(spell(codec.decode_bytes([token]).decode(), codec))
    except ValueError:
        return (token,)


def _as_finished(stream: Stream, fmt: Format, codec: Codec) -> Stream:
    """Say `stop` of a stream that ends with an end token, `length` of any other."""
    ended = bool(stream.ids) and stream.ids[-1] in {codec.token_id(text) for text in fmt.end_tokens}
    return replace(stream, finish_reason="stop" if ended else "length")


@lru_cache(maxsize=64)
def disturbed_streams(fmt: Format, codec: Codec, *, tools: bool = True) -> st.SearchStrategy[Stream]:
    """Any stream at all: pieces in any order; safe streams with pieces put in, cut, or edited."""
    one = pieces(fmt, codec)
    free = st.lists(one, max_size=8).map(lambda parts: tuple(token for part in parts for token in part))
    ends = [codec.encode(text) for text in fmt.end_tokens]
    end_ids = [found[0] for found in ends if len(found) == 1]

    def patch(stream: Stream, piece: tuple[int, ...], where: float, keep: float) -> Stream:
        at = int(where * len(stream.ids))
        ids = stream.ids[:at] + piece + stream.ids[at:]
        kept = ids[: max(0, round(keep * len(ids)))]
        return _as_finished(replace(stream, ids=kept), fmt, codec)

    unit = st.floats(0, 1, allow_nan=False)
    patched = st.builds(
        patch, safe_streams(fmt, codec, tools=tools), one, unit, st.one_of(st.just(1.0), st.just(1.0), unit)
    )

    def finish(ids: tuple[int, ...], end: int | None, mode: ThinkingMode, declared: bool) -> Stream:
        body = ids if end is None else (*ids, end)
        ended = bool(body) and body[-1] in end_ids
        reason = "stop" if ended else "length"
        return Stream(body, mode, reason, TOOLS if declared and tools and fmt.tools else None)

    loose = st.builds(
        finish,
        free,
        st.one_of(st.none(), st.sampled_from(end_ids)),
        st.sampled_from((ThinkingMode.THINKING, ThinkingMode.INSTANT)),
        st.booleans(),
    )
    return st.one_of(loose, patched, edited_streams(fmt, codec, tools=tools))
