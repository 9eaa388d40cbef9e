"""What a row's ids determine, derived anew, where a second witness says that the ids are the generated ones.

Place in the flow: under repair, where the stored digest is of no help. Imports digests, fields, rebuild and
fidelity's judge of `contracts`.

Ids alone prove nothing: an id that was changed gives another text, and a row made to fit it would be a wrong
row that looks right. A witness is what was recorded apart from the ids and says the same bytes: the text as
served, or the fields, rebuilt by the format's framing. A text that was derived from the ids is none.
"""

from __future__ import annotations

from contracts.digests import content_sha256, prompt_sha256
from contracts.fields import fields_of, judged, target_of, with_fields
from contracts.formats import Format
from contracts.records import Fields, Verdict
from contracts.repair.restore import UNREADABLE, copies
from contracts.rules.fidelity import framing_of_row, judge_row
from contracts.shard import Row
from contracts.tokens import Codec, UndecodableToken


def suspect(row: Row, codec: Codec) -> str:
    """Return why a row's ids themselves are in doubt, "" where nothing says so."""
    for name in ("prompt_token_ids", "response_token_ids"):
        ids = row[name]
        if not ids:
            return f"there are no {name}"
        try:
            codec.decode_bytes(ids)
        except UndecodableToken as error:
            return f"{name}: {error}"
        if codec.vocab_size is not None and not all(0 <= token < codec.vocab_size for token in ids):
            return f"{name} hold an id outside the vocabulary"
    return ""


def derived(row: Row, fmt: Format, codec: Codec) -> tuple[Row | None, str]:
    """Return the row derived anew and the witness, or None and why it can't be proven."""
    if prompt_sha256(row) != row["prompt_sha256"]:
        return None, "the prompt's ids are not the ones of `prompt_sha256`, and the sealed row can't be found"
    if content_sha256(row) != row["content_sha256"]:
        # What was changed may be a column that nothing determines: a new seal would hide it.
        return None, "the row is not the one that was sealed, and that one can't be found"
    counted = (row["prompt_tokens"], row["completion_tokens"])
    if counted != (len(row["prompt_token_ids"]), len(row["response_token_ids"])):
        # Tokens lost, or the text encoded again, show in nothing but the engine's count.
        return None, "the engine counted other numbers of tokens, and the sealed row can't be found"
    try:
        again = judge_row(row, fmt, codec)
    except UNREADABLE as error:
        return None, f"the row can't be judged: {' '.join(str(error).split())[:120]}"
    if again.claims.captured is False:
        names = ", ".join(loss.name for loss in again.losses)
        return None, f"the ids contradict how the response is said to have ended ({names})"
    served = row["text_source"] == "served"
    if served != ((row["claims"] or {}).get("text") is not None):
        return None, "the row says both that its text was served and that none was"
    if served and again.claims.text is False:
        return None, "the text that is told as served is not what the ids decode to: one of the two is wrong"
    fields, witness = _witnessed(row, fmt, codec)
    if fields is None:
        return None, (
            "neither the fields nor a served text says what the ids decode to: "
            "nothing tells which of them is wrong"
        )
    out = with_fields(row, fields)
    out["messages"] = [*row["messages"][:-1], target_of(fields)]
    if not served:
        out["text_source"] = "derived"
    if row["loss_mask"] is not None and len(row["loss_mask"]) <= 1:
        out["loss_mask"] = None
    return judged(out, fmt, codec), witness


def _witnessed(row: Row, fmt: Format, codec: Codec) -> tuple[Fields | None, str]:
    """Return the fields to keep and who confirms the ids: a copy of the fields, or the served text."""
    try:
        raw = codec.decode_bytes(row["response_token_ids"])
        for fields, name in zip(copies(row), ("the columns' fields", "the last message"), strict=False):
            if any((fields.reasoning_content, fields.content, fields.tool_calls)) and _rebuilds(
                row, fields, fmt, codec, raw
            ):
                return fields, name
        if row["text_source"] == "served" and judge_row(row, fmt, codec).claims.text:
            return fields_of(row, fmt, codec), "the served text"
    except UNREADABLE:
        pass
    return None, ""


def _rebuilds(row: Row, fields: Fields, fmt: Format, codec: Codec, raw: bytes) -> bool:
    from contracts.rebuild import rebuild

    if rebuild(fields, framing_of_row(row, fmt, codec)).text.encode("utf-8", "replace") != raw:
        return False
    # The bytes don't tell all: Kimi's call id names the function, whatever the field `name` says.
    verdict = judge_row(with_fields(row, fields), fmt, codec).verdict
    return verdict in (Verdict.EXACT, Verdict.TEXT_EXACT)
