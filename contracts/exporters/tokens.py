"""Rows as ids and mask: SpecForge's `prompts_path`, speculators, TorchSpec's packed mask.

Place in the flow: an exporter. Imports the standard library and `contracts.shard`'s row type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.shard import Row

Spans = Sequence[Mapping[str, int]]


def input_ids(row: Row) -> list[int]:
    """Return prompt and response, one after the other."""
    return [*row["prompt_token_ids"], *row["response_token_ids"]]


def spans(row: Row) -> list[tuple[int, int]]:
    """Return (start, length) of each run with loss; without a stored mask, the response's."""
    if row["loss_mask"] is None:
        return [(len(row["prompt_token_ids"]), len(row["response_token_ids"]))]
    return [(span["start"], span["length"]) for span in row["loss_mask"]]


def loss_mask(row: Row) -> list[int]:
    """Return one 0 or 1 for each of `input_ids`, not shifted."""
    mask = [0] * (len(row["prompt_token_ids"]) + len(row["response_token_ids"]))
    for start, length in spans(row):
        mask[start : start + length] = [1] * length
    return mask


def packed_mask(row: Row) -> str:
    """Return the mask as run lengths, the first without loss: `"{prompt},{response}"` for the usual one."""
    runs: list[int] = []
    at = 0
    for start, length in spans(row):
        if runs and start == at:
            runs[-1] += length  # two spans that touch are one run
        else:
            runs += [start - at, length]
        at = start + length
    rest = len(row["prompt_token_ids"]) + len(row["response_token_ids"]) - at
    return ",".join(map(str, [*runs, rest] if rest else runs))


def unpacked_mask(packed: str) -> list[int]:
    """Return the mask that run lengths stand for."""
    out: list[int] = []
    for index, length in enumerate(map(int, packed.split(","))):
        out += [index % 2] * length
    return out


def specforge_ids(row: Row) -> dict[str, Any]:
    """Return a record of SpecForge's `prompts_path`."""
    return {"input_ids": input_ids(row), "loss_mask": loss_mask(row)}


def speculators(row: Row) -> dict[str, Any]:
    """Return a record as speculators' regeneration writes it, its review-only text left out."""
    usage = {"prompt_tokens": row["prompt_tokens"], "completion_tokens": row["completion_tokens"]}
    sampling = json.loads(row["sampling_params"])
    return {
        "id": row["sample_id"],
        "primary_id": row["conversation_id"],
        "input_ids": input_ids(row),
        "loss_mask": loss_mask(row),
        "metadata": {
            "finish_reason": row["finish_reason"],
            "usage": usage,
            "target_model": row["target_model"],
            "sampling": json.dumps(sampling, ensure_ascii=False),
            "tools": row["tools"],
        },
    }


def seq_record(row: Row) -> dict[str, Any]:
    """Return a row of speculators' Arrow folder."""
    ids = input_ids(row)
    return {"input_ids": ids, "loss_mask": loss_mask(row), "seq_len": len(ids)}
