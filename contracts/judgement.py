"""The judge: response ids against response fields, claim by claim, to one verdict with named losses.

Place in the flow: after the rebuild and the truth, before shard and rules. Imports `contracts` only: the
harness judges captures with it, the audit judges stored rows again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from contracts.diagnose import diagnose
from contracts.framing import Framing
from contracts.losses import LOSSES, worst
from contracts.rebuild import Rebuilt, rebuild
from contracts.records import (
    VERDICT_ORDER,
    Claims,
    Divergence,
    Fields,
    Judgement,
    Loss,
    Mode,
    SegmentKind,
    Verdict,
)
from contracts.tokens import Codec
from contracts.truth import Truth, read_truth

EXCERPT = 40
"""Characters of the excerpts that a divergence carries."""

INVENTED_STOP = "NaN happened"
"""What SGLang puts into `matched_stop` when it replaced a NaN or out-of-range sample.

Source: SGLang 0.5.23, `managers/schedule_batch.py`, `_check_vocab_boundary_finish`.
"""

_NAMED_BY_SEGMENT = {
    SegmentKind.OPENER: "opener-undetermined",
    SegmentKind.REASONING: "reasoning-altered",
    SegmentKind.CLOSER: "closer-undetermined",
    SegmentKind.CONTENT: "content-altered",
    SegmentKind.TOOL_SECTION: "call-malformed",
    SegmentKind.END: "end-undetermined",
}
_REPLACED = re.compile("\ufffd+")


def judge_fields(
    response_ids: Sequence[int] | None,
    fields: Fields,
    *,
    codec: Codec | None,
    framing: Framing,
    finish_reason: str | None,
    matched_stop: int | str | None,
    raw_text: str | None = None,
    scripted_ids: Sequence[int] | None = None,
    extra: Sequence[Loss] = (),
) -> Judgement:
    """Judge one response.

    Args:
        response_ids: the engine's ids, end token included; None where the server gave none.
        fields: what the response handed out.
        codec: may be None where there are no ids to read.
        framing: the request's side (`contracts.framing.framing_for`).
        raw_text: the text as served before any parser, where it was on the wire; None otherwise.
        scripted_ids: the ids that a scripted generation forced.
        extra: losses known from elsewhere (a stream that differs, a parser that failed).
    """
    rebuilt = rebuild(fields, framing)
    if response_ids is None:
        return _unproven(fields, framing, rebuilt, finish_reason, raw_text, extra)
    assert codec is not None, "ids are judged with their tokenizer"
    ids = [int(i) for i in response_ids]
    truth = read_truth(ids, codec, framing)
    raw_losses = _captured(ids, truth, codec, finish_reason, matched_stop, scripted_ids, framing)
    captured = not raw_losses
    losses = [*extra, *raw_losses]
    derived = truth.raw.decode("utf-8", "replace")
    text_claim = None if raw_text is None else _same_served(raw_text, derived, framing)
    if text_claim is False:
        losses.append(
            Loss("text-differs", SegmentKind.CONTENT, 0, _first_difference(raw_text or "", derived))
        )
    if framing.mode is not Mode.RAW:
        losses.extend(diagnose(fields, framing, rebuilt, truth))
    text = rebuilt.text
    rebuilt_bytes = text.encode("utf-8", "replace")
    same_bytes = rebuilt_bytes == truth.raw
    divergence = None
    rebuilt_ids = codec.encode(text)
    same_ids = rebuilt_ids == ids
    if not (same_bytes and same_ids):
        divergence = _divergence(truth, rebuilt_bytes, ids, rebuilt_ids, codec, same_bytes)
    if not same_bytes:
        losses.extend(_name_bytes(truth, derived, text, losses, divergence))
    elif not same_ids:
        losses.append(_name_split(truth, codec, rebuilt_bytes, rebuilt_ids, divergence))
    if same_bytes and same_ids:
        # These fields do determine the tokens, however the parser's other path would have cut them.
        losses = [loss for loss in losses if loss.name != "stream-differs"]
    claims = Claims(captured=captured, text=text_claim, rebuilt=same_bytes, tokens=same_ids)
    return Judgement(
        claims=claims,
        verdict=worst(losses),
        losses=tuple(_in_order(losses)),
        reasoning_content=fields.reasoning_content,
        content=fields.content,
        tool_calls=None if fields.tool_calls is None else rebuilt.calls,
        divergence=divergence,
        finish_reason=finish_reason,
        rebuilt_text=text,
        raw_text=derived if raw_text is None else raw_text,
        segments=truth.runs(),
    )


def _unproven(
    fields: Fields,
    framing: Framing,
    rebuilt: Rebuilt,
    finish_reason: str | None,
    raw_text: str | None,
    extra: Sequence[Loss],
) -> Judgement:
    """Judge without ids: nothing is proven, but a think marker inside content contradicts all the same."""
    losses = [*extra, Loss("ids-missing", SegmentKind.CONTENT, 0, 0)]
    content = fields.content or ""
    closer = framing.format.closer
    if framing.mode is not Mode.RAW and not fields.reasoning_content and closer and closer in content:
        losses.append(Loss("reasoning-in-content", SegmentKind.REASONING, 0, 0, "by the text, without ids"))
    return Judgement(
        claims=Claims(),
        verdict=worst(losses),
        losses=tuple(losses),
        reasoning_content=fields.reasoning_content,
        content=fields.content,
        tool_calls=None if fields.tool_calls is None else rebuilt.calls,
        divergence=None,
        finish_reason=finish_reason,
        rebuilt_text=rebuilt.text,
        raw_text=raw_text,
    )


def _captured(
    ids: list[int],
    truth: Truth,
    codec: Codec,
    finish_reason: str | None,
    matched_stop: int | str | None,
    scripted_ids: Sequence[int] | None,
    framing: Framing,
) -> list[Loss]:
    losses: list[Loss] = []

    def lose(name: str, token: int, detail: str = "") -> None:
        at = truth.offsets[min(token, len(truth.offsets) - 1)]
        losses.append(Loss(name, truth.kind_at(at), token, at, detail))

    if matched_stop == INVENTED_STOP:
        lose("invented-token", max(0, len(ids) - 1))
    for index, token_id in truth.undecodable[:1]:
        lose("token-out-of-range", index, f"id {token_id}")
    if truth.ends and truth.ends[0].token < len(ids) - 1:
        lose("token-after-end", truth.ends[0].token + 1)
    if scripted_ids is not None and list(scripted_ids) != ids:
        first = next(
            (n for n, (a, b) in enumerate(zip(scripted_ids, ids, strict=False)) if a != b),
            min(len(scripted_ids), len(ids)),
        )
        lose("script-not-followed", first)
    if isinstance(matched_stop, int) and finish_reason in ("stop", "tool_calls"):
        if not ids or ids[-1] != matched_stop:
            lose("finish-contradicted", max(0, len(ids) - 1), f"the end token {matched_stop} is not there")
    elif finish_reason == "tool_calls" and not truth.ends and matched_stop is None:
        lose("finish-contradicted", max(0, len(ids) - 1), "a finished call is told, no end token came")
    return losses


def _same_served(served: str, derived: str, framing: Framing) -> bool:
    """Compare the served text with the ids' text; runs of replacement characters count as one."""
    if served == derived:
        return True
    a, b = _REPLACED.sub("\ufffd", served), _REPLACED.sub("\ufffd", derived)
    return a == b or (framing.stop_string and b.startswith(a))


