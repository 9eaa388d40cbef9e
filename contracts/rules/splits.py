"""Rules about tokens that no response should hold, and sets in which no text is split as models split it.

Place in the flow: rules. Imports columns, formats, registry and requests of `contracts`; numpy and polars
while a check runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Self

from contracts.columns import ids_of, rows_with
from contracts.formats import Format
from contracts.rules.registry import (
    RULES,
    Batch,
    Context,
    Hit,
    Row,
    RuleSpec,
    row_check,
    set_check,
)
from contracts.rules.requests import request_of
from contracts.rules.tape import Hits
from contracts.tokens import Codec, FastCodec

if TYPE_CHECKING:
    import polars as pl

LONG = 200
"""Tokens from which a sampled response may well hold another split than the tokenizer's."""
WARM = 0.9
"""The temperature from which responses count as sampled."""


@lru_cache(maxsize=64)
def strange_ids(fmt: Format, codec: Codec) -> tuple[int, ...]:
    """Return the ids of turn markers: tokens of their own that begin or end a message, and no response holds.

    They are the added tokens whose text names a role or a turn; the family's own markers and ends are none.
    """
    if not isinstance(codec, FastCodec):
        return ()
    own = {*fmt.markers, *fmt.end_tokens}
    out = []
    for text in codec.added():
        word = text.strip("<|｜>[]/ ▁").lower().replace("▁", "_")
        if text not in own and word in TURNS and (found := codec.token_id(text)) is not None:
            out.append(found)
    return tuple(out)


TURNS = (
    *("user", "system", "human", "im_start", "im_user", "im_system"),
    *("start_of_turn", "start_header_id", "inst", "begin_of_turn"),
)
"""What turn markers of any family say, without brackets and bars."""


def _with_turns(batch: Batch, ctx: Context) -> pl.Series:
    strange = strange_ids(ctx.format, ctx.codec) if ctx.format is not None and ctx.codec is not None else ()
    return responses_with(batch, strange)


def responses_with(batch: Batch, ids: Sequence[int]) -> pl.Series:
    """Return the rows whose response holds one of some ids."""
    import numpy as np
    import polars as pl

    if not ids:
        return pl.repeat(False, batch.frame.height, eager=True, dtype=pl.Boolean)
    values, offsets = ids_of(batch, "response_token_ids")
    # Markers lie side by side at an end of the vocabulary: two comparisons leave few tokens to look at.
    near = np.flatnonzero((values >= min(ids)) & (values <= max(ids)))
    flags = np.zeros(len(values), dtype=bool)
    flags[near] = np.isin(values[near], ids)
    return pl.Series(rows_with(flags, offsets))


@row_check(
    RuleSpec(
        "turn-inside",
        "the response holds the token that begins another turn: the model ran on into a turn of its own",
        "look at the end tokens that the server stops at; cut nothing, generate these rows again",
        column="response_token_ids",
        kind="quality",
        report="vllm#46224, Automodel#3024",
        strengths=("token",),
        needs_tokenizer=True,
    ),
    suspects=_with_turns,
)
def turn_inside(row: Row, ctx: Context) -> Iterator[Hit]:
    """Look for turn markers in the response."""
    if ctx.format is None or ctx.codec is None:
        return
    strange = set(strange_ids(ctx.format, ctx.codec))
    ids = row["response_token_ids"] or ()
    at = next((n for n, token in enumerate(ids) if token in strange), None)
    if at is not None:
        text = ctx.codec.decode_bytes([ids[at]]).decode("utf-8", "replace")
        yield "turn-inside", None, f"token {at} of {len(ids)} is {text}"


@set_check(
    RuleSpec(
        "splits-too-clean",
        "no sampled response has another token split than the tokenizer's own: ids look encoded from texts",
        "store the engine's own ids; encoding a text again gives others than were sampled",
        column="response_token_ids",
        scope="set",
        kind="quality",
        report="miles#1319, cs336#15, trl#5224",
        strengths=("token",),
        needs_tokenizer=True,
    ),
)
class Splits:
    """Counts the long sampled responses, and those of them whose split is another than the tokenizer's."""

    def __init__(self) -> None:
        self._sampled = self._other = self._least = 0

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame."""
        import polars as pl

        if not context.active(RULES["splits-too-clean"]):
            return
        self._least = context.thresholds.clean_splits
        kinds = frame["sampling_params"].unique()
        warm = kinds.filter(pl.Series([_warm(text) for text in kinds.to_list()], dtype=pl.Boolean))
        told = frame.select(
            sampled=pl.col("sampling_params").is_in(warm.implode()) & (pl.col("completion_tokens") >= LONG),
            other=pl.col("verdict") == "text_exact",
            unlike=pl.col("losses").list.contains("noncanonical-split"),
        )
        self._sampled += int(told["sampled"].sum())
        self._other += int((told["sampled"] & (told["other"] | told["unlike"])).sum())

    def merge(self, other: Self) -> None:
        """Take over what was seen of the shards that come after."""
        self._sampled, self._other = self._sampled + other._sampled, self._other + other._other
        self._least = max(self._least, other._least)

    def finish(self) -> Hits:
        """Return one hit where many responses were sampled and none of them split otherwise."""
        if not self._least or self._sampled < self._least or self._other:
            return []
        told = f"{self._sampled} sampled responses of {LONG} tokens or more, none with a split of its own"
        return [("splits-too-clean", "", None, None, told)]


def _warm(text: str | None) -> bool:
    value = request_of(text).get("temperature")
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= WARM
