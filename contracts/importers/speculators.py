"""Ids and a mask, as speculators' regeneration writes them: `input_ids`, `loss_mask`, `metadata`.

Place in the flow: an importer. Imports fields, fidelity's judge and shard of `contracts`, the base of this
package.

The ids are the truth: the prompt is what has no loss, the response what has it, and fields are derived from
the response's ids by its markers (`contracts.fields`). No text was served, so that claim stays empty.
SpecForge's `prompts_path` files have the same two keys; `labels` are taken where there is no mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from contracts.fields import derive_row
from contracts.framing import prompt_tail
from contracts.importers.base import ImportOptions, Place, Unfit
from contracts.importers.conversations import READ, common_columns, read, tools_of
from contracts.records import Mode, ThinkingMode
from contracts.shard import Row, encode_matched_stop, message_struct
from contracts.strict_json import NotJson, loads
from contracts.tokens import Codec, UndecodableToken

FINISH = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "abort": "abort", "eos": "stop"}
INT32 = 2**31


def rows_of(record: Mapping[str, Any], place: Place, options: ImportOptions, unread: set[str]) -> list[Row]:
    """Return the row of one record; `unread` is given the keys that it has no place for.

    Raises:
        Unfit: ids or mask are missing, of other lengths, or leave no response at the end.
    """
    codec = options.codec
    assert codec is not None
    ids = integers(record, "input_ids")
    mask = _mask(record, ids)
    if len(ids) != len(mask):
        raise Unfit(f"{len(ids)} input_ids and {len(mask)} values of loss_mask")
    if any(not 0 <= token < INT32 for token in ids):
        raise Unfit("an id of input_ids is negative or has more than 31 bits")
    if set(mask) - {0, 1}:
        raise Unfit(f"loss_mask holds {sorted(set(mask) - {0, 1})[0]}, not 0 or 1 only")
    spans = spans_of(mask)
    if not spans:
        raise Unfit("no token has loss: there is no response in it")
    start, length = spans[-1]
    if start + length != len(ids):
        raise Unfit(f"tokens without loss follow the response, from {start + length} of {len(ids)} on")
    if start == 0:
        raise Unfit("every token has loss: there is no prompt in it")
    known = (*READ, "input_ids", "loss_mask", "labels", "attention_mask", "seq_len", "text", "metadata")
    unread.update(str(key) for key, value in record.items() if key not in known and value is not None)
    _refuse_foreign(record.get("text"), ids, ids[:start], codec)
    metadata = _object(record.get("metadata"))
    sampled = metadata.get("sampling_params", metadata.get("sampling"))
    if isinstance(sampled, str | Mapping):
        options = replace(options, sampling={**options.sampling, **_sampling(sampled)})
    usage = _object(metadata.get("usage"))
    tools = tools_of(record if record.get("tools") is not None else metadata)
    fmt = options.format
    has_calls = bool(tools) and fmt.tools is not None
    if options.thinking is None and prompt_tail(fmt, ids[:start], codec) is ThinkingMode.INSTANT:
        options = replace(options, thinking=False)
    common = common_columns(place, options, Mode.TOOLS if has_calls else Mode.REASONING, tools)
    ends = {codec.token_id(text) for text in fmt.end_tokens}
    said = metadata.get("finish_reason")
    ended = ids[-1] in ends
    finish = FINISH.get(said) if isinstance(said, str) else ("stop" if ended else "length")
    if finish is None:
        raise Unfit(f"the finish reason {said!r} is none of {', '.join(sorted(FINISH))}")
    name = record.get("id")
    base = (
        str(name) if isinstance(name, str | int) and str(name).strip() else f"{place.dataset}-{place.number}"
    )
    conversation = str(record.get("primary_id") or base)
    turn = base.removeprefix(f"{conversation}_gen")
    row: Row = {
        **common,
        "sample_id": base,
        "conversation_id": conversation,
        "turn_index": int(turn) if turn != base and turn.isascii() and turn.isdecimal() else 0,
        "sample_index": 0,
        "parent_sample_id": None,
        "messages": _history(record, metadata, codec.decode_bytes(ids[:start])),
        "prompt_token_ids": ids[:start],
        "response_token_ids": ids[start:],
        "loss_mask": None if len(spans) == 1 else [{"start": s, "length": n} for s, n in spans],
        "output_logprobs": None,
        "response_text_raw": None,
        "text_source": "derived",
        "reasoning_content": None,
        "content": None,
        "tool_calls": None,
        "finish_reason": finish,
        "matched_stop": encode_matched_stop(ids[-1]) if ended and finish == "stop" else None,
        "prompt_tokens": _count(usage, "prompt_tokens", start),
        "completion_tokens": _count(usage, "completion_tokens", length),
        "reasoning_tokens": None,
        "losses": [],
    }
    return [derive_row(row, fmt, codec)]


def integers(record: Mapping[str, Any], key: str) -> list[int]:
    """Return a list of integers, `[[...]]` taken as `[...]`, as SpecForge takes it.

    Raises:
        Unfit: it is missing, empty, or holds anything else.
    """
    value = record.get(key)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if not isinstance(value, list) or not value:
        raise Unfit(f"`{key}` is {'missing' if value is None else 'no list of numbers'}")
    for item in value:
        if not isinstance(item, int) or (isinstance(item, bool) and key == "input_ids"):
            raise Unfit(f"`{key}` holds {item!r}, which is no integer")
    return [int(v) for v in value]


def failed(record: Mapping[str, Any]) -> str | None:
    """Return why speculators' regeneration itself says that a conversation came to nothing."""
    told = _object(record.get("metadata")).get("error")
    return None if told is None or record.get("input_ids") is not None else str(told)[:200]