def _first_difference(a: str, b: str) -> int:
    shared = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return len(b[:shared].encode("utf-8", "replace"))


def _divergence(
    truth: Truth, rebuilt: bytes, ids: list[int], rebuilt_ids: list[int], codec: Codec, same_bytes: bool
) -> Divergence:
    token = next(
        (n for n, (a, b) in enumerate(zip(ids, rebuilt_ids, strict=False)) if a != b),
        min(len(ids), len(rebuilt_ids)),
    )
    if same_bytes:
        at = truth.offsets[min(token, len(ids))]
    else:
        raw = truth.raw
        at = next((n for n, (a, b) in enumerate(zip(raw, rebuilt, strict=False)) if a != b), None) or min(
            len(raw), len(rebuilt)
        )
        if raw[:1] != rebuilt[:1]:
            at = 0
        token = min(truth.token_at(at), max(0, len(ids)))
    return Divergence(
        token_index=token,
        byte_offset=at,
        segment=truth.kind_at(at),
        raw=truth.raw[at : at + 4 * EXCERPT].decode("utf-8", "replace")[:EXCERPT],
        rebuilt=rebuilt[at : at + 4 * EXCERPT].decode("utf-8", "replace")[:EXCERPT],
        raw_id=ids[token] if token < len(ids) else None,
        rebuilt_id=rebuilt_ids[token] if token < len(rebuilt_ids) else None,
    )


def _name_bytes(
    truth: Truth, derived: str, text: str, known: Sequence[Loss], divergence: Divergence | None
) -> list[Loss]:
    """Name a byte difference: broken UTF-8 by itself, anything unnamed by its segment."""
    place = divergence or Divergence(0, 0, SegmentKind.CONTENT, "", "", None, None)
    out = []
    try:
        truth.raw.decode()
        broken = None
    except UnicodeDecodeError as error:
        broken = error.start
    if broken is not None:
        out.append(Loss("incomplete-utf8", truth.kind_at(broken), truth.token_at(broken), broken))
        if _REPLACED.sub("\ufffd", text) == _REPLACED.sub("\ufffd", derived):
            return out
    explained = any(worst([loss]) is not Verdict.TEXT_EXACT for loss in known)
    if not explained and not any(loss.name == _NAMED_BY_SEGMENT[place.segment] for loss in known):
        name = _NAMED_BY_SEGMENT[place.segment]
        if truth.calls and "".join(text.split()) == "".join(derived.split()):
            name = "call-whitespace"  # the family writes other white space before its calls
        last = max(0, len(truth.offsets) - 2)  # what is rebuilt may go on past the last token
        out.append(Loss(name, place.segment, min(place.token_index, last), place.byte_offset))
    return out


def _name_split(
    truth: Truth, codec: Codec, rebuilt: bytes, rebuilt_ids: list[int], divergence: Divergence | None
) -> Loss:
    place = divergence or Divergence(0, 0, SegmentKind.CONTENT, "", "", None, None)
    name = "noncanonical-split"
    if codec.decode_bytes(rebuilt_ids) != rebuilt:
        name = "tokenizer-normalizes"
    elif any(mark.token <= place.token_index + 1 and mark.end > place.byte_offset for mark in truth.spelled):
        name = "marker-spelled"
    return Loss(name, place.segment, place.token_index, place.byte_offset)


def _in_order(losses: Sequence[Loss]) -> list[Loss]:
    """Sort worst first, then by place; one loss per name and segment."""
    kept: dict[tuple[str, SegmentKind], Loss] = {}
    for loss in losses:
        kept.setdefault((loss.name, loss.segment), loss)
    return sorted(
        kept.values(), key=lambda loss: (VERDICT_ORDER.index(LOSSES[loss.name].verdict), loss.byte_offset)
    )
