"""The digests of `contracts.digests` for a batch of rows at once: the same bytes, made with less ado.

Place in the flow: under the rules and the scan. Imports columns and digests of `contracts`; orjson and polars
inside functions. orjson writes what `json.dumps` writes as long as all of it is ASCII; for the
rest, and wherever a row is odd, the one-row functions answer.

Most of what is hashed is text that stands in a row up to three times: as a field, as the same field of the
last message, and inside of the raw text. It is written as JSON once, and its bytes are used at each of these
places where polars has shown that the texts are equal. A column that holds one value is written once a batch.
"""

from __future__ import annotations

import array
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any

from contracts.columns import ids_of
from contracts.digests import CONTENT_COLUMNS, NAME_COLUMNS

if TYPE_CHECKING:
    import polars as pl

    from contracts.rules.registry import Batch

TEXTS_AT_ONCE = 64
FRAMES = 4
"""Ways in which a batch's raw texts may be made of their fields; those of other ways are written whole."""

_TEXTS = ("messages", "response_text_raw", "reasoning_content", "content")
"""The columns that are long; what stands between them is mostly the same for all rows."""

Pieces = bytes | list[bytes]
"""A part of the rows' JSON: one for all rows, or one a row."""


def digests_differ(batch: Batch) -> list[bool]:
    """Return per row whether one of its two digests is not the one stored; True where it can't be told."""
    import polars as pl

    frame = batch.frame
    if sys.byteorder != "little" or not frame.height:
        return [True] * frame.height
    sha256 = hashlib.sha256
    # A row without a last message has no JSON here, and no place in a shard.
    messages = pl.col("messages")
    lacking = (messages.list.len().fill_null(0) == 0) | messages.list.last().is_null()
    odd = frame.select(lacking.alias("odd")).to_series().to_list()
    out = []
    for unfit, prompt, response, stored_prompt, stored, text in zip(
        odd,
        _ids_bytes(batch, "prompt_token_ids"),
        _ids_bytes(batch, "response_token_ids"),
        frame["prompt_sha256"].to_list(),
        frame["content_sha256"].to_list(),
        _content_json(frame),
        strict=True,
    ):
        if unfit or prompt is None or response is None or sha256(prompt).digest() != stored_prompt:
            out.append(True)
            continue
        digest = sha256(stored_prompt)
        digest.update(response)
        digest.update(text)
        out.append(digest.digest() != stored)
    return out


def _ids_bytes(batch: Batch, column: str) -> list[memoryview | None]:
    """Return each row's ids as little-endian 32-bit integers, None for a null."""
    values, offsets = ids_of(batch, column)
    whole = values.astype("<i4", copy=False).view("u1").data
    cuts = (offsets * 4).tolist()
    parts: list[memoryview | None] = [whole[a:b] for a, b in pairwise(cuts)]
    nulls = batch.frame[column].is_null()
    for at in nulls.arg_true().to_list() if nulls.any() else ():
        parts[at] = None
    return parts


def _content_json(frame: pl.DataFrame) -> Iterator[bytes]:
    """Yield each row's JSON list of `CONTENT_COLUMNS`' values, as `content_sha256` has it."""
    import polars as pl

    messages = pl.col("messages")
    before = frame.select(messages.list.slice(0, messages.list.len().cast(pl.Int64) - 1)).to_series()
    last = frame.select(messages.list.last().alias("last")).to_series().struct.unnest()
    rest = {name: _column(frame[name]) for name in CONTENT_COLUMNS if name not in _TEXTS}
    rest["output_logprobs"] = _logprobs(frame["output_logprobs"])

    def gap(*pieces: Pieces | str) -> Iterator[bytes]:
        """Join what stands between two texts: JSON, and the names of columns."""
        return _joined([rest[piece] if isinstance(piece, str) else piece for piece in pieces], frame.height)

    def columns(first: str, last: str) -> list[Pieces | str]:
        names = CONTENT_COLUMNS[CONTENT_COLUMNS.index(first) : CONTENT_COLUMNS.index(last) + 1]
        out: list[Pieces | str] = []
        for name in names:
            out += [b",", name]
        return out

    calls = rest["tool_calls"]
    if last["tool_calls"].ne_missing(frame["tool_calls"]).any():
        calls = _column(last["tool_calls"])
    told: list[Pieces] = [
        [_json(some)[:-1] + b"," if some else b"[" for some in before.to_list()],
        b'{"content":',
    ]
    named = [b',"name":', _column(last["name"]), b',"reasoning_content":']
    role = [b',"role":', _column(last["role"]), b',"tool_call_id":', _column(last["tool_call_id"])]
    gaps = (
        gap(b"[", *told),
        gap(*named),
        gap(*role, b',"tool_calls":', calls, b"}]", *columns("tools", "output_logprobs"), b","),
        gap(b",", "text_source", b","),
        gap(*columns("tool_calls", CONTENT_COLUMNS[-1]), b"]"),
    )
    answers, thoughts = (_texts(frame[name]) for name in ("content", "reasoning_content"))
    said, thought_of = (_others(last[name], frame[name]) for name in ("content", "reasoning_content"))
    frames, ways = _frames(frame)
    whole = _texts(frame["response_text_raw"].filter(pl.Series(ways, dtype=pl.Int32) < 0))
    for row, (way, answer, thought, opened, name, framed, source, end) in enumerate(
        zip(ways, answers, thoughts, *gaps, strict=False)
    ):
        raw: tuple[bytes, ...]
        if way < 0:
            raw = (next(whole),)
        else:
            head, between, tail = frames[way]
            raw = (head, _bare(thought), between, _bare(answer), tail)
        answered, considered = said.get(row, answer), thought_of.get(row, thought)
        texts = (thought, b",", answer)
        yield b"".join((opened, answered, name, considered, framed, *raw, source, *texts, end))


