"""Fields, text, claims and digests of a row, all derived again from its token ids.

Place in the flow: under import and repair. Imports fidelity's judge, records, shard and truth of `contracts`.

The ids are read by the format's markers (`contracts.truth`), not by SGLang's parsers: reasoning is what
stands before the closer, content what stands after it, and a call is its header and arguments as the model
wrote them. Where a server's parser hands out something else, the verdict on the derived fields says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from contracts.calls import ReadCall
from contracts.formats import Format
from contracts.records import Fields, Judgement, Mode, SegmentKind
from contracts.rules.fidelity import CLAIMS, framing_of_row, judge_row
from contracts.shard import Row, seal
from contracts.tokens import Codec
from contracts.truth import read_truth


def derive_row(row: Row, fmt: Format, codec: Codec) -> Row:
    """Return a row whose `messages` are the prompt's alone with all that its ids determine filled in."""
    fields = fields_of(row, fmt, codec)
    filled = with_fields(row, fields)
    filled["messages"] = [*row["messages"], target_of(fields)]
    return judged(filled, fmt, codec)


def fields_of(row: Row, fmt: Format, codec: Codec) -> Fields:
    """Return what a row's response ids say, in the row's own mode; "" and absent are both None."""
    framing = framing_of_row(row, fmt, codec)
    truth = read_truth(row["response_token_ids"], codec, framing)
    if framing.mode is Mode.RAW:
        text = truth.raw.decode("utf-8", "replace")
        return Fields(content=_cut(text, framing.end_text) if framing.stop_string else text)
    reasoning, content = truth.text_of(SegmentKind.REASONING), truth.text_of(SegmentKind.CONTENT)
    calls = wire_calls(truth.calls) if framing.tools_parsed else None
    if framing.stop_string:
        content = _cut(content, framing.end_text)
    return Fields(reasoning or None, content or None, calls)


def _cut(text: str, stop: str) -> str:
    return text[: text.index(stop)] if stop and stop in text else text


def wire_calls(calls: Sequence[ReadCall]) -> str | None:
    """Return calls as SGLang's chat endpoint writes them; the id is the model's own where it writes one."""
    if not calls:
        return None
    out = []
    for index, call in enumerate(calls):
        header = call.header.strip()
        name, colon, _ = header.removeprefix("functions.").rpartition(":")
        own_id = colon and header.startswith("functions.")
        out.append(
            {
                "id": header if own_id else f"call_{index:024d}",
                "index": index,
                "type": "function",
                "function": {"name": name if own_id else header, "arguments": call.arguments},
            }
        )
    return json.dumps(out, ensure_ascii=False)


def with_fields(row: Row, fields: Fields) -> Row:
    """Return a copy of the row with other fields; its messages stay."""
    return {
        **row,
        "reasoning_content": fields.reasoning_content,
        "content": fields.content,
        "tool_calls": fields.tool_calls,
    }


def target_of(fields: Fields) -> dict[str, str | None]:
    """Return the last message that these fields make."""
    return {
        "role": "assistant",
        "content": fields.content or "",
        "reasoning_content": fields.reasoning_content,
        "tool_calls": fields.tool_calls,
        "tool_call_id": None,
        "name": None,
    }


def judged(row: Row, fmt: Format, codec: Codec) -> Row:
    """Return the row with text, claims, verdict, losses and digests made from its ids and fields."""
    again = judge_row(row, fmt, codec)
    out = {**row, **judgement_columns(again)}
    if row["text_source"] == "derived":
        out["response_text_raw"] = again.raw_text
    return seal(out)


def judgement_columns(again: Judgement) -> dict[str, Any]:
    """Return the columns that state a judgement."""
    return {
        "claims": {name: getattr(again.claims, name) for name in CLAIMS},
        "verdict": str(again.verdict),
        "losses": [loss.name for loss in again.losses],
    }
