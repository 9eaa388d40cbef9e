"""Which rows are proven at a glance: judged again they would give what they state, with nothing to report.

Place in the flow: under the fidelity rules. Imports columns, framing, judgement and layouts of `contracts`;
numpy, polars and pyarrow inside functions.

The judge reads one row in half a millisecond. Most rows need no judge: they are of one shape, and all that
the judge would ask of them can be asked of a whole batch. Rows whose request framed them alike form a group.
For each group the real rebuilder lays out, and the real judge judges, one stand-in response with the group's
parts (has it reasoning, has it content); only if that is `exact` is there a pattern: before, reasoning,
between, content, after. A row is proven where

- its ids decode to its stored text, byte for byte, and that text is the pattern with the row's own fields;
- its fields hold no text of a marker, and its ids hold the markers that the stand-in's hold, in that order;
- encoding the text gives its ids (of every row, of a sample or of none: `Context.encode`);
- it states just that: verdict `exact`, no loss, all claims true.

Whatever differs is left to the judge. A test holds that what is proven here the judge finds nothing in.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from contracts.calls import ToolSyntax
from contracts.columns import bytes_of, flat_encoder, flat_ids, ids_of, rows_with
from contracts.formats import Format
from contracts.layouts.think import ThinkLayout
from contracts.records import Fields, Mode, Verdict
from contracts.rules.tails import UNKNOWN, tails
from contracts.tokens import Codec

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    import pyarrow as pa

    from contracts.rules.registry import Batch, Context

SAMPLE_STRIDE = 32
"""With `encode="sample"`, of so many rows of a batch one is encoded again."""
MAX_MARKERS = 7
"""Marker tokens of a response that fit one 64-bit number, a byte each; a response with more is judged."""

_REASONING, _CONTENT = "some thinking", "an answer"
_KEYS = (
    "template_kwargs",
    "constraint",
    "reasoning_parser",
    "tool_parser",
    "finish_reason",
    "matched_stop",
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """How the rows of a group are laid out: their text is before + reasoning + between + content + after.

    `markers` is the row of marker tokens, packed (see `_packed`). `raw` is a response that no parser cut:
    its text is its content, whatever that holds but for end tokens.
    """

    before: str = ""
    between: str = ""
    after: str = ""
    markers: int = 0
    raw: bool = False


@lru_cache(maxsize=64)
def readable(fmt: Format, codec: Codec) -> bool:
    """Whether a format's rows can be proven here: plain thinking, calls by marker tokens, markers apart."""
    texts = (*fmt.markers, *fmt.end_tokens)
    return (
        type(fmt.layout) is ThinkLayout
        and (fmt.tools is None or type(fmt.tools).find is ToolSyntax.find)
        and len(texts) < 250
        and all(codec.token_id(text) is not None for text in texts)
        and not any(text.startswith(text[-n:]) for text in texts for n in range(1, len(text)))
    )


def not_proven(batch: Batch, ctx: Context) -> pl.Series:
    """Return which rows the judge must see; rows without ids are not its business."""
    import numpy as np
    import polars as pl

    fmt, codec, frame = ctx.format, ctx.codec, batch.frame
    if fmt is None or codec is None:
        return pl.repeat(False, frame.height, eager=True)
    with_ids = frame["response_token_ids"].is_not_null()
    made = bytes_of(batch, "response_token_ids", codec) if ctx.fast and readable(fmt, codec) else None
    if made is None:
        return with_ids
    decoded, bad = made
    holds = ~bad & _equals(decoded, batch.table["response_text_raw"])
    holds &= _stated(frame).to_numpy()
    if holds.any():
        holds &= _laid_out(batch, fmt, codec)
    if holds.any() and ctx.encode != "none":
        chosen = holds.copy()
        if ctx.encode == "sample":
            chosen[np.arange(len(holds)) % SAMPLE_STRIDE != 0] = False
        holds &= ~chosen | _encodes(batch, codec, chosen)
    return with_ids & ~pl.Series(holds)


