"""Which prompts are ordinary: they end as their mode says, and hold every message's text.

Place in the flow: under the token rules. Imports columns and tails of `contracts`; numpy, polars and pyarrow
inside functions. What is let through here the one-row check finds nothing in; the rest goes to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contracts.columns import bytes_of, ids_of
from contracts.rules.tails import INSTANT, THINKING, UNKNOWN, tails

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from contracts.formats import Format
    from contracts.rules.registry import Batch, Context
    from contracts.tokens import Codec


def odd_prompts(batch: Batch, ctx: Context) -> pl.Series:
    """Return which rows' prompts need a look; those without ids need none."""
    import numpy as np
    import polars as pl

    fmt, codec, frame = ctx.format, ctx.codec, batch.frame
    if fmt is None or codec is None:
        return pl.repeat(False, frame.height, eager=True)
    _, offsets = ids_of(batch, "prompt_token_ids")
    empty = np.diff(offsets) == 0
    if bytes_of(batch, "prompt_token_ids", codec) is None:
        return pl.Series(~empty)
    odd = _odd_tails(batch, fmt, codec) | _missing_texts(batch, codec)
    return pl.Series(odd & ~empty)


def _odd_tails(batch: Batch, fmt: Format, codec: Codec) -> np.ndarray[Any, Any]:
    found = tails(batch, fmt, codec)
    instant = (batch.frame["thinking_mode"] == "instant").fill_null(False).to_numpy()
    wrong = (found != THINKING) if fmt.opener_prefilled else (found == INSTANT)
    odd: np.ndarray[Any, Any] = (wrong & ~instant) | (instant & (found == THINKING)) | (found == UNKNOWN)
    return odd


def _missing_texts(batch: Batch, codec: Codec) -> np.ndarray[Any, Any]:
    """Return the rows in whose decoded prompt some message but the last is not found."""
    import numpy as np
    import polars as pl
    import pyarrow as pa

    made = bytes_of(batch, "prompt_token_ids", codec)
    if made is None:
        raise AssertionError("the vocabulary was laid out a moment ago")
    decoded, bad = made
    messages = batch.table["messages"].combine_chunks()
    if isinstance(messages, pa.ChunkedArray):
        messages = pa.concat_arrays(messages.chunks)
    lengths = messages.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    last = np.zeros(len(rows), dtype=bool)
    last[np.cumsum(lengths)[lengths > 0] - 1] = True
    prompts = pl.Series(pl.from_arrow(decoded)).cast(pl.String, strict=False)
    said = pl.Series(pl.from_arrow(messages.flatten().field("content"))).filter(~pl.Series(last))
    rows = rows[~last]
    pairs = pl.DataFrame({"prompt": prompts.gather(rows), "said": said.str.strip_chars(), "row": rows})
    ascii_only = pl.col("prompt").str.len_bytes() == pl.col("prompt").str.len_chars()
    found = pl.col("prompt").str.contains(pl.col("said"), literal=True)
    out = bad.copy()
    left = pairs.filter(~(found & ascii_only).fill_null(False))
    if left.height:
        composed = (
            pl.col("prompt")
            .str.normalize("NFC")
            .str.contains(pl.col("said").str.normalize("NFC"), literal=True)
        )
        out[left.filter(~composed.fill_null(False))["row"].to_numpy()] = True
    return out