def _refuse_foreign(text: Any, ids: Sequence[int], prompt: Sequence[int], codec: Codec) -> None:
    """Raise `Unfit` where the tokenizer is not the one that the ids are of.

    `text` is the decoding that speculators writes beside the ids for people. White space is no difference:
    some tokenizers tidy it up when they decode.
    """
    try:
        codec.decode_bytes(prompt)
        made = codec.decode_bytes(ids) if isinstance(text, str) else b""
    except UndecodableToken as error:
        raise Unfit(f"{error}: the ids are of another tokenizer") from error
    if isinstance(text, str) and _bare(text) != _bare(made.decode("utf-8", "replace")):
        raise Unfit("`text` is not what `input_ids` decode to: the ids are of another tokenizer, or changed")


def _bare(text: str) -> str:
    return "".join(text.replace("\ufffd", "").split())


def _sampling(told: str | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(told, str):
        try:
            told = loads(told)
        except NotJson:
            return {}
    return {key: value for key, value in _object(told).items() if value is not None and key != "mode"}


def _mask(record: Mapping[str, Any], ids: Sequence[int]) -> list[int]:
    """Return the mask, or what `labels` say: -100 where a token has no loss, its own id where it has."""
    if record.get("loss_mask") is not None or record.get("labels") is None:
        return integers(record, "loss_mask")
    labels = integers(record, "labels")
    if len(labels) == len(ids):
        other = next(
            (n for n, (a, b) in enumerate(zip(ids, labels, strict=True)) if b not in (a, -100)), None
        )
        if other is not None:
            raise Unfit(
                f"`labels` holds {labels[other]} at {other}, neither -100 nor the id that stands there"
            )
    return [int(label != -100) for label in labels]


def spans_of(mask: Sequence[int]) -> list[tuple[int, int]]:
    """Return (start, length) of each run of ones."""
    out, at = [], 0
    for value, run in groupby(mask):
        length = sum(1 for _ in run)
        if value:
            out.append((at, length))
        at += length
    return out


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(usage: Mapping[str, Any], key: str, own: int) -> int:
    told = usage.get(key)
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 <= told < INT32 else own


def _history(record: Mapping[str, Any], metadata: Mapping[str, Any], prompt: bytes) -> list[dict[str, Any]]:
    """Return the messages before the response: the record's, else the prompt's text as one user message."""
    for told in (record, metadata):
        try:
            messages = [message_struct(message) for message in read(told).messages]
        except Unfit:
            continue
        return messages[:-1] if messages[-1]["role"] == "assistant" else messages
    text = prompt.decode("utf-8", "replace")
    return [
        {
            "role": "user",
            "content": text,
            "reasoning_content": None,
            "tool_calls": None,
            "tool_call_id": None,
            "name": None,
        }
    ]
