"""Which rows are asked about: the same for the same content and seed, spread over all shards.

Place in the flow: before the asking. Imports `contracts`; pyarrow inside functions.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.run import expand
from contracts.segments import file_sha256

COLUMNS = (
    "sample_id", "prompt_token_ids", "response_token_ids", "output_logprobs", "sampling_params", "constraint",
    "transport", "messages", "tools", "template_kwargs", "finish_reason",
)  # fmt: skip

PROVENANCE = (
    "target_model", "target_revision", "weight_version", "quantization", "kv_cache_dtype", "lora",
    "speculative", "tokenizer_sha256", "chat_template_sha256", "engine", "engine_version",
)  # fmt: skip
"""The provenance columns that are held against the server."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row lies: the shard's place in the list, the row's place in the shard, from 0."""

    shard: int
    row: int


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard as it was when its rows were read."""

    path: Path
    sha256: str
    rows: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The rows to ask about, in the order of the shards, and what there is of shards and provenance."""

    shards: tuple[ShardFile, ...]
    places: tuple[Place, ...]
    provenance: Mapping[str, Mapping[str | None, int]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Return the number of rows in all shards."""
        return sum(shard.rows for shard in self.shards)


def choose(paths: Iterable[Path], count: int | None, seed: int) -> Sample:
    """Choose `count` rows (None: all) from shards, in proportion to their rows and at least one of each.

    Which rows of a shard they are depends on the rows' content and the seed alone: whoever reorders or copies
    rows can't choose what is asked about, and who repeats the run asks about the same ones.

    Raises:
        ShardgateError: there is no shard, or one can't be read or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    shards: list[ShardFile] = []
    keys: list[list[bytes]] = []
    provenance: dict[str, Counter[str | None]] = {name: Counter() for name in PROVENANCE}
    salt = seed.to_bytes(8, "little", signed=True)
    for path in expand(paths):
        try:
            with pq.ParquetFile(path) as file:
                names = file.schema_arrow.names
                lacking = [name for name in (*COLUMNS, "content_sha256") if name not in names]
                if lacking:
                    raise ShardgateError(
                        f"the file lacks the column `{lacking[0]}`",
                        where=str(path),
                        why="it is no shard of shardgate's",
                        remedy="audit it first; `shardgate import` makes shards of other data",
                    )
                asked = ["content_sha256", *(name for name in PROVENANCE if name in names)]
                table = file.read(columns=asked)
        except (OSError, pa.ArrowException) as error:
            raise ShardgateError(
                "the shard can't be read", where=str(path), why=str(error), remedy="copy or capture it again"
            ) from error
        for name in asked[1:]:
            column = table[name]
            values = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
            for entry in values.value_counts().to_pylist():
                provenance[name][entry["values"]] += entry["counts"]
        contents = table["content_sha256"].to_pylist()
        keys.append([hashlib.sha256(salt + (one or b"")).digest() for one in contents])
        shards.append(ShardFile(path, file_sha256(path), len(contents)))
    if not sum(shard.rows for shard in shards):
        raise ShardgateError("there is no row to ask about", where=", ".join(str(s.path) for s in shards))
    shares = portions([shard.rows for shard in shards], count)
    places = [
        Place(number, row)
        for number, (own, share) in enumerate(zip(keys, shares, strict=True))
        for row in sorted(sorted(range(len(own)), key=lambda at, own=own: (own[at], at))[:share])  # type: ignore[misc]
    ]
    return Sample(tuple(shards), tuple(places), provenance)


def portions(sizes: Sequence[int], count: int | None) -> list[int]:
    """Return how many rows to take of each shard: in proportion, all used, at least one where there are some.

    The sum is `count`; or the number of shards with rows where that is more, or all rows where that is less.
    """
    total = sum(sizes)
    if count is None or count >= total:
        return list(sizes)
    shares = [min(size, max(1, count * size // total)) if size else 0 for size in sizes]
    # What rounding left over, or what the single rows of small shards took too much of, goes by largest size.
    order = sorted(range(len(sizes)), key=lambda at: (-sizes[at], at))
    left = count - sum(shares)
    while left > 0:
        for at in order:
            if left and shares[at] < sizes[at]:
                shares[at] += 1
                left -= 1
    while left < 0 and any(share > 1 for share in shares):
        for at in order:
            if left and shares[at] > 1:
                shares[at] -= 1
                left += 1
    return shares


def read_rows(shards: Sequence[ShardFile], places: Sequence[Place]) -> list[dict[str, Any]]:
    """Return the chosen rows' `COLUMNS`, in the order of `places`."""
    import pyarrow.parquet as pq

    found: dict[Place, dict[str, Any]] = {}
    for number, shard in enumerate(shards):
        wanted = [place.row for place in places if place.shard == number]
        if not wanted:
            continue
        with pq.ParquetFile(shard.path) as file:
            first = 0
            for index in range(file.num_row_groups):
                size = file.metadata.row_group(index).num_rows
                mine = [row for row in wanted if first <= row < first + size]
                if mine:
                    table = file.read_row_group(index, columns=list(COLUMNS))
                    for row, values in zip(
                        mine, table.take([r - first for r in mine]).to_pylist(), strict=True
                    ):
                        found[Place(number, row)] = values
                first += size
    return [found[place] for place in places]


def neighbours(shards: Sequence[ShardFile], place: Place) -> list[Place]:
    """Return the places beside a row in its shard."""
    size = shards[place.shard].rows
    return [Place(place.shard, row) for row in (place.row - 1, place.row + 1) if 0 <= row < size]


def params_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's sampling parameters; what is no JSON object is none."""
    try:
        value = json.loads(row["sampling_params"] or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
