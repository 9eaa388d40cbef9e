"""Finished captures as one payload of the journal, and back: Arrow for the rows, JSON for the failures.

Place in the flow: between the store and the journal. Imports `contracts`; pyarrow inside functions.

A payload is the length of a JSON head (32 bits, little-endian), the head `{"failed": [...]}`, and an Arrow
IPC stream of the rows in the shard's schema, empty where the group has none. A row that does not fit the
schema is found here, before it is journalled, so that no shard fails on it later.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from contracts.shard import Row, ShardError, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Failure:
    """One generation that was asked for and can't be had: which, why, after how many tries.

    `item` names the prompt's content and the sample, as `sample_id` does without its turn; `reason` is one
    word for counting, `detail` what the server or the reader said.
    """

    item: str
    turn_index: int
    reason: str
    detail: str
    prompt: str
    source_row_index: int
    sample_index: int
    attempts: int
    at: str

    @property
    def sample_id(self) -> str:
        """Return the id that the row would have had."""
        return sample_id(self.item, self.turn_index)


@dataclass(frozen=True, slots=True)
class Group:
    """What one item of work came to: all of its rows and failures, committed together or not at all."""

    rows: tuple[Row, ...] = ()
    failed: tuple[Failure, ...] = field(default=())


def sample_id(item: str, turn: int) -> str:
    """Return a row's id: the item's, then the turn."""
    return f"{item}-{turn}"


def item_of(sample: str) -> str:
    """Return the item that a row's id belongs to."""
    return sample.rpartition("-")[0]


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Return rows as a table in the shard's schema.

    Raises:
        ShardError: a row does not fit it.
    """
    import pyarrow as pa

    schema = arrow_schema()
    try:
        table = pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
        raise ShardError(what="a value does not fit the shard's schema", why=str(error)) from error
    for column in schema:
        if not column.nullable and table[column.name].null_count:
            raise ShardError(what=f"a row lacks `{column.name}`", why="the column may not be null")
    return table


def encode(groups: Iterable[Group]) -> tuple[bytes, pa.Table | None, list[Failure]]:
    """Return groups as one payload, and what `decode` would make of it.

    Raises:
        ShardError: a row does not fit the schema.
    """
    import pyarrow as pa

    groups = tuple(groups)
    rows = [row for group in groups for row in group.rows]
    failed = [one for group in groups for one in group.failed]
    head = json.dumps({"failed": [asdict(one) for one in failed]}).encode()
    body, table = b"", None
    if rows:
        sink = pa.BufferOutputStream()
        table = table_of(rows)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        body = sink.getvalue().to_pybytes()
    return _LENGTH.pack(len(head)) + head + body, table, failed


def decode(payload: bytes) -> tuple[pa.Table | None, list[Failure]]:
    """Return a payload's rows (None: it has none) and failures."""
    import pyarrow as pa

    (length,) = _LENGTH.unpack_from(payload)
    head = json.loads(payload[_LENGTH.size : _LENGTH.size + length])
    body = payload[_LENGTH.size + length :]
    table = None
    if body:
        with pa.ipc.open_stream(pa.BufferReader(body)) as reader:
            table = reader.read_all()
    return table, [failure_of(one) for one in head["failed"]]


def failure_of(told: dict[str, Any]) -> Failure:
    """Return a failure from its JSON object; keys that it does not know are left out."""
    return Failure(**{name: told[name] for name in Failure.__dataclass_fields__})
