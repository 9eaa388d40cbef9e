"""The fidelity rules: each stored row is judged again from its ids and fields, and must come out the same.

Place in the flow: rules. Imports framing, judgement and records of `contracts`. This is the seam between the
data side and the judge: whatever is changed in ids, fields, framing, claims, verdict or losses, the stored
judgement and the one made here part ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from contracts.formats import Format
from contracts.framing import Framing, request_framing
from contracts.losses import LOSSES
from contracts.records import (
    Fields,
    Judgement,
    Loss,
    Mode,
    Profile,
    SegmentKind,
    Severity,
    Verdict,
)
from contracts.rules.registry import Batch, Context, Hit, Row, RuleSpec, bulk, column, row_check
from contracts.rules.structural import parse
from contracts.sampling import GRAMMARS
from contracts.tokens import Codec

if TYPE_CHECKING:
    import polars as pl

CLAIMS = ("captured", "text", "rebuilt", "tokens")
FROM_ELSEWHERE = ("stream-differs", "parser-failed", "script-not-followed")
"""Losses that a stored row can't show again: they compared it with something that is not stored."""

_FIELDS_ARE_RATES: dict[Profile, Severity | None] = {
    Profile.DRAFT: Severity.RATE,
    Profile.RL: Severity.RATE,
}


def framing_of_row(row: Row, fmt: Format, codec: Codec) -> Framing:
    """Return the framing of a stored row, as the harness made it from the capture."""
    from contracts.shard import NONE, decode_matched_stop

    sampling, kwargs = parse(row["sampling_params"]), parse(row["template_kwargs"])
    mode = sampling.get("mode") if isinstance(sampling, Mapping) else None
    bent = parse(row["constraint"]) if row["constraint"] is not None else {}
    parsers = {name: row[name] for name in ("reasoning_parser", "tool_parser") if row[name] != NONE}
    return request_framing(
        fmt,
        codec=codec,
        mode=Mode(mode) if mode in set(Mode) else Mode.RAW,
        prompt_ids=row["prompt_token_ids"],
        finish_reason=row["finish_reason"],
        matched_stop=decode_matched_stop(row["matched_stop"]),
        template_kwargs=kwargs if isinstance(kwargs, Mapping) else {},
        reasoning_parser=parsers.get("reasoning_parser"),
        tool_parser=parsers.get("tool_parser"),
        tools=row["tools"] is not None,
        constrained=isinstance(bent, Mapping) and any(name in bent for name in GRAMMARS),
    )


def judge_row(row: Row, fmt: Format, codec: Codec) -> Judgement:
    """Judge a stored row again from its ids and fields; its stored claims and verdict are not looked at.

    Losses that only the recording could see (`FROM_ELSEWHERE`) are taken over as the row names them.
    """
    from contracts.judgement import judge_fields
    from contracts.shard import decode_matched_stop

    extra = [
        Loss(name, SegmentKind.CONTENT, 0, 0, "as recorded")
        for name in row["losses"] or ()
        if name in FROM_ELSEWHERE
    ]
    return judge_fields(
        row["response_token_ids"],
        Fields(row["reasoning_content"], row["content"], row["tool_calls"]),
        codec=codec,
        framing=framing_of_row(row, fmt, codec),
        finish_reason=row["finish_reason"],
        matched_stop=decode_matched_stop(row["matched_stop"]),
        raw_text=row["response_text_raw"] if row["text_source"] == "served" else None,
        extra=extra,
    )


def _judged(batch: Batch, ctx: Context) -> pl.Series:
    from contracts.rules.proven import not_proven

    return not_proven(batch, ctx)


@row_check(
    RuleSpec(
        "not-captured",
        "the engine did not generate these ids as they stand",
        "generate these rows again",
        column="response_token_ids",
        strengths=("token",),
        needs_tokenizer=True,
    ),
    RuleSpec(
        "text-differs",
        "the stored text is not what the response ids decode to",
        "generate these rows again; take text and ids from one response, under the model's own tokenizer",
        column="response_text_raw",
        report="datatrove#118; a public K2.5 data set tokenised with Qwen3's vocabulary",
        strengths=("token",),
        needs_tokenizer=True,
    ),
    RuleSpec(
        "judgement-differs",
        "judged again, ids and fields do not give the claims, verdict and losses that the row states",
        "the row was changed after it was judged: take it from its source, or judge its capture again",
        column="verdict",
        strengths=("token",),
        needs_tokenizer=True,
    ),
    RuleSpec(
        "fields-contradicted",
        "the fields say something that the tokens do not",
        "see the loss's own remedy; train on the token ids, or record these rows again",
        column="verdict",
        report="sglang#23341, vllm#50258, smg#1873",
        severities=_FIELDS_ARE_RATES,
        needs_tokenizer=True,
    ),
    suspects=_judged,
)
def judged_again(row: Row, ctx: Context) -> Iterator[Hit]:
    """Judge the row and compare, claim by claim."""
    fmt, codec = ctx.format, ctx.codec
    if fmt is None or codec is None or row["response_token_ids"] is None:
        return
    again = judge_row(row, fmt, codec)
    if again.claims.captured is False:
        names = ", ".join(loss.name for loss in again.losses if loss.name in _NOT_CAPTURED)
        yield "not-captured", None, f"not as generated: {names or 'the ids contradict the finish reason'}"
    if again.claims.text is False or _derived_differs(row, again):
        yield (
            "text-differs",
            None,
            _difference(row["response_text_raw"] or "", again.raw_text or "", codec, row),
        )
    told = _differences(row, again)
    if told:
        yield "judgement-differs", told[0][0], "; ".join(text for _, text in told)
    if again.verdict is Verdict.CONTRADICTED and again.claims.captured is not False:
        losses = [loss for loss in again.losses if LOSSES[loss.name].verdict is Verdict.CONTRADICTED]
        named = ", ".join(f"{loss.name} at token {loss.token_index}" for loss in losses)
        yield "fields-contradicted", None, named


