"""Token rules: range, counts, ends, stand-ins, BOS, pad, and that text, prompt and digests belong to the ids.

Place in the flow: rules. Imports digests, framing, registry and tokens; polars while a check runs.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING

from contracts.digests import content_sha256, prompt_sha256
from contracts.framing import prompt_tail
from contracts.records import ThinkingMode
from contracts.rules.registry import Batch, Context, Hit, Row, RuleSpec, bulk, column, row_check
from contracts.tokens import UndecodableToken

if TYPE_CHECKING:
    import polars as pl

_AGAIN = "generate these rows again; the ids are the training truth and these can't be it"
_LISTS = ("prompt_token_ids", "response_token_ids")


@bulk(
    RuleSpec(
        "tokens-missing",
        "a row of strength `token` has no prompt or no response tokens",
        _AGAIN,
        column="response_token_ids",
        strengths=("token",),
        message="{prompt} prompt tokens, {response} response tokens",
    ),
    seen=lambda ctx: {"prompt": column(_LISTS[0]).list.len(), "response": column(_LISTS[1]).list.len()},
)
def tokens_missing(ctx: Context) -> pl.Expr:
    """Hold where both lists have at least one token."""
    return (column(_LISTS[0]).list.len() > 0) & (column(_LISTS[1]).list.len() > 0)


@bulk(
    RuleSpec(
        "token-range",
        "a token id is negative or not in the tokenizer's vocabulary",
        _AGAIN,
        column="response_token_ids",
        report="datatrove#118, transformers#2825 (ids wrapped round by uint16)",
        strengths=("token",),
        message="smallest id {low}, largest {high}",
    ),
    seen=lambda ctx: {"low": _extreme("min"), "high": _extreme("max")},
)
def token_range(ctx: Context) -> pl.Expr:
    """Hold where all ids are in [0, vocabulary); without a tokenizer, where none is negative."""
    size = ctx.codec.vocab_size if ctx.codec else None
    holds = _extreme("min") >= 0
    return holds if size is None else holds & (_extreme("max") < size)


def _extreme(kind: str) -> pl.Expr:
    import polars as pl

    if kind == "min":
        return pl.min_horizontal([column(name).list.min() for name in _LISTS]).fill_null(0)
    return pl.max_horizontal([column(name).list.max() for name in _LISTS]).fill_null(0)


@bulk(
    RuleSpec(
        "token-count",
        "the numbers of tokens are not the ones that the engine counted",
        _AGAIN,
        column="completion_tokens",
        report="DeepSpec#29",
        strengths=("token",),
        message="engine: {p} + {c} (reasoning {r}), row: {prompt} + {response}",
    ),
    seen=lambda ctx: {
        "p": column("prompt_tokens"),
        "c": column("completion_tokens"),
        "r": column("reasoning_tokens"),
        "prompt": column(_LISTS[0]).list.len(),
        "response": column(_LISTS[1]).list.len(),
    },
)
def token_count(ctx: Context) -> pl.Expr:
    """Hold where the list lengths are the engine's usage, and reasoning is no more than the completion."""
    reasoning = column("reasoning_tokens").fill_null(0)
    return (
        (column(_LISTS[0]).list.len() == column("prompt_tokens"))
        & (column(_LISTS[1]).list.len() == column("completion_tokens"))
        & (reasoning >= 0)
        & (reasoning <= column("completion_tokens"))
    )


@bulk(
    RuleSpec(
        "invented-token",
        "the engine replaced a NaN or out-of-range sample by a stop token",
        "generate these rows again and look for NaN in the server log",
        column="matched_stop",
        message="matched_stop is {matched}",
    ),
    seen=lambda ctx: {"matched": column("matched_stop")},
)
def invented_token(ctx: Context) -> pl.Expr:
    """Hold where `matched_stop` is not SGLang's word for an invented token."""
    return ~column("matched_stop").str.contains("NaN happened", literal=True).fill_null(False)


def _ends(ctx: Context) -> list[int]:
    return ctx.ids_of(ctx.format.end_tokens if ctx.format else ())


