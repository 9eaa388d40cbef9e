"""Which rows are proven at a glance: judged again they would give what they state, with nothing to report.

Place in the flow: under the fidelity rules. Imports calls, columns, formats and tokens of `contracts`, and
its own parts (`proven_patterns`, `proven_calls`, `handed`); numpy, polars and pyarrow inside functions.

The judge reads one row in half a millisecond. Most rows need no judge: they are of one shape, and all that
the judge would ask of them can be asked of a whole batch. Rows whose request framed them alike form a group
with a pattern (`contracts.rules.proven_patterns`). A row is proven where

- its ids decode to its stored text, byte for byte, and that text is the pattern with the row's own fields;
- its fields hold no text of a marker, none comes about where they meet the pattern's own texts, and its ids
  hold as many marker tokens as the text has markers, so that none was spelled in ordinary tokens;
- its calls are ones that the family surely reads back (`contracts.rules.proven_calls`);
- encoding the text gives its ids (of every row, of a sample or of none: `Context.encode`), or other ids of
  the same text, where the row says so;
- it states just that: verdict `exact` and no loss, or `text_exact` and no loss but the other split.

Whatever differs is left to the judge. A test holds that what is proven here the judge finds nothing in.

Left to the judge, whatever they are: rows of a verdict below `text_exact` (what is lost is named by looking
at it: cuts inside a call or a character, white space or spellings that a parser changed), raw rows that a
stop string ended (the served text ends before the ids do), calls with a header that is no word, and written
arguments with the family's own tags inside. Those are a small part of a set that is worth training on.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from contracts.calls import BareCalls, PythonicCalls
from contracts.columns import bytes_of, decoded, flat_encoder, flat_ids, ids_of, places_of, rows_with
from contracts.formats import Format
from contracts.rules.handed import handed
from contracts.rules.proven_calls import BARE_LIST, slots_of
from contracts.rules.proven_patterns import Pattern, marker_ids, patterns_of, readable, texts_of
from contracts.tokens import Codec

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    import pyarrow as pa

    from contracts.rules.registry import Batch, Context

SAMPLE_STRIDE = 32
"""With `encode="sample"`, of so many rows of a batch one is encoded again."""


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
    decoded_ids, bad = made
    exact, split = _stated(frame)
    holds = ~bad & _equals(decoded_ids, batch.table["response_text_raw"]) & (exact | split)
    if holds.any():
        holds &= _laid_out(batch, fmt, codec, split)
    if holds.any() and ctx.encode != "none":
        chosen = holds.copy()
        if ctx.encode == "sample":
            chosen[np.arange(len(holds)) % SAMPLE_STRIDE != 0] = False
        same, other = _encodes(batch, codec, chosen, split)
        holds &= ~chosen | (exact & same) | (split & other)
    return with_ids & ~pl.Series(holds)


def _equals(decoded: pa.Array, stored: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = stored.combine_chunks() if isinstance(stored, pa.ChunkedArray) else stored
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
    same = pc.fill_null(pc.equal(decoded, whole.cast(pa.large_string()).cast(pa.large_binary())), False)
    return same.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _stated(frame: pl.DataFrame) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return which rows state that they are exact, and which that only the split is another."""
    import polars as pl

    claim = pl.col("claims").struct.field
    served = pl.col("text_source") == "served"
    bytes_same = (
        claim("captured")
        & claim("rebuilt")
        & ((served & claim("text")) | ((pl.col("text_source") == "derived") & claim("text").is_null()))
    )
    losses, verdict = pl.col("losses"), pl.col("verdict")
    exact = bytes_same & (verdict == "exact") & (losses.list.len() == 0) & claim("tokens")
    named = (losses.list.len() == 1) & (losses.list.first() == "noncanonical-split")
    split = bytes_same & (verdict == "text_exact") & named & ~claim("tokens")
    told = frame.select(exact.fill_null(False).alias("exact"), split.fill_null(False).alias("split"))
    return told["exact"].to_numpy(), told["split"].to_numpy()


