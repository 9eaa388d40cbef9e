"""Rules over one row's prompt that need no chat template: messages in their order, no BOS in the response.

Place in the flow: rules. Imports prompts, registry and splits of `contracts`; polars while a check runs.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING

from contracts.rules.prompts import out_of_order
from contracts.rules.registry import Batch, Context, Hit, Row, RuleSpec, row_check
from contracts.rules.splits import responses_with
from contracts.tokens import UndecodableToken

if TYPE_CHECKING:
    import polars as pl

FIRST = ("system", "developer")
"""Templates may put these elsewhere than they stand among the messages."""


@row_check(
    RuleSpec(
        "prompt-order",
        "the messages do not stand in the prompt in their order",
        "take prompt ids and messages from the same request",
        column="messages",
        report="NeMo-Gym#1787",
        strengths=("token",),
        needs_tokenizer=True,
    ),
    suspects=out_of_order,
)
def prompt_order(row: Row, ctx: Context) -> Iterator[Hit]:
    """Look for each message behind the one before it; that it is nowhere is `prompt-text`."""
    if ctx.codec is None or ctx.format is None or not row["prompt_token_ids"]:
        return
    try:
        text = _plain(ctx.codec.decode_bytes(row["prompt_token_ids"]).decode("utf-8", "replace"))
    except UndecodableToken:
        return
    place = 0
    for index, message in enumerate((row["messages"] or ())[:-1]):
        said = _plain((message["content"] or "").strip())
        if message["role"] in FIRST or any(marker in said for marker in ctx.format.markers):
            continue
        at = text.find(said, place)
        if at < 0:
            if said in text:
                told = f"message {index} ({said[:40]!r}) stands before the one that it follows"
                yield "prompt-order", None, told
            return
        place = at + len(said)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _with_bos(batch: Batch, ctx: Context) -> pl.Series:
    return responses_with(batch, ctx.ids_of(ctx.thresholds.bos_tokens))


@row_check(
    RuleSpec(
        "bos-inside",
        "the response holds a BOS token",
        "where the model did not really say it, ids were joined: take the response's own ids",
        column="response_token_ids",
        kind="quality",
        report="vllm#46224, DeepSeek-R1#151",
        strengths=("token",),
        needs_tokenizer=True,
    ),
    suspects=_with_bos,
)
def bos_inside(row: Row, ctx: Context) -> Iterator[Hit]:
    """Look for a token that begins sequences in the response."""
    begins = set(ctx.ids_of(ctx.thresholds.bos_tokens))
    at = next((n for n, token in enumerate(row["response_token_ids"] or ()) if token in begins), None)
    if at is not None:
        yield "bos-inside", None, f"token {at} of the response"