@bulk(
    RuleSpec(
        "end-token",
        "the response does not end as its finish reason says, or an end token stands before its end",
        _AGAIN,
        column="response_token_ids",
        strengths=("token",),
        needs_tokenizer=True,
        message="finish reason {finish}, matched_stop {matched}, last id {last}",
    ),
    seen=lambda ctx: {
        "finish": column("finish_reason"),
        "matched": column("matched_stop"),
        "last": column(_LISTS[1]).list.last(),
    },
)
def end_token(ctx: Context) -> pl.Expr:
    """Hold where an end token is exactly at the end when one is said to have stopped it, and none before."""
    import polars as pl

    ends, response = _ends(ctx), column(_LISTS[1])
    last = response.list.last()
    inside = pl.sum_horizontal([pl.lit(0), *(response.list.count_matches(end) for end in ends)])
    before = inside > last.is_in(ends).fill_null(False).cast(pl.Int64)
    matched = column("matched_stop").str.strip_chars().str.to_integer(strict=False)
    finished = column("finish_reason").is_in(["stop", "tool_calls"])
    has_stop_string = column("sampling_params").str.contains(r'"stop(_regex)?":')
    own_stop = column("sampling_params").str.contains('"stop_token_ids":', literal=True)
    by_id = matched.is_not_null()
    known = matched.is_in(ends) | own_stop
    by_string = column("matched_stop").is_not_null() & matched.is_null()
    unsaid = column("matched_stop").is_null()
    at_end = last.is_in(ends).fill_null(False)
    limit = (
        column("sampling_params")
        .str.extract(r'"max_(?:completion_|new_)?tokens":\s*(\d+)')
        .str.to_integer(strict=False)
    )
    # Servers that look at the limit first call it a cut when the end token is the last one allowed.
    at_limit = ((column("finish_reason") == "length") & (column("completion_tokens") >= limit)).fill_null(
        False
    )
    return (
        ~before.fill_null(False)
        & (~(finished & by_id) | ((last == matched) & known).fill_null(False))
        & (~(finished & unsaid) | at_end | (has_stop_string & (column("finish_reason") == "stop")))
        & (~(finished & by_string) | has_stop_string)
        & (finished | (unsaid & (~at_end | at_limit)))
    )


@bulk(
    RuleSpec(
        "bos-twice",
        "the prompt has more than one BOS token",
        "render the prompt without adding special tokens a second time",
        column="prompt_token_ids",
        report="DeepSeek-R1#151",
        strengths=("token",),
        needs_tokenizer=True,
        message="{count} BOS tokens",
    ),
    seen=lambda ctx: {"count": _count(ctx.ids_of(ctx.thresholds.bos_tokens), _LISTS[0])},
)
def bos_twice(ctx: Context) -> pl.Expr:
    """Hold where the prompt has at most one BOS."""
    return _count(ctx.ids_of(ctx.thresholds.bos_tokens), _LISTS[0]) <= 1


def _pads(ctx: Context) -> list[int]:
    ends = ctx.format.end_tokens if ctx.format else ()
    return ctx.ids_of(text for text in ctx.thresholds.pad_tokens if text not in ends)


@bulk(
    RuleSpec(
        "pad-inside",
        "a padding token stands inside the prompt or the response",
        "take the ids before padding; a shard holds rows of their own length",
        column="response_token_ids",
        strengths=("token",),
        needs_tokenizer=True,
        message="{count} padding tokens",
    ),
    seen=lambda ctx: {"count": _count(_pads(ctx), *_LISTS)},
)
def pad_inside(ctx: Context) -> pl.Expr:
    """Hold where no padding token is in either list; a family's end token is never padding here."""
    return _count(_pads(ctx), *_LISTS) == 0


def _count(ids: list[int], *columns: str) -> pl.Expr:
    import polars as pl

    counts = [column(name).list.count_matches(token).fill_null(0) for name in columns for token in ids]
    return pl.sum_horizontal([pl.lit(0), *counts])