def _equals(decoded: pa.Array, stored: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = stored.combine_chunks() if isinstance(stored, pa.ChunkedArray) else stored
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
    same = pc.fill_null(pc.equal(decoded, whole.cast(pa.large_string()).cast(pa.large_binary())), False)
    return same.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _stated(frame: pl.DataFrame) -> pl.Series:
    """Return which rows state that they are exact, and what an exact row states besides."""
    import polars as pl

    claim = pl.col("claims").struct.field
    served = pl.col("text_source") == "served"
    stated = (
        (pl.col("verdict") == "exact")
        & (pl.col("losses").list.len() == 0)
        & claim("captured")
        & claim("rebuilt")
        & claim("tokens")
        & ((served & claim("text")) | ((pl.col("text_source") == "derived") & claim("text").is_null()))
        & pl.col("tool_calls").is_null()
    )
    return frame.select(stated.fill_null(False).alias("stated")).to_series()


def _laid_out(batch: Batch, fmt: Format, codec: Codec) -> np.ndarray[Any, Any]:
    """Return which rows are laid out as their group's pattern says, markers and all."""
    import polars as pl

    frame = batch.frame
    groups, patterns = _patterns(batch, fmt, codec)
    codes, last_only = _markers(batch, fmt, codec)
    texts = [*fmt.markers, *fmt.end_tokens]

    def of_group(name: str) -> pl.Expr:
        values = [getattr(pattern, name) if pattern else None for pattern in patterns]
        dtype = {"raw": pl.Boolean, "markers": pl.Int64}.get(name, pl.String)
        return pl.lit(pl.Series(values, dtype=dtype)).gather(pl.col("group"))

    reasoning, content = (pl.col(name).fill_null("") for name in ("reasoning_content", "content"))
    plain = [
        ~text.str.contains_any(texts) & ((text.str.len_bytes() == 0) | text.str.contains(r"[^\s\x1c-\x1f]"))
        for text in (reasoning, content)
    ]
    thought = pl.concat_str([of_group("before"), reasoning, of_group("between"), content, of_group("after")])
    holds = (
        pl.when(of_group("raw"))
        .then((content == pl.col("response_text_raw")) & pl.col("last_only"))
        .otherwise(
            plain[0]
            & plain[1]
            & (thought == pl.col("response_text_raw"))
            & (pl.col("codes") == of_group("markers"))
        )
    )
    work = frame.select("reasoning_content", "content", "response_text_raw").with_columns(
        group=pl.Series(groups), codes=pl.Series(codes), last_only=pl.Series(last_only)
    )
    known = pl.Series([pattern is not None for pattern in patterns]).gather(work["group"])
    if not known.all():
        # A null pattern would still pay for the text work; those rows are the judge's anyway.
        out = pl.repeat(False, frame.height, dtype=pl.Boolean, eager=True)
        at = known.arg_true()
        if not len(at):
            return out.to_numpy()
        some = work[at].select(holds.fill_null(False).alias("holds")).to_series()
        return out.scatter(at, some).to_numpy()
    return work.select(holds.fill_null(False).alias("holds")).to_series().to_numpy()


def _patterns(batch: Batch, fmt: Format, codec: Codec) -> tuple[np.ndarray[Any, Any], list[Pattern | None]]:
    """Return each row's group, and each group's pattern (None: the judge's)."""
    import polars as pl

    from contracts.rules.structural import parse

    frame = batch.frame
    modes = {}
    for text in frame["sampling_params"].unique().to_list():
        value = parse(text) if text is not None else None
        mode = value.get("mode") if isinstance(value, dict) else None
        modes[text] = mode if isinstance(mode, str) and mode in set(Mode) else None
    keys = frame.select(
        pl.col("sampling_params").replace_strict(modes, return_dtype=pl.String).alias("mode"),
        *(pl.col(name).cast(pl.String) for name in _KEYS),
        tools=pl.col("tools").is_null(),
        thinks=pl.col("reasoning_content").fill_null("") != "",
        says=pl.col("content").fill_null("") != "",
        tail=pl.Series(tails(batch, fmt, codec)),
    )
    ranked = keys.select(pl.struct(pl.all()).rank("dense").alias("group") - 1).to_series()
    groups = ranked.to_numpy().astype("int64")
    firsts: dict[int, int] = {}
    for at, group in zip(*_firsts(groups), strict=True):
        firsts[int(group)] = int(at)
    patterns: list[Pattern | None] = []
    for group in range(len(firsts)):
        at = firsts[group]
        mode, tail = keys["mode"][at], keys["tail"][at]
        known = mode is not None and tail != UNKNOWN
        row = batch.table.slice(at, 1).to_pylist()[0] if known else None
        patterns.append(_pattern(row, fmt, codec) if row is not None else None)
    return groups, patterns


def _firsts(groups: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    import numpy as np

    found, at = np.unique(groups, return_index=True)
    return at, found


def _pattern(row: dict[str, Any], fmt: Format, codec: Codec) -> Pattern | None:
    """Lay out and judge a group's stand-in; `row` is any row of the group, read for its framing alone."""
    from contracts.judgement import judge_fields
    from contracts.rebuild import rebuild
    from contracts.rules.fidelity import framing_of_row
    from contracts.shard import decode_matched_stop

    matched = decode_matched_stop(row["matched_stop"])
    if isinstance(matched, str):
        return None
    framing = framing_of_row(row, fmt, codec)
    if framing.mode is Mode.RAW:
        return Pattern(raw=True) if row["finish_reason"] != "tool_calls" else None
    thought = _REASONING if row["reasoning_content"] else None
    said = _CONTENT if row["content"] else None
    fields = Fields(thought, said, None)
    text = rebuild(fields, framing).text
    before, between, after = _cut(text, thought, said)
    if before is None or (framing.end_text and framing.end_text not in fmt.end_tokens):
        return None
    ids = codec.encode(text)
    judged = judge_fields(
        ids, fields, codec=codec, framing=framing, finish_reason=row["finish_reason"], matched_stop=matched
    )
    if judged.verdict is not Verdict.EXACT or judged.losses or not judged.claims.captured:
        return None
    pieces = [piece for piece in (before, between, after) if piece]
    if (thought and said and not between) or not _apart(pieces, (*fmt.markers, *fmt.end_tokens)):
        return None
    numbers = _numbers(fmt, codec)
    found = [numbers[token] for token in ids if token in numbers]
    if len(found) > MAX_MARKERS:
        return None
    return Pattern(before, between, after, sum(number << (8 * n) for n, number in enumerate(found)))


def _cut(text: str, thought: str | None, said: str | None) -> tuple[str | None, str, str]:
    """Cut a stand-in's text at its fields; (None, "", "") where they do not stand in it once, in order."""
    rest, before, between = text, "", ""
    if thought is not None:
        if rest.count(thought) != 1:
            return None, "", ""
        before, _, rest = rest.partition(thought)
    if said is not None:
        if rest.count(said) != 1:
            return None, "", ""
        between, _, rest = rest.partition(said)
    return before, between, rest


def _apart(pieces: list[str], markers: tuple[str, ...]) -> bool:
    """Whether no marker can come about where a field, free of markers, meets a piece of the frame."""
    for marker in markers:
        for piece in pieces:
            if piece in marker and piece != marker:
                return False
            for n in range(1, len(marker)):
                if piece.startswith(marker[n:]) or piece.endswith(marker[:n]):
                    return False
    return True


def _numbers(fmt: Format, codec: Codec) -> dict[int, int]:
    """Number the marker and end tokens from 1, by id."""
    texts = dict.fromkeys((*fmt.markers, *fmt.end_tokens))
    return {int(codec.token_id(text) or 0): n for n, text in enumerate(texts, 1)}


def _markers(batch: Batch, fmt: Format, codec: Codec) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return each row's marker tokens, packed (-1: too many), and whether its end is as it must be.

    The second asks that no end token stands before the last one, and what `_named_end` asks.
    """
    import numpy as np

    values, offsets = ids_of(batch, "response_token_ids")
    numbers = _numbers(fmt, codec)
    size = max(int(codec.vocab_size or 0), *numbers) + 1
    table = np.zeros(size, dtype=np.uint8)
    for token, number in numbers.items():
        table[token] = number
    within = not len(values) or 0 <= values.min() <= values.max() < size
    codes = np.take(table, values if within else values.clip(0, size - 1))
    at = np.flatnonzero(codes)
    rows = np.searchsorted(offsets, at, side="right") - 1
    first = np.searchsorted(at, offsets[:-1], side="left")
    nth = np.arange(len(at)) - first[rows]
    count = np.bincount(rows, minlength=len(offsets) - 1)
    packed = np.zeros(len(offsets) - 1, dtype=np.int64)
    few = nth < MAX_MARKERS
    np.add.at(packed, rows[few], codes[at[few]].astype(np.int64) << (8 * nth[few]))
    packed[count > MAX_MARKERS] = -1
    ends = np.array([numbers[int(codec.token_id(text) or 0)] for text in fmt.end_tokens])
    is_end = np.isin(codes[at], ends)
    early = is_end & (at < offsets[rows + 1] - 1)
    last_only = np.ones(len(offsets) - 1, dtype=bool)
    last_only[rows[early]] = False
    return packed, last_only & _named_end(batch)


def _named_end(batch: Batch) -> np.ndarray[Any, Any]:
    """Return which rows' last id is the end token that `matched_stop` names, or where it names none."""
    import polars as pl

    matched = pl.col("matched_stop").str.to_integer(strict=False)
    last = pl.col("response_token_ids").list.last()
    named = pl.col("matched_stop").is_null() | (matched == last) | (pl.col("finish_reason") != "stop")
    holds = batch.frame.select(named.fill_null(False).alias("holds")).to_series()
    return holds.to_numpy()


def _encodes(batch: Batch, codec: Codec, chosen: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which of the chosen rows' texts encode to the rows' own ids."""
    import numpy as np
    import pyarrow as pa

    whole = bool(chosen.all())
    texts = batch.frame["response_text_raw"]
    stored, cuts = ids_of(batch, "response_token_ids")
    if not whole:
        texts = texts.filter(chosen)
        stored, cuts = flat_ids(batch.table["response_token_ids"].filter(pa.array(chosen)))
    made, made_cuts = flat_encoder(codec)(texts.to_list())
    if np.array_equal(cuts, made_cuts):
        differs = made != stored
        same = ~rows_with(differs, cuts) if differs.any() else np.ones(len(cuts) - 1, dtype=bool)
    else:
        same = np.array(
            [
                b - a == d - c and np.array_equal(stored[a:b], made[c:d])
                for (a, b), (c, d) in zip(pairwise(cuts), pairwise(made_cuts), strict=True)
            ],
            dtype=bool,
        )
    out = np.zeros(len(chosen), dtype=bool)
    out[chosen] = same
    return out
