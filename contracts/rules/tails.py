"""How a batch's prompts end: inside the thinking, after it, or neither; `prompt_tail` for all rows at once.

Place in the flow: under the rules' fast paths. Imports columns, formats, framing and records of `contracts`;
numpy, polars and pyarrow inside functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contracts.columns import bytes_of, ids_of, vocabulary
from contracts.formats import Format
from contracts.framing import PROMPT_TAIL, prompt_tail
from contracts.records import ThinkingMode
from contracts.tokens import Codec

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from contracts.rules.registry import Batch

EMPTY, THINKING, INSTANT, NEITHER, UNKNOWN = range(5)
_LOOK = 3
"""Last prompt ids that mostly tell how a prompt ends: as many as fit one 64-bit number."""


def tails(batch: Batch, fmt: Format, codec: Codec) -> np.ndarray[Any, Any]:
    """Return how each row's prompt ends: 0 no prompt, 1 thinking, 2 instant, 3 neither, 4 not told here."""
    import numpy as np
    import pyarrow as pa

    if "tails" in batch.made:
        return batch.made["tails"]  # type: ignore[no-any-return]
    values, offsets = ids_of(batch, "prompt_token_ids")
    lengths = np.diff(offsets)
    made = bytes_of(batch, "prompt_token_ids", codec)
    bad = made[1] if made is not None else np.ones(len(lengths), dtype=bool)
    key = np.zeros(len(lengths), dtype=np.int64)
    for n in range(_LOOK):
        there = lengths > n
        key[there] |= (values[offsets[1:][there] - 1 - n].astype(np.int64) + 1) << (21 * n)
    found, inverse = np.unique(key, return_inverse=True)
    told = np.array([_tail(int(one), fmt, codec) for one in found], dtype=np.int64)
    out = told[inverse] if len(found) else np.zeros(0, dtype=np.int64)
    left = (out == UNKNOWN) & ~bad
    if left.any() and made is not None:
        out[left] = _tails_by_text(made[0].filter(pa.array(left)), _widths(values, offsets, codec)[left], fmt)
    out[bad] = UNKNOWN
    out[lengths == 0] = EMPTY
    batch.made["tails"] = out
    return out


_SPACE = "".join(chr(n) for n in range(0x3001) if chr(n).isspace())
"""What `str.rstrip` takes away; polars' own idea of white space is smaller."""


def _widths(
    values: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any], codec: Codec
) -> np.ndarray[Any, Any]:
    """Return how many bytes the last tokens of each prompt are, of as many as `prompt_tail` looks at."""
    import numpy as np
    import pyarrow.compute as pc

    table = vocabulary(codec)
    if table is None:
        raise AssertionError("the vocabulary was laid out a moment ago")
    sizes = pc.binary_length(table[0]).to_numpy()
    at = offsets[1:, None] - 1 - np.arange(PROMPT_TAIL)[None, :]
    within = at >= offsets[:-1, None]
    ids = np.clip(values[np.where(within, at, 0)], 0, len(sizes) - 1) if len(values) else np.zeros_like(at)
    widths: np.ndarray[Any, Any] = np.where(within, sizes[ids], 0).sum(axis=1)
    return widths


def _tails_by_text(prompts: pa.Array, widths: np.ndarray[Any, Any], fmt: Format) -> np.ndarray[Any, Any]:
    """Tell by the decoded prompts how they end, where what tells it lies within the last tokens looked at."""
    import polars as pl

    whole = pl.col("prompt")
    text = whole.str.strip_chars_end(_SPACE)
    room = pl.col("width") - (whole.str.len_bytes() - text.str.len_bytes())
    opens, closes = text.str.ends_with(fmt.opener), text.str.ends_with(fmt.closer)
    # What the whole prompt does not end with, its last tokens do not end with either.
    told = (
        pl.when(opens)
        .then(pl.when(room >= len(fmt.opener.encode())).then(THINKING).otherwise(UNKNOWN))
        .when(closes)
        .then(pl.when(room >= len(fmt.closer.encode())).then(INSTANT).otherwise(UNKNOWN))
        .otherwise(NEITHER)
    )
    frame = pl.DataFrame(
        {"prompt": pl.Series(pl.from_arrow(prompts)).cast(pl.String, strict=False), "width": widths}
    )
    return (
        frame.select(pl.when(whole.is_null()).then(UNKNOWN).otherwise(told).cast(pl.Int64))
        .to_series()
        .to_numpy()
    )


def _tail(key: int, fmt: Format, codec: Codec) -> int:
    """Tell by its last ids how a prompt ends, if these alone can tell."""
    if key < 0:
        return UNKNOWN
    ids = [((key >> (21 * n)) & 0x1FFFFF) - 1 for n in reversed(range(_LOOK)) if (key >> (21 * n)) & 0x1FFFFF]
    if not ids or any(token >= (codec.vocab_size or 0) for token in ids) or not fmt.thinks:
        return UNKNOWN if fmt.thinks else NEITHER
    mode = prompt_tail(fmt, ids, codec)
    if mode is not None:
        return THINKING if mode is ThinkingMode.THINKING else INSTANT
    try:
        text = codec.decode_bytes(ids).decode("utf-8", "replace").rstrip()
    except ValueError:
        return UNKNOWN
    # Shorter than a marker, or beginning inside a character: what stands before could still make one.
    return NEITHER if len(text) >= max(len(fmt.opener), len(fmt.closer)) + 4 else UNKNOWN
