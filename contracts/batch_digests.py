"""The digests of `contracts.digests` for a batch of rows at once: the same bytes, made with less ado.

Place in the flow: under the rules and the scan. Imports columns and digests of `contracts`; orjson and polars
inside functions. orjson writes what `json.dumps` writes as long as all of it is ASCII; for the
rest, and wherever a row is odd, the one-row functions answer.
"""

from __future__ import annotations

import array
import hashlib
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from contracts.columns import ids_of
from contracts.digests import CONTENT_COLUMNS, NAME_COLUMNS

if TYPE_CHECKING:
    import polars as pl

    from contracts.rules.registry import Batch

_LOGPROBS = CONTENT_COLUMNS.index("output_logprobs")


def digests_differ(batch: Batch) -> list[bool]:
    """Return per row whether one of its two digests is not the one stored; True where it can't be told."""
    frame = batch.frame
    if sys.byteorder != "little":
        return [True] * frame.height
    prompts, responses = _ids_bytes(batch, "prompt_token_ids"), _ids_bytes(batch, "response_token_ids")
    stored_prompts = frame["prompt_sha256"].to_list()
    stored_contents = frame["content_sha256"].to_list()
    out = []
    for row, prompt, response, stored_prompt, stored in zip(
        frame.select(CONTENT_COLUMNS).iter_rows(),
        prompts,
        responses,
        stored_prompts,
        stored_contents,
        strict=True,
    ):
        if prompt is None or response is None or stored_prompt is None:
            out.append(True)
            continue
        if hashlib.sha256(prompt).digest() != stored_prompt:
            out.append(True)
            continue
        values: Sequence[Any] = row
        if row[_LOGPROBS] is not None:
            values = list(row)
            values[_LOGPROBS] = array.array("f", row[_LOGPROBS]).tobytes().hex()
        digest = hashlib.sha256(stored_prompt)
        digest.update(response)
        digest.update(_json(values))
        out.append(digest.digest() != stored)
    return out


def _ids_bytes(batch: Batch, column: str) -> list[memoryview | None]:
    """Return each row's ids as little-endian 32-bit integers, None for a null."""
    values, offsets = ids_of(batch, column)
    whole = memoryview(values.astype("<i4", copy=False).tobytes())
    cuts = (offsets * 4).tolist()
    parts: list[memoryview | None] = [whole[a:b] for a, b in pairwise(cuts)]
    nulls = batch.frame[column].is_null()
    for at in nulls.arg_true().to_list() if nulls.any() else ():
        parts[at] = None
    return parts


def _json(value: Any) -> bytes:
    import orjson

    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if text.isascii():
        return text
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()


def name_lines(frame: pl.DataFrame) -> list[bytes]:
    """Return the lines over which `names_sha256` is made, in the rows' order.

    Raises:
        TypeError: a time is null.
    """
    import polars as pl

    at = NAME_COLUMNS.index("created_at")
    chosen = frame.select(NAME_COLUMNS).with_columns(pl.col("created_at").dt.timestamp("us"))
    if chosen.to_series(at).null_count():
        raise TypeError("a row without a time has no line")
    return [_json(row) for row in chosen.iter_rows()]


def names_digest(lines: list[bytes]) -> str:
    """Return `names_sha256` (hex) of the rows whose lines these are."""
    return hashlib.sha256(b"\n".join(sorted(lines))).hexdigest()