@bulk(
    RuleSpec(
        "logprobs-bad",
        "the log-probabilities are not one finite number at most 0 for each response token",
        "record them again or leave the column null",
        column="output_logprobs",
        strengths=("token",),
        message="{count} values for {tokens} tokens, largest {high}",
    ),
    seen=lambda ctx: {
        "count": column("output_logprobs").list.len(),
        "tokens": column(_LISTS[1]).list.len(),
        "high": column("output_logprobs").list.max(),
    },
)
def logprobs_bad(ctx: Context) -> pl.Expr:
    """Hold where log-probabilities are absent or fit the response; -inf and NaN are refused."""
    import polars as pl

    values = column("output_logprobs")
    return values.is_null() | (
        (values.list.len() == column(_LISTS[1]).list.len())
        & values.list.eval(pl.element().is_finite() & (pl.element() <= 0)).list.all()
    ).fill_null(False)


def _odd_prompts(batch: Batch, ctx: Context) -> pl.Series:
    from contracts.rules.prompts import odd_prompts

    return odd_prompts(batch, ctx)


def _odd_digests(batch: Batch, ctx: Context) -> pl.Series:
    import polars as pl

    from contracts.batch_digests import digests_differ

    return pl.Series(digests_differ(batch), dtype=pl.Boolean)


@row_check(
    RuleSpec(
        "prompt-tail",
        "the prompt does not end with the generation prompt of its thinking mode",
        "render the prompt with the chat template's own switch and `add_generation_prompt`",
        column="prompt_token_ids",
        report="TorchSpec#108",
        strengths=("token",),
        needs_tokenizer=True,
    ),
    RuleSpec(
        "prompt-text",
        "a message is not in the prompt that the ids decode to",
        "take prompt ids and messages from the same request",
        column="messages",
        report="NeMo-Gym#1787",
        strengths=("token",),
        needs_tokenizer=True,
    ),
    suspects=_odd_prompts,
)
def prompt_rules(row: Row, ctx: Context) -> Iterator[Hit]:
    """Check the prompt's ids against its thinking mode and against what the messages say."""
    fmt, codec, ids = ctx.format, ctx.codec, row["prompt_token_ids"]
    if fmt is None or codec is None or not ids:
        return
    tail, mode = prompt_tail(fmt, ids, codec), row["thinking_mode"]
    if mode == ThinkingMode.INSTANT:
        wrong = tail is ThinkingMode.THINKING
    elif fmt.opener_prefilled:
        wrong = tail is not ThinkingMode.THINKING
    else:
        wrong = tail is ThinkingMode.INSTANT
    if wrong:
        said = "without a think marker" if tail is None else f"as a prompt of mode {tail} does"
        yield "prompt-tail", None, f"thinking mode {mode}, but the prompt ends {said}"
    try:
        text = _plain(codec.decode_bytes(ids).decode("utf-8", "replace"))
    except UndecodableToken as error:
        yield "prompt-text", "prompt_token_ids", str(error)
        return
    for index, message in enumerate((row["messages"] or ())[:-1]):
        said_text = _plain((message["content"] or "").strip())
        if message["role"] == "assistant" and any(marker in said_text for marker in fmt.markers):
            continue  # templates cut thinking out of earlier answers
        if said_text not in text:
            yield "prompt-text", None, f"message {index} ({said_text[:40]!r}) is not in the prompt"
            return


def _plain(text: str) -> str:
    """Normalise what tokenizers normalise, so that the comparison does not see it."""
    return unicodedata.normalize("NFC", text)


@row_check(
    RuleSpec(
        "prompt-digest",
        "`prompt_sha256` is not the digest of the prompt",
        "the row was changed after it was written: take it from its source again",
        column="prompt_sha256",
    ),
    RuleSpec(
        "content-digest",
        "`content_sha256` is not the digest of the row's content",
        "the row was changed after it was written: take it from its source again",
        column="content_sha256",
    ),
    suspects=_odd_digests,
)
def digests(row: Row, ctx: Context) -> Iterator[Hit]:
    """Check both digests by making them again."""
    made = prompt_sha256(row)
    if made != row["prompt_sha256"]:
        yield "prompt-digest", None, f"the prompt's digest is {made.hex()[:16]}…, the row says another"
    made = content_sha256(row)
    if made != row["content_sha256"]:
        yield "content-digest", None, f"the content's digest is {made.hex()[:16]}…, the row says another"