def _joined(pieces: list[Pieces], height: int) -> Iterator[bytes]:
    """Yield the pieces of each row in one; neighbours that are alike for all rows are put together once."""
    parts: list[Iterable[bytes]] = []
    alike = b""
    for piece in pieces:
        if isinstance(piece, bytes):
            alike += piece
            continue
        parts += [repeat(alike, height), piece]
        alike = b""
    parts.append(repeat(alike, height))
    return map(b"".join, zip(*parts, strict=True))


def _column(values: pl.Series) -> Pieces:
    """Return a column's values as JSON."""
    if values.dtype.is_nested():
        listed = values.to_list()
        return _json(listed[0]) if all(value == listed[0] for value in listed) else list(map(_json, listed))
    if values.n_unique() == 1:
        return _json(values[0])
    if values.dtype.is_integer() and not values.null_count():
        return [b"%d" % value for value in values.to_list()]
    return list(map(_json, values.to_list()))


def _texts(values: pl.Series) -> Iterator[bytes]:
    """Yield long texts as JSON; few at a time are made Python's, which the next ones take the place of."""
    for start in range(0, len(values), TEXTS_AT_ONCE):
        for text in values.slice(start, TEXTS_AT_ONCE).to_list():
            yield b"null" if text is None else _text(text)


def _others(values: pl.Series, known: pl.Series) -> dict[int, bytes]:
    """Return the JSON of the values that are not the known ones, by row."""
    differs = values.ne_missing(known)
    if not differs.any():
        return {}
    at = differs.arg_true()
    return dict(zip(at.to_list(), _texts(values.gather(at)), strict=True))


def _bare(text: bytes) -> bytes:
    """Return a JSON text without its quotes; null is empty."""
    return b"" if text == b"null" else text[1:-1]


def _frames(frame: pl.DataFrame) -> tuple[list[tuple[bytes, bytes, bytes]], list[int]]:
    """Return what stands around the fields in the raw texts, as JSON, and which of these each row has.

    It is -1 where the raw text is not just the two fields in such a frame.
    """
    import polars as pl

    texts = [pl.col(name).fill_null("") for name in ("reasoning_content", "content")]
    work = frame.select("response_text_raw", *texts).with_row_index("row")
    ways = [-1] * frame.height
    frames: list[tuple[bytes, bytes, bytes]] = []
    while work.height and len(frames) < FRAMES and (cut := _cut(*work.row(0)[1:])) is not None:
        made = (pl.lit(cut[0]), "reasoning_content", pl.lit(cut[1]), "content", pl.lit(cut[2]))
        # Only what polars found equal, byte for byte, is put together of pieces.
        holds = work.select(pl.concat_str(made).eq_missing(pl.col("response_text_raw")).alias("holds"))
        for row in work["row"].filter(holds["holds"]).to_list():
            ways[row] = len(frames)
        head, between, tail = (_text(piece)[1:-1] for piece in cut)
        frames.append((b'"' + head, between, tail + b'"'))
        if holds["holds"].all():
            break
        work = work.filter(~holds["holds"])
    return frames, ways


def _cut(raw: str | None, thought: str, answer: str) -> tuple[str, str, str] | None:
    """Return what stands before, between and after the two fields in a raw text; None where they don't."""
    if raw is None:
        return None
    before, found, rest = raw.partition(thought) if thought else ("", "", raw)
    if found != thought:
        return None
    between, found, after = rest.partition(answer) if answer else (rest, "", "")
    return (before, between, after) if found == answer else None


def _logprobs(values: pl.Series) -> Pieces:
    if values.null_count() == len(values):
        return b"null"
    return [
        b"null" if one is None else b'"%s"' % array.array("f", one).tobytes().hex().encode()
        for one in values.to_list()
    ]


def _text(value: str) -> bytes:
    import orjson

    text = orjson.dumps(value)
    # `json.dumps` escapes DEL too.
    return text if text.isascii() and b"\x7f" not in text else encode_basestring_ascii(value).encode()


def _json(value: Any) -> bytes:
    import orjson

    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if text.isascii() and b"\x7f" not in text:
        return text
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()


def name_lines(frame: pl.DataFrame) -> list[bytes]:
    """Return the lines over which `names_sha256` is made, in the rows' order.

    Raises:
        TypeError: a time is null.
    """
    import polars as pl

    at = NAME_COLUMNS.index("created_at")
    chosen = frame.select(NAME_COLUMNS).with_columns(pl.col("created_at").dt.timestamp("us"))
    if chosen.to_series(at).null_count():
        raise TypeError("a row without a time has no line")
    return [_json(row) for row in chosen.iter_rows()]


def names_digest(lines: list[bytes]) -> str:
    """Return `names_sha256` (hex) of the rows whose lines these are."""
    return hashlib.sha256(b"\n".join(sorted(lines))).hexdigest()
