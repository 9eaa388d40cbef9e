"""One file of a repair: what the audit and a quarantine's own list say of its rows, and the rows themselves.

Place in the flow: under repair. Imports formats, records, rules and shard of `contracts`, the audit in a
function; pyarrow in functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from contracts.formats import Format, format_named
from contracts.records import Finding, Profile, Severity
from contracts.rules import RULES
from contracts.shard import METADATA_PREFIX, Row, arrow_schema, table_of
from contracts.tokens import Codec

if TYPE_CHECKING:
    import pyarrow as pa

Strength = Literal["token", "text"]
BATCH = 256


@dataclass(slots=True)
class Input:
    """One input: its rows' own broken rules, and those of the set or the file that sent a row away."""

    path: Path
    format: Format
    quarantine: bool
    constants: dict[str, str]
    errors: dict[int, list[str]] = field(default_factory=dict)
    outside: dict[int, list[str]] = field(default_factory=dict)


def looked_at(path: Path, codec: Codec | None, profile: Profile, strength: Strength) -> Input | str:
    """Audit one file; return its rows' errors, or why it can't be repaired as a file."""
    from contracts.run import audit

    found = audit([path], codec=codec, profile=profile, strength=strength)
    if found.shards[0].refused:
        told = next(f for f in found.findings if f.row is None and f.severity is Severity.ERROR)
        return f"{told.rule}: {told.message}"
    import pyarrow.parquet as pq

    metadata = pq.read_schema(path).metadata or {}
    fmt = format_named(metadata.get(f"{METADATA_PREFIX}format".encode(), b"").decode("utf-8", "replace"))
    if fmt is None:
        return "format-unknown: the file's format is not one that shardgate knows"
    listing = path.with_name(f"{path.stem}.findings.jsonl")
    key = f"{METADATA_PREFIX}constants"
    constants = {key: metadata.get(key.encode(), b"{}").decode("utf-8", "replace")}
    file = Input(path, fmt, listing.is_file(), constants)
    for finding in row_errors(found.findings):
        where = file.outside if RULES[finding.rule].scope == "set" else file.errors
        where.setdefault(finding.row or 0, []).append(finding.rule)
    if file.quarantine:
        _read_listing(listing, file)
    return file


def row_errors(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings that are errors of one row."""
    return (f for f in findings if f.row is not None and f.severity is Severity.ERROR)


def _read_listing(listing: Path, file: Input) -> None:
    """Add what the quarantine's own list says of rows by rules over the set or the file."""
    for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            told = json.loads(line)
            rule, row, severity = told["rule"], told["quarantine_row"], told["severity"]
        except (ValueError, KeyError, TypeError):
            continue
        known = RULES.get(rule)
        if severity == "error" and isinstance(row, int) and (known is None or known.scope != "row"):
            file.outside.setdefault(row, []).append(str(rule))


def rows_of(path: Path, wanted: set[int] | None) -> Iterator[tuple[int, Row]]:
    """Yield (number, row) of a shard, all or the wanted ones, a batch at a time."""
    import pyarrow.parquet as pq

    number = 0
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(batch_size=BATCH):
            if wanted is None or any(number + offset in wanted for offset in range(batch.num_rows)):
                for offset, row in enumerate(batch.to_pylist()):
                    if wanted is None or number + offset in wanted:
                        yield number + offset, row
            number += batch.num_rows


def tables_of(path: Path, strength: Strength) -> Iterator[tuple[int, pa.Table]]:
    """Yield (number of the first row, rows) of a shard, a batch at a time, in the shard's schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number, schema = 0, arrow_schema(strength)
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(batch_size=BATCH):
            table = pa.Table.from_batches([batch])
            yield number, table if table.schema.equals(schema) else table_of(table.to_pylist(), strength)
            number += batch.num_rows