_NOT_CAPTURED = (
    "invented-token",
    "token-out-of-range",
    "token-after-end",
    "script-not-followed",
    "finish-contradicted",
)


def _derived_differs(row: Row, again: Judgement) -> bool:
    stored = row["response_text_raw"]
    return bool(row["text_source"] == "derived" and stored is not None and stored != again.raw_text)


def _difference(stored: str, made: str, codec: Codec, row: Row) -> str:
    if row["text_source"] == "served":
        from contracts.tokens import UndecodableToken

        try:
            made = codec.decode_bytes(row["response_token_ids"]).decode("utf-8", "replace")
        except UndecodableToken as error:
            return str(error)
    shared = zip(stored, made, strict=False)
    at = next((n for n, (a, b) in enumerate(shared) if a != b), min(len(stored), len(made)))
    return f"they part at character {at}: stored {stored[at : at + 30]!r}, decoded {made[at : at + 30]!r}"


def _differences(row: Row, again: Judgement) -> list[tuple[str, str]]:
    out = []
    claims = row["claims"] or {}
    for name in CLAIMS:
        stored, made = claims.get(name), getattr(again.claims, name)
        if stored is not made:
            out.append(("claims", f"claim {name}: stored {stored}, judged {made}"))
    if row["verdict"] != again.verdict:
        out.append(("verdict", f"verdict: stored {row['verdict']}, judged {again.verdict}"))
    names = [loss.name for loss in again.losses]
    if list(row["losses"] or ()) != names:
        stored_names = ", ".join(row["losses"] or ()) or "none"
        out.append(("losses", f"losses: stored {stored_names}; judged {', '.join(names) or 'none'}"))
    return out


@bulk(
    RuleSpec(
        "verdict-inconsistent",
        "stored claims, verdict and losses can't stand together",
        "judge the row again from its capture",
        column="verdict",
        message="verdict {verdict}, claims {claims}, losses {losses}",
    ),
    seen=lambda ctx: _verdict_seen(),
)
def verdict_inconsistent(ctx: Context) -> pl.Expr:
    """Hold where the verdict is the worst that the named losses bring and the claims allow it."""
    import polars as pl

    verdict = pl.col("verdict")
    claim = pl.col("claims").struct.field
    holds = pl.col("losses").list.eval(pl.element().is_in(sorted(LOSSES))).list.all()
    ranks = _ranks()
    worst = (
        pl.col("losses")
        .list.eval(
            pl.element().replace_strict(
                {name: ranks[spec.verdict] for name, spec in LOSSES.items()},
                default=99,
                return_dtype=pl.Int64,
            )
        )
        .list.min()
        .fill_null(ranks[Verdict.EXACT])
    )
    stated = verdict.replace_strict({str(k): v for k, v in ranks.items()}, default=-1, return_dtype=pl.Int64)
    proven = claim("captured") & claim("rebuilt") & claim("tokens") & claim("text").fill_null(True)
    return (
        holds
        & (worst == stated)
        & ((verdict != "exact") | proven.fill_null(False))
        & ((verdict != "text_exact") | (claim("captured") & claim("rebuilt")).fill_null(False))
    )


def _ranks() -> dict[Verdict, int]:
    from contracts.records import VERDICT_ORDER

    return {verdict: rank for rank, verdict in enumerate(VERDICT_ORDER)}


def _verdict_seen() -> dict[str, Any]:
    import polars as pl

    shown = [
        pl.format(
            "{}={}", pl.lit(name), pl.col("claims").struct.field(name).cast(pl.String).fill_null("null")
        )
        for name in CLAIMS
    ]
    return {
        "verdict": pl.col("verdict"),
        "claims": pl.concat_str(shown, separator=" "),
        "losses": pl.col("losses").list.join(", "),
    }


@bulk(
    RuleSpec(
        "unproven",
        "a row of strength `token` was judged without the engine's ids, or was not captured",
        "record with the engine's ids, or certify under strength `text`",
        column="verdict",
        strengths=("token",),
        message="verdict {verdict}, captured {captured}",
    ),
    seen=lambda ctx: {"verdict": column("verdict"), "captured": _captured()},
)
def unproven(ctx: Context) -> pl.Expr:
    """Hold where the row says it was captured and judged."""
    return (column("verdict") != "unproven") & _captured().fill_null(False)


def _captured() -> pl.Expr:
    return column("claims").struct.field("captured")
