"""Certificates of what was made from certified sets: exports and derived sets, each naming its source.

Place in the flow: after certificate and accounting, under deriving and exporting. Imports them, held and
segments of `contracts`.

    sources = [open_certified(path).certificate for path in paths]     # refuses what is not certified
    with folder_held(out):                                             # one writer at a time
        ...                                                            # write the files; `summary.add(table)`
        files = [DerivedFile(path, rows) for ...]
        derived_certificate(out, sources, files, [Operation("export", {"to": "specforge"})], summary)

The certificate is written last: until then the folder holds nothing certified.
"""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from contracts.accounting import Summary
from contracts.certificate import (
    FILE_NAME,
    Certificate,
    CertifiedShard,
    faults,
    read_certificate,
    statement,
)
from contracts.errors import ShardgateError
from contracts.segments import FileDigest, Segment, digest_shard, file_sha256
from contracts.shard import replace_file


class DeriveError(ShardgateError):
    """A set can't be derived as asked."""


@dataclass(frozen=True, slots=True)
class DerivedFile:
    """A file that was written into the folder, and how many of the sources' rows it carries."""

    path: Path
    rows: int


@dataclass(frozen=True, slots=True)
class Operation:
    """What was done with the rows: a name, and JSON values that let it be done again (seed, expression)."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


def derived_certificate(
    folder: Path | str,
    sources: Sequence[Certificate],
    files: Sequence[DerivedFile],
    operations: Sequence[Operation],
    summary: Summary,
    *,
    holds: Literal["shards", "export"] = "export",
    checked_by: str | None = None,
) -> Certificate:
    """Write the certificate of `files`, made from `sources`; returns it as read back.

    Args:
        folder: where the certificate goes; the files lie in it or below it.
        sources: the certificates of the sets that the rows came from, all under one contract.
        files: every file of the set, in its order; each is digested here.
        operations: what was done, in order.
        summary: of the rows that are in the files, each as it was in its source.
        holds: `shards` (parquet files of the shard schema, which `open_certified` opens) or `export`.

    Raises:
        DeriveError: no source or no row, sources under different contracts, a file outside the folder,
            counts that contradict each other, or another certificate in the folder.
    """
    folder = Path(folder)
    contract = one_contract(sources)
    target = folder / FILE_NAME
    if target.exists():
        raise DeriveError(
            "the folder holds another certificate",
            where=str(target),
            remedy="write into a new folder, or take the old certificate away first",
        )
    kept, taken = summary.rows.rows, sum(row_count(source) for source in sources)
    stated = sum(file.rows for file in files)
    if not files or kept == 0:
        raise DeriveError(
            "no row is left", where=str(folder), remedy="a certificate needs rows; ask for less"
        )
    if kept != stated or kept > taken:
        raise DeriveError(
            "the rows don't add up",
            where=str(folder),
            why=f"{taken} rows in the sources, {kept} counted, {stated} stated of the files",
        )
    shards = [CertifiedShard(_name(folder, f.path), f.rows, _digest(f, holds)) for f in files]
    done = ", ".join(operation.name for operation in operations)
    predicate: dict[str, Any] = {
        "version": package_version(),
        "statement": f"derived ({done}); of its sources' rows: {sources[0].predicate['statement']}",
        "holds": holds,
        "contract": dict(contract),
        "counts": {"rows": kept, "certified": kept, "quarantined": 0},
        "sources": [],
        "quarantine": [],
        "bystanders": [],
        **summary.predicate(),
        "rates": {},
        "warnings": {},
        "waivers": _waivers(sources),
        "derivation": {
            "operations": [{"name": o.name, "parameters": dict(o.parameters)} for o in operations],
            "sources": [source_entry(folder, source) for source in sources],
            "rows": {"sources": taken, "kept": kept, "leftOut": taken - kept},
            "rowsDigest": summary.rows.hex,
        },
        "checkedAt": datetime.now(UTC).isoformat(timespec="seconds"),
        "checkedBy": checked_by or user_name(),
    }
    whole = statement(shards, predicate)
    if told := faults(whole):
        raise AssertionError(f"the certificate breaks its own schema: {told[0]}")
    text = json.dumps(whole, indent=2, sort_keys=True).encode() + b"\n"
    replace_file(target, lambda handle: handle.write(text))
    return read_certificate(target)


def one_contract(sources: Sequence[Certificate]) -> Mapping[str, Any]:
    """Return the contract that all sources were certified under.

    Raises:
        DeriveError: there is no source, or they were certified under different contracts.
    """
    if not sources:
        raise DeriveError("there is no source", remedy="give at least one certified set")
    first = sources[0].predicate["contract"]
    for other in sources[1:]:
        found = other.predicate["contract"]
        differing = [key for key in first if first[key] != found[key]]
        if differing:
            raise DeriveError(
                "the sources were certified under different contracts",
                where=str(other.path),
                why=f"`{differing[0]}` is {found[differing[0]]}, not {first[differing[0]]}",
                remedy="audit and certify them again under one contract (same profile, strength, thresholds)",
            )
    return first  # type: ignore[no-any-return]


def row_count(source: Certificate) -> int:
    """Return how many rows a certificate covers."""
    return sum(shard.rows for shard in source.shards)


def source_entry(folder: Path, source: Certificate) -> dict[str, Any]:
    """Return how a derived set names a source: path relative to itself, its certificate's SHA-256, rows."""
    name = Path(os.path.relpath(source.path.resolve(), folder.resolve())).as_posix()
    return {"name": name, "sha256": source.sha256, "rows": row_count(source)}


def _name(folder: Path, path: Path) -> str:
    root = folder.resolve()
    if not path.resolve().is_relative_to(root):
        raise DeriveError("a file lies outside the folder that is certified", where=str(path))
    return path.resolve().relative_to(root).as_posix()


def _digest(file: DerivedFile, holds: str) -> FileDigest:
    if holds == "shards":
        return digest_shard(file.path)
    size, sha256 = file.path.stat().st_size, file_sha256(file.path)
    return FileDigest(size, sha256, (Segment(0, size, sha256, file.rows),))


def _waivers(sources: Sequence[Certificate]) -> list[dict[str, Any]]:
    """Return the sources' waivers, equal ones added up: what was waived there is waived here."""
    found: dict[tuple[str, str], int] = {}
    for source in sources:
        for waiver in source.predicate["waivers"]:
            key = (waiver["rule"], waiver["reason"])
            found[key] = found.get(key, 0) + waiver["findings"]
    return [{"rule": r, "reason": why, "findings": n} for (r, why), n in sorted(found.items())]


def user_name() -> str:
    """Return the user's name, `unknown` where the machine knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def package_version() -> str:
    """Return the installed version of shardgate."""
    try:
        return version("shardgate")
    except PackageNotFoundError:
        return "unknown"
