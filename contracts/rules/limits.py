"""Rules about where the request told the response to end: its limit in tokens, its stops.

Place in the flow: rules. Imports columns, registry and requests of `contracts`; numpy and polars while a
check runs. The engine's own way is SGLang 0.5.23, `Req.update_finish_state`: stop strings, then stop tokens,
then the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from contracts.columns import ids_of, rows_with
from contracts.rules.registry import Batch, Context, Hit, Row, RuleSpec, row_check
from contracts.rules.requests import Request, ids_of_request, request_of, requests_of, rows_asking, texts_of
from contracts.tokens import Codec, UndecodableToken

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

LIMITS = ("max_tokens", "max_new_tokens", "max_completion_tokens")
NO_LIMIT = 1 << 40
CONTEXT_SLACK = 8
"""Tokens that servers keep back of the context's length."""


def limits_of(request: Request) -> tuple[int, int]:
    """Return the least and the greatest limit in tokens of a request; `NO_LIMIT` where it names none."""
    told = [request.get(name) for name in LIMITS]
    found = [n for n in told if isinstance(n, int) and not isinstance(n, bool) and n > 0]
    return (min(found), max(found)) if found else (NO_LIMIT, NO_LIMIT)


def _off_limits(batch: Batch, ctx: Context) -> pl.Series:
    """Return the rows with more tokens than their request allowed, and those cut before it."""
    import numpy as np
    import polars as pl

    codes, requests = requests_of(batch)
    bounds = np.array([limits_of(request) for request in requests], dtype=np.int64).reshape(-1, 2)
    _, offsets = ids_of(batch, "response_token_ids")
    tokens = np.diff(offsets)
    cut = (batch.frame["finish_reason"] == "length").fill_null(True).to_numpy()
    least, most = bounds[codes].T
    return pl.Series((tokens > most) | (cut & (tokens < least) & (least != NO_LIMIT)))


@row_check(
    RuleSpec(
        "limit-exceeded",
        "the response has more tokens than its request allowed",
        "take parameters and ids from the same request; the ids or the limit are another row's",
        column="sampling_params",
        report="speculators#835, DeepSpec#29",
        strengths=("token",),
    ),
    RuleSpec(
        "cut-before-limit",
        "the row says that the token limit cut it, but the request allowed more tokens than there are",
        "where the context's length cut it, set `context_length` in the thresholds; else the response was "
        "shortened after it was generated: take it from its source",
        column="finish_reason",
        kind="quality",
        report="speculators#835",
        strengths=("token",),
    ),
    suspects=_off_limits,
)
def within_limits(row: Row, ctx: Context) -> Iterator[Hit]:
    """Hold the number of response tokens against the request's own limit."""
    if row["response_token_ids"] is None:
        return
    least, most = limits_of(request_of(row["sampling_params"]))
    tokens, prompt = len(row["response_token_ids"]), len(row["prompt_token_ids"] or ())
    if tokens > most:
        yield "limit-exceeded", None, f"{tokens} response tokens, the request allowed {most}"
    # A script that runs out ends as a cut does.
    if (
        row["finish_reason"] != "length"
        or row["constraint"] is not None
        or least == NO_LIMIT
        or tokens >= least
    ):
        return
    context = ctx.thresholds.context_length
    if not context or prompt + tokens < context - CONTEXT_SLACK:
        yield "cut-before-limit", None, f"{tokens} response tokens, the request allowed {least}"


def _stops(request: Request) -> bool:
    return bool(texts_of(request.get("stop")) or ids_of_request(request, "stop_token_ids"))


