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
    made = bytes_of(batch, "prompt_token_ids", codec)
    if made is None:
        raise AssertionError("the vocabulary was laid out a moment ago")
    out = made[1].copy()
    places = _places(batch, codec)
    out[places.filter(places["at"].is_null())["row"].to_numpy()] = True
    return out


def out_of_order(batch: Batch, ctx: Context) -> pl.Series:
    """Return the rows in which some message is not first found behind the one before it."""
    import numpy as np
    import polars as pl

    codec, height = ctx.codec, batch.frame.height
    if codec is None or ctx.format is None or bytes_of(batch, "prompt_token_ids", codec) is None:
        return pl.repeat(codec is not None, height, eager=True, dtype=pl.Boolean)
    # An empty message (a turn of calls alone) stands anywhere.
    places = _places(batch, codec).filter(
        ~pl.col("role").is_in(["system", "developer"]) & (pl.col("size") != 0)
    )
    behind = (pl.col("at") + pl.col("size")).shift(1).over("row")
    lost = places["at"].is_null()
    odd = places.filter(lost | (pl.col("at") < behind).fill_null(False))["row"].unique()
    out = np.zeros(height, dtype=bool)
    out[places["row"].filter(lost).to_numpy()] = True
    # What stands there before as well is looked for once more, behind the message before it.
    again = odd.filter(~pl.Series(out).gather(odd)).sort()
    for first in range(0, len(again), _AT_ONCE):
        some = again.slice(first, _AT_ONCE)
        out[some.filter(~_one_behind_another(batch, codec, some)).to_numpy()] = True
    return pl.Series(out)


_AT_ONCE = 256
"""Rows whose prompts are cut to pieces at a time: each message costs a copy of what is left of them."""


def _one_behind_another(batch: Batch, codec: Codec, rows: pl.Series) -> pl.Series:
    """Return which rows hold their messages but the last one behind another, system messages left out."""
    import polars as pl

    prompts = _prompts(batch, codec).gather(rows)
    field, there = (
        pl.element().struct.field,
        ~pl.element().struct.field("role").is_in(["system", "developer"]),
    )
    before = pl.col("messages").list.head(pl.col("messages").list.len() - 1)
    said = before.list.eval(field("content").filter(there.fill_null(True)).str.strip_chars())
    frame = batch.frame[rows].select(said=said).with_columns(rest=prompts)
    for index in range(frame.select(pl.col("said").list.len().max()).item() or 0):
        text = pl.col("said").list.get(index, null_on_oob=True).str.normalize("NFC").fill_null("")
        found = pl.when(text == "").then(pl.col("rest")).otherwise(_behind(pl.col("rest"), text))
        frame = frame.with_columns(rest=found)
    return frame["rest"].is_not_null()


def _behind(text: pl.Expr, said: pl.Expr) -> pl.Expr:
    return text.str.splitn(said, 2).struct.field("field_1")


def _places(batch: Batch, codec: Codec) -> pl.DataFrame:
    """Return where each message but the last is first found in its row's decoded prompt, null: nowhere.

    Columns: `row`, `role`, `at` and `size`, in bytes of the text as tokenizers normalise it.
    """
    import numpy as np
    import polars as pl
    import pyarrow as pa

    if "places" in batch.made:
        return batch.made["places"]  # type: ignore[no-any-return]
    messages = batch.table["messages"].combine_chunks()
    if isinstance(messages, pa.ChunkedArray):
        messages = pa.concat_arrays(messages.chunks)
    lengths = messages.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    last = np.zeros(len(rows), dtype=bool)
    last[np.cumsum(lengths)[lengths > 0] - 1] = True
    parts, kept = messages.flatten(), ~pl.Series(last)
    rows = rows[~last]
    pairs = pl.DataFrame(
        {
            "row": rows,
            "role": pl.Series(pl.from_arrow(parts.field("role"))).filter(kept),
            "said": _composed(
                pl.Series(pl.from_arrow(parts.field("content"))).filter(kept).str.strip_chars()
            ),
            "prompt": _prompts(batch, codec).gather(rows),
        }
    )
    at = pl.col("prompt").str.find(pl.col("said"), literal=True).cast(pl.Int64)
    told = pairs.select("row", "role", at=at, size=pl.col("said").str.len_bytes().cast(pl.Int64))
    batch.made["places"] = told
    return told


def _prompts(batch: Batch, codec: Codec) -> pl.Series:
    """Return the decoded prompts as tokenizers normalise them, made once; null where one is no UTF-8."""
    import polars as pl

    if "prompts" not in batch.made:
        made = bytes_of(batch, "prompt_token_ids", codec)
        if made is None:
            raise AssertionError("the vocabulary was laid out a moment ago")
        batch.made["prompts"] = _composed(pl.Series(pl.from_arrow(made[0])).cast(pl.String, strict=False))
    return batch.made["prompts"]  # type: ignore[no-any-return]


def _composed(texts: pl.Series) -> pl.Series:
    """Return texts in the normal form C; ASCII is in it already, and to find that out costs less."""
    others = (texts.str.len_bytes() != texts.str.len_chars()).fill_null(False)
    if not others.any():
        return texts
    return texts.scatter(others.arg_true(), texts.filter(others).str.normalize("NFC"))