def _laid_out(batch: Batch, fmt: Format, codec: Codec, split: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which rows are laid out as their group's pattern says, markers and all."""
    import numpy as np
    import polars as pl

    groups, patterns = patterns_of(batch, fmt, codec)
    known: np.ndarray[Any, Any] = np.array([pattern is not None for pattern in patterns], dtype=bool)[groups]
    if not known.any():
        return known
    count, ended, last_only = _markers(batch, fmt, codec)
    written, fine, inside = _calls(batch, fmt, codec, groups, patterns)

    def of_group(name: str) -> pl.Series:
        return pl.Series([getattr(pattern, name) if pattern else None for pattern in patterns])

    work = batch.frame.select("reasoning_content", "content", "response_text_raw").with_columns(
        *(
            of_group(name).gather(groups).alias(name)
            for name in ("before", "between", "after", "markers", "ended", "raw")
        ),
        calls=pl.Series(pl.from_arrow(written)),
        fine=pl.Series(fine),
        count=pl.Series(count - inside),
        is_ended=pl.Series(ended),
        last_only=pl.Series(last_only),
        split=pl.Series(split),
    )
    # A row without a pattern would still pay for the text work.
    at = np.flatnonzero(known)
    some = work if len(at) == len(known) else work[at]
    out = np.zeros(len(known), dtype=bool)
    out[at] = some.select(_holds(fmt, codec, patterns).fill_null(False).alias("holds")).to_series().to_numpy()
    return out


def _holds(fmt: Format, codec: Codec, patterns: list[Pattern | None]) -> pl.Expr:
    """Return whether a row is its pattern with its own parts in it."""
    import polars as pl

    texts = list(texts_of(fmt, codec))
    reasoning, content = (pl.col(name).fill_null("") for name in ("reasoning_content", "content"))
    plain = pl.lit(True)
    for slot, text in (("reasoning", reasoning), ("content", content)):
        blank = ~text.str.contains(r"[^\s\x1c-\x1f]")
        plain &= ~text.str.contains_any(texts) & ((text.str.len_bytes() == 0) | ~blank)
        plain &= _apart(text, slot, patterns)
    if isinstance(fmt.tools, BareCalls):
        plain &= ~content.str.starts_with("{")
    if isinstance(fmt.tools, PythonicCalls) and not fmt.tools.section_begin:
        plain &= ~content.str.contains(BARE_LIST)
    parts = (pl.col("before"), reasoning, pl.col("between"), content, pl.col("calls"), pl.col("after"))
    as_pattern = (
        plain
        & pl.col("fine")
        & (pl.col("count") == pl.col("markers"))
        & (pl.col("is_ended") | ~pl.col("ended"))
        & (pl.concat_str(parts) == pl.col("response_text_raw"))
    )
    as_raw = (content == pl.col("response_text_raw")) & pl.col("last_only")
    if any(pattern and pattern.raw for pattern in patterns):
        # What is split otherwise may have spelled a marker, and then that is what the judge would name.
        spelled = [text for text, is_token in texts_of(fmt, codec).items() if is_token]
        marks = pl.sum_horizontal(content.str.count_matches(text, literal=True) for text in spelled)
        others = [text for text in texts if text not in spelled]
        as_written = marks == pl.col("count")
        if others:
            as_written &= ~content.str.contains_any(others)
        as_raw &= ~pl.col("split") | as_written
    return pl.when(pl.col("raw")).then(as_raw).otherwise(as_pattern)


def _apart(text: pl.Expr, slot: str, patterns: list[Pattern | None]) -> pl.Expr:
    """Return whether a part makes no marker with what stands before or behind it in any pattern."""
    import polars as pl

    apart = pl.lit(True)
    edges = [pattern.edges[slot] for pattern in patterns if pattern and slot in pattern.edges]
    for head in sorted({head for heads, _ in edges for head in heads}):
        apart &= ~text.str.starts_with(head)
    for tail in sorted({tail for _, tails in edges for tail in tails}):
        apart &= ~text.str.ends_with(tail)
    return apart


def _calls(
    batch: Batch, fmt: Format, codec: Codec, groups: np.ndarray[Any, Any], patterns: list[Pattern | None]
) -> tuple[pa.Array, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return each row's calls as its pattern writes them, whether they are fine, and the markers inside."""
    import numpy as np
    import polars as pl
    import pyarrow as pa

    rows = len(groups)
    calls = handed(batch)
    if not len(calls.owner) or fmt.tools is None:
        return pa.array([""] * rows, pa.large_string()), calls.counts == 0, np.zeros(rows, dtype=np.int64)
    slots = slots_of(calls, fmt.tools, texts_of(fmt, codec))
    apart = pl.DataFrame({"arguments": slots.arguments}).select(
        _apart(pl.col("arguments"), "arguments", patterns)
    )
    wrong = np.bincount(calls.owner, weights=~(slots.fine & apart.to_series().to_numpy()), minlength=rows)
    inside = np.bincount(calls.owner, weights=slots.markers, minlength=rows).astype(np.int64)
    lengths = [len(pattern.calls) if pattern else 0 for pattern in patterns]
    texts = [pair for pattern in patterns if pattern for pair in pattern.calls]
    # A group without a pattern reads any text here: its rows are the judge's.
    first = (np.cumsum(lengths) - lengths)[groups[calls.owner]] + calls.nth
    first = np.minimum(first, max(0, len(texts) - 1))
    leads, middles = (pl.Series([pair[n] for pair in texts or [("", "")]]).gather(first) for n in (0, 1))
    parts = pl.DataFrame({"a": leads, "b": slots.headers, "c": middles, "d": slots.arguments})
    each = parts.select(pl.concat_str("a", "b", "c", "d")).to_series().to_arrow().cast(pa.large_string())
    # A row's calls lie one after the other there: its text is what lies from its first to its last.
    cuts = np.concatenate([[0], np.cumsum(np.maximum(calls.counts, 0))])
    ends = np.frombuffer(each.buffers()[1], dtype=np.int64)[each.offset : each.offset + len(each) + 1]
    offsets = pa.py_buffer(np.ascontiguousarray(ends[cuts]))
    joined = pa.Array.from_buffers(pa.large_string(), rows, [None, offsets, each.buffers()[2]])
    return joined, (wrong == 0) & (calls.counts >= 0), inside


def _markers(
    batch: Batch, fmt: Format, codec: Codec
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return each row's number of marker tokens, whether its last is an end token, and whether its end is
    fine.

    The third asks that no end token stands before the last one, and what `_named_end` asks.
    """
    import numpy as np

    values, offsets = ids_of(batch, "response_token_ids")
    tokens = marker_ids(fmt, codec)
    ends = [token for text in fmt.end_tokens if (token := codec.token_id(text)) is not None]
    at = places_of(values, {*tokens, *ends})
    rows = np.searchsorted(offsets, at, side="right") - 1
    count = np.bincount(rows, minlength=len(offsets) - 1)
    last = offsets[1:] - 1
    ended = np.zeros(len(offsets) - 1, dtype=bool)
    some = np.diff(offsets) > 0
    ended[some] = np.isin(values[last[some]], ends)
    early = np.isin(values[at], ends) & (at < last[rows])
    last_only = np.ones(len(offsets) - 1, dtype=bool)
    last_only[rows[early]] = False
    return count, ended, last_only & _named_end(batch)


def _named_end(batch: Batch) -> np.ndarray[Any, Any]:
    """Return which rows' last id is the end token that `matched_stop` names, or where it names none."""
    import polars as pl

    matched = pl.col("matched_stop").str.to_integer(strict=False)
    last = pl.col("response_token_ids").list.last()
    named = pl.col("matched_stop").is_null() | (matched == last) | (pl.col("finish_reason") != "stop")
    holds = batch.frame.select(named.fill_null(False).alias("holds")).to_series()
    return holds.to_numpy()


def _encodes(
    batch: Batch, codec: Codec, chosen: np.ndarray[Any, Any], split: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return which of the chosen rows' texts encode to the rows' own ids, and which to others of that text.

    The second is told only of the rows that state it (`split`).
    """
    import numpy as np
    import pyarrow as pa

    whole = bool(chosen.all())
    texts, column, states = batch.frame["response_text_raw"], batch.table["response_text_raw"], split
    stored, cuts = ids_of(batch, "response_token_ids")
    if not whole:
        texts, states = texts.filter(chosen), split[chosen]
        column = batch.table["response_text_raw"].filter(pa.array(chosen))
        stored, cuts = flat_ids(batch.table["response_token_ids"].filter(pa.array(chosen)))
    made, made_cuts = flat_encoder(codec)(texts.to_list())
    if np.array_equal(cuts, made_cuts):
        differs = made != stored
        equal = ~rows_with(differs, cuts) if differs.any() else np.ones(len(cuts) - 1, dtype=bool)
    else:
        equal = np.array(
            [
                b - a == d - c and np.array_equal(stored[a:b], made[c:d])
                for (a, b), (c, d) in zip(pairwise(cuts), pairwise(made_cuts), strict=True)
            ],
            dtype=bool,
        )
    same, other = (np.zeros(len(chosen), dtype=bool) for _ in range(2))
    same[chosen] = equal
    if states.any():
        again = decoded(codec, (made, made_cuts))
        # A tokenizer that normalises gives another text back: that has a name of its own.
        returned = _equals(again[0], column) & ~again[1] if again is not None else ~states
        other[chosen] = ~equal & states & returned
    return same, other
