"""What an import is given and what it comes to; and the one error of a record that can't become a row.

Place in the flow: under the importers. Imports formats, errors, records, shard and tokens of `contracts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from contracts.errors import ShardgateError
from contracts.formats import Format
from contracts.records import Json
from contracts.shard import UNKNOWN
from contracts.tokens import Codec


class ImportFault(ShardgateError):
    """The import was asked for something that can't be done."""


class Unfit(ValueError):
    """One record can't become a row; the text says why. The import goes on."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What is known of the data besides what its files say.

    `provenance` holds values of the shard's provenance columns; what is not there is `unknown`, and rules
    tell. `sampling` are the request's own parameters. `every_turn` makes a row of each assistant turn; by
    default a conversation is one row, its last turn the response. `thinking` is None for the format's own
    default.
    """

    format: Format
    codec: Codec | None = None
    dataset: str | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, Json] = field(default_factory=dict)
    thinking: bool | None = None
    every_turn: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands: its file, its number (a line from 1; a parquet row from 1), the file's date."""

    file: Path
    number: int
    written_at: datetime
    dataset: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that became no row: `refused` by the import, `failed` or `skipped` by who made the file."""

    file: str
    line: int
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What an import came to. records = imported + refused + failed + skipped; `rows` can be more than
    `imported` where each turn is a row. `unread` counts by name what of imported records has no place in a
    row; `messages.` begins the name of a message's key."""

    folder: str
    format: str
    strength: str
    records: int
    imported: int
    rows: int
    refused: int
    failed: int
    skipped: int
    shards: tuple[str, ...]
    unknown: tuple[str, ...]
    unread: Mapping[str, int] = field(default_factory=dict)
    first_refused: tuple[Refused, ...] = ()


def known(options: ImportOptions, column: str, nothing: str = UNKNOWN) -> str:
    """Return a provenance value as it was given, or the word for what nobody told."""
    return options.provenance.get(column) or nothing
