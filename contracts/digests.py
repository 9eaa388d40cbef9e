"""The digests that a row carries, and how they are made.

Place in the flow: under the shard and its rules. Imports the standard library only.

`prompt_sha256` is SHA-256 over the prompt's token ids, each as four little-endian bytes; without ids, over
the JSON of the messages before the last one and the tools. `content_sha256` is SHA-256 over `prompt_sha256`,
the response's token ids in the same form, and the JSON list of `CONTENT_COLUMNS`' values, in that order,
keys sorted. It covers all that training sees and all that the sampling depended on, and nothing that names
the row: two rows with equal content digests are the same content, under whatever `sample_id`. The
log-probabilities enter as the hex of their little-endian 32-bit floats.
"""

from __future__ import annotations

import array
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

CONTENT_COLUMNS = (
    "messages",
    "tools",
    "loss_mask",
    "output_logprobs",
    "response_text_raw",
    "text_source",
    "reasoning_content",
    "content",
    "tool_calls",
    "finish_reason",
    "matched_stop",
    "prompt_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "claims",
    "verdict",
    "losses",
    "constraint",
    "transport",
    "endpoint",
    "thinking_mode",
    "template_kwargs",
    "sampling_params",
)


NAME_COLUMNS = (
    "sample_id",
    "conversation_id",
    "source_dataset",
    "source_row_index",
    "turn_index",
    "sample_index",
    "parent_sample_id",
    "request_id",
    "created_at",
)


def names_sha256(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the digest (hex) over what names a shard's rows, whatever their order.

    It is SHA-256 over the rows' lines, sorted; a line is the JSON list of `NAME_COLUMNS`' values, the time as
    microseconds since 1970.
    """
    lines = []
    for row in rows:
        values = [row[name] for name in NAME_COLUMNS]
        values[-1] = round((values[-1] - EPOCH) / timedelta(microseconds=1))
        lines.append(_json(values))
    return hashlib.sha256(b"\n".join(sorted(lines))).hexdigest()


def ids_bytes(ids: Sequence[int]) -> bytes:
    """Return token ids as little-endian 32-bit integers."""
    packed = array.array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def prompt_sha256(row: Mapping[str, Any]) -> bytes:
    """Return the digest (32 bytes) of a row's prompt."""
    ids = row["prompt_token_ids"]
    if ids is not None:
        return hashlib.sha256(ids_bytes(ids)).digest()
    return hashlib.sha256(_json([row["messages"][:-1], row["tools"]])).digest()


def content_sha256(row: Mapping[str, Any]) -> bytes:
    """Return the digest (32 bytes) of a row's content; reads the row's `prompt_sha256`."""
    digest = hashlib.sha256(row["prompt_sha256"])
    if row["response_token_ids"] is not None:
        digest.update(ids_bytes(row["response_token_ids"]))
    values = {name: row[name] for name in CONTENT_COLUMNS}
    if values["output_logprobs"] is not None:
        single = array.array("f", values["output_logprobs"])
        values["output_logprobs"] = single.tobytes().hex() if sys.byteorder == "little" else _swapped(single)
    digest.update(_json([values[name] for name in CONTENT_COLUMNS]))
    return digest.digest()


def _swapped(single: array.array[float]) -> str:
    single.byteswap()
    return single.tobytes().hex()


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()