def _past_stops(batch: Batch, ctx: Context) -> pl.Series:
    """Return the rows that hold a stop of their request anywhere but in their last token."""
    import numpy as np
    import polars as pl

    stopping = rows_asking(batch, _stops)
    if not stopping.any():
        return pl.repeat(False, len(stopping), eager=True, dtype=pl.Boolean)
    codes, requests = requests_of(batch)
    found = np.zeros(len(stopping), dtype=bool)
    said = pl.concat_str(
        [pl.col(n).fill_null("") for n in ("response_text_raw", "reasoning_content", "content")],
        separator="\x00",
    )
    # Anything but a number is taken as a text.
    by_text = ~batch.frame["matched_stop"].str.contains(r"^\s*\d+\s*$").fill_null(True).to_numpy()
    for kind in np.unique(codes[stopping]):
        here = codes == kind
        if stops := texts_of(requests[kind].get("stop")):
            texts = batch.frame.filter(pl.Series(here)).select(said.alias("said"))["said"]
            found[np.flatnonzero(here)[texts.str.contains_any(stops).to_numpy()]] = True
            found |= here & by_text
        if ids := ids_of_request(requests[kind], "stop_token_ids"):
            found |= here & _hold(batch, ids)
    return pl.Series(found)


def _hold(batch: Batch, ids: list[int]) -> np.ndarray[Any, Any]:
    """Return the rows that hold one of some ids before their last one."""
    import numpy as np

    values, offsets = ids_of(batch, "response_token_ids")
    flags = np.isin(values, ids)
    lasts = offsets[1:][np.diff(offsets) > 0] - 1
    flags[lasts] = False
    return rows_with(flags, offsets)


@row_check(
    RuleSpec(
        "stop-passed",
        "a stop string or stop token of the request stands in the response, which goes on after it",
        "take parameters and response from the same request; a server ends there",
        column="sampling_params",
        report="sglang 0.5.23, `Req.update_finish_state`",
    ),
    RuleSpec(
        "stop-absent",
        "the stop string that is said to have ended the response is not in it, or none of the request's",
        "take `matched_stop` and ids from the same response",
        column="matched_stop",
        strengths=("token",),
        needs_tokenizer=True,
    ),
    suspects=_past_stops,
)
def stops_kept(row: Row, ctx: Context) -> Iterator[Hit]:
    """Look for the request's stops as the server does, token by token."""
    from contracts.shard import decode_matched_stop

    request, ids = request_of(row["sampling_params"]), row["response_token_ids"]
    stops, tokens = texts_of(request.get("stop")), set(ids_of_request(request, "stop_token_ids"))
    if not request.get("ignore_eos"):
        at = next((n for n, token in enumerate((ids or ())[:-1]) if token in tokens), None)
        if at is not None:
            yield "stop-passed", None, f"stop token {ids[at]} is token {at} of {len(ids)}"
    if not stops:
        return
    if ids is None:
        for name in ("reasoning_content", "content"):
            text = row[name] or ""
            stop = next((stop for stop in stops if stop in text[:-1]), None)
            if stop is not None:
                yield "stop-passed", name, f"{stop!r} stands in the {name}"
        return
    if ctx.codec is None:
        return
    try:
        pieces = ctx.codec.token_bytes(ids)
    except UndecodableToken:
        return  # another rule tells that
    for stop in stops:
        at = _first_seen(stop, pieces, ctx.codec)
        if at is not None and at < len(ids) - 1:
            yield "stop-passed", None, f"{stop!r} is whole at token {at} of {len(ids)}"
    matched = decode_matched_stop(row["matched_stop"])
    if not isinstance(matched, str) or request.get("stop_regex"):
        return
    if matched not in stops:
        yield (
            "stop-absent",
            None,
            f"{matched!r} is none of the request's: {', '.join(map(repr, stops))[:160]}",
        )
    elif matched.encode() not in b"".join(pieces):
        yield "stop-absent", None, f"{matched!r} is nowhere in the response"


def _first_seen(stop: str, pieces: list[bytes], codec: Codec) -> int | None:
    """Return the token at which a server sees a stop string: it looks at the last few tokens only."""
    wanted = stop.encode()
    if wanted not in b"".join(pieces):
        return None
    window = len(codec.encode(stop)) + 1
    for at in range(len(pieces)):
        if wanted in b"".join(pieces[max(0, at + 1 - window) : at + 1]):
            return at
    return None
