"""Certifying: good rows kept or rewritten, bad rows quarantined with their findings, the certificate last.

Place in the flow: the audit's writing half. Imports accounting, certificate, derive, held, layout, scan,
segments and shard of `contracts`; pyarrow while it runs.

    DIR/certificate.json         written last: until then nothing is certified
    DIR/certified/NAME.parquet   the good rows of a shard that also had bad ones, in order
    DIR/quarantine/NAME.parquet  the bad rows as they were, and NAME.findings.jsonl with what sent them there

A shard without bad rows is certified where it lies. Of any other the rows are read back from what was
written, and their digests must add up to those of the rows that went in (`contracts.accounting`). Every file
is written beside and renamed, so that an interruption leaves the old state or the new one; what such a
run left is replaced by the next.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.accounting import RowSet, file_rows, row_set
from contracts.certificate import FILE_NAME, CertifiedShard, faults, read_certificate, statement
from contracts.derive import package_version, user_name
from contracts.errors import ShardgateError
from contracts.held import folder_held
from contracts.layout import (
    CERTIFIED,
    QUARANTINE,
    SHARD_SUFFIXES,
    clear_temporary,
    parquet_beside,
    quarantined_files,
    relative,
    stored_outside,
)
from contracts.records import Finding, Severity
from contracts.scan import Scan
from contracts.segments import VerifiedFile, digest_shard, file_sha256
from contracts.shard import METADATA_PREFIX, NAMES_KEY, replace_file

if TYPE_CHECKING:
    import pyarrow as pa

    from contracts.replayed import Replay
    from contracts.run import AuditResult

SOURCE_KEY = f"{METADATA_PREFIX}rows_of"
"""Metadata key of a file that certifying wrote: the SHA-256 of the shard that its rows come from."""

_CLAIM = {
    "token": "consistent with what the engine reported: each row was judged again from its ids and fields",
    "text": "text only: no token ids were there, so nothing is proven about tokens",
}
_SCRIPTED = "; profile test: rows may be scripted, they are no samples of the target model"


class CertifyError(ShardgateError):
    """The set can't be certified into this folder."""


def certify(
    folder: Path,
    result: AuditResult,
    scans: Sequence[Scan],
    findings: Sequence[Finding],
    *,
    blocked: bool,
    checked_by: str | None,
    replay: Replay | None = None,
) -> AuditResult:
    """Write what the audit decided into `folder`; returns the result with the certificate's path.

    Raises:
        CertifyError: the folder holds another certificate, or a parquet file that was not audited.
        FolderHeld: another process is certifying into it.
    """
    if blocked and not folder.exists():
        # Nothing is written, so no folder is made either, not even to hold it.
        return replace(result, note=_why_not(result, blocked))
    with folder_held(folder):
        return _certify(folder, result, scans, findings, blocked, checked_by, replay)


def _certify(
    folder: Path,
    result: AuditResult,
    scans: Sequence[Scan],
    findings: Sequence[Finding],
    blocked: bool,
    checked_by: str | None,
    replay: Replay | None,
) -> AuditResult:
    def predicate_of(quarantine: list[dict[str, Any]]) -> dict[str, Any]:
        made = _predicate(folder, result, scans, quarantine)
        return made if replay is None else replay.entered(made)

    names, reason = _names(scans), _why_not(result, blocked)
    existing = folder / FILE_NAME
    if reason and existing.exists():
        raise _other_certificate(existing, "these shards can't be certified as they are now")
    if existing.exists():
        return _same_or_refuse(folder, result, predicate_of([]))
    if not reason:
        _refuse_strangers(folder, scans)
        predicate_of([])  # refuses a replay of other shards before anything is written
    _clear_leftovers(folder)
    written = [
        _write_shard(folder, scan, names[scan.name], findings, nothing=bool(reason), blocked=blocked)
        for scan in scans
    ]
    if reason:
        return replace(result, note=reason)
    shards = [shard for part in written for shard in part.shards]
    predicate = predicate_of([entry for part in written for entry in part.quarantine])
    for source, part in zip(predicate["sources"], written, strict=True):
        source["accounted"] = part.accounted
    predicate["checkedAt"] = datetime.now(UTC).isoformat(timespec="seconds")
    predicate["checkedBy"] = checked_by or user_name()
    whole = statement(shards, predicate)
    if told := faults(whole):
        raise AssertionError(f"the certificate breaks its own schema: {told[0]}")
    text = json.dumps(whole, indent=2, sort_keys=True).encode() + b"\n"
    replace_file(existing, lambda handle: handle.write(text))
    return replace(result, certificate=str(existing))


def _why_not(result: AuditResult, blocked: bool) -> str:
    if blocked:
        first = next(f for f in result.findings if f.severity is Severity.ERROR and f.shard == "")
        return f"nothing was certified: {first.message}; {first.remedy}"
    if result.certified == 0:
        return "nothing was certified: no row keeps all rules; the findings say why, row by row"
    return ""


def _names(scans: Sequence[Scan]) -> dict[str, str]:
    """Give each shard a file stem of its own, in order."""
    taken: set[str] = set()
    out = {}
    for scan in scans:
        stem = name = scan.path.name.removesuffix(".parquet") or "shard"
        number = 2
        while name in taken:
            name, number = f"{stem}-{number}", number + 1
        taken.add(name)
        out[scan.name] = name
    return out


def _refuse_strangers(folder: Path, scans: Sequence[Scan]) -> None:
    audited = {scan.path.resolve() for scan in scans}
    root = folder.resolve()
    inside = {path.parent for path in audited if path.is_relative_to(root)}
    for path in sorted(parquet_beside(folder, inside) - audited):
        if path.parent == root / CERTIFIED and path.suffix == ".parquet":
            continue  # what an earlier certifying wrote; `_clear_leftovers` looks at it
        if stored_outside(path, root) in audited:
            continue
        raise CertifyError(
            "a shard in the folder was not audited",
            where=str(path),
            why="the certificate would not cover it, and the loader refuses sets with uncertified shards",
            remedy="audit it together with the others, or move it elsewhere",
        )


def _clear_leftovers(folder: Path) -> None:
    """Take away what an interrupted run wrote; files that certifying did not write are refused."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    clear_temporary(folder, CERTIFIED, QUARANTINE)
    for path in sorted((folder / CERTIFIED).glob("*.parquet")):
        try:
            ours = SOURCE_KEY.encode() in (pq.read_schema(path).metadata or {})
        except (pa.ArrowException, OSError):
            ours = False
        if not ours:
            raise CertifyError(
                "a file in the folder of certified rows is not one that certifying wrote",
                where=str(path),
                remedy="move it elsewhere",
            )
        path.unlink()


def _other_certificate(path: Path, why: str) -> CertifyError:
    return CertifyError(
        "the folder holds another certificate",
        where=str(path),
        why=why,
        remedy="certify into a new folder, or take the old certificate away first",
    )


def _same_or_refuse(folder: Path, result: AuditResult, wanted: dict[str, Any]) -> AuditResult:
    """Accept a certificate of the same sources under the same contract; refuse any other."""
    from contracts.loader import verify

    existing = read_certificate(folder)
    old = existing.predicate
    keys = (
        "contract", "counts", "sources", "verdicts", "replay", "claims", "losses", "waivers", "provenance",
    )  # fmt: skip
    for key in keys:
        before = old.get(key)
        if key == "sources":
            before = [{name: entry[name] for name in entry if name != "accounted"} for entry in old[key]]
        if before != wanted.get(key):
            raise _other_certificate(existing.path, f"its `{key}` is not that of the shards given now")
    checked = verify(folder)
    if not checked.ok:
        raise _other_certificate(existing.path, f"it no longer holds: {checked.problems[0]['message']}")
    return replace(result, certificate=str(existing.path), note="certified before, unchanged")


@dataclass(slots=True)
class _Written:
    """What became of one shard: the certificate's entries for its certified and quarantined rows."""

    shards: list[CertifiedShard] = field(default_factory=list)
    quarantine: list[dict[str, Any]] = field(default_factory=list)
    accounted: dict[str, Any] = field(default_factory=lambda: {"by": "file"})


def _write_shard(
    folder: Path, scan: Scan, name: str, findings: Sequence[Finding], *, nothing: bool, blocked: bool
) -> _Written:
    """Write one shard's good and bad rows. `nothing` certifies none; `blocked` quarantines none either."""
    out = _Written()
    if blocked:
        return out
    mine = [found for found in findings if found.shard == scan.name]
    if not scan.bad and not scan.refused and scan.digest is not None:
        kept = CertifiedShard(relative(folder, scan.path), scan.rows, scan.digest)
        out.shards.extend([] if nothing else [kept])
        return out
    bad_file = folder / QUARANTINE / f"{name}.parquet"
    told_file = folder / QUARANTINE / f"{name}.findings.jsonl"
    _write_findings(told_file, scan, mine)
    whole = scan.refused or scan.digest is None
    if whole and not scan.path.is_file():
        return out
    if whole:
        _copy(scan.path, bad_file)
    else:
        _write_bad_rows(folder, scan, name, bad_file, out)
    entry = {"name": relative(folder, bad_file), "sha256": file_sha256(bad_file)}
    told = {"name": relative(folder, told_file), "sha256": file_sha256(told_file)}
    out.quarantine.append({**entry, "rows": scan.rows if whole else len(scan.bad), "findings": told})
    return out


def _write_bad_rows(folder: Path, scan: Scan, name: str, bad_file: Path, out: _Written) -> None:
    """Part a shard's rows into good and bad ones; both are read back and must be what went in."""
    certified, good_name = RowSet(), None
    if len(scan.bad) < scan.rows:
        good_file = folder / CERTIFIED / f"{name}.parquet"
        _write_rows(good_file, scan, lambda row: row not in scan.bad)
        digest = digest_shard(good_file)
        certified, good_name = file_rows(good_file, digest), relative(folder, good_file)
        out.shards.append(CertifiedShard(good_name, digest.rows, digest))
    went_in = _write_rows(bad_file, scan, lambda row: row in scan.bad)
    quarantined = file_rows(bad_file)
    if certified + quarantined != went_in or quarantined.rows != len(scan.bad):
        raise CertifyError(
            "the rows that were written are not the ones that were read",
            where=str(scan.path),
            why=f"{went_in.rows} rows in, {certified.rows} certified and {quarantined.rows} quarantined out, "
            "or a value was changed on the way",
            remedy="check the disk, and tell the developers of shardgate; nothing was certified",
        )
    out.accounted = {
        "by": "rows",
        "input": went_in.hex,
        "certified": certified.hex,
        "quarantined": quarantined.hex,
        "shard": good_name,
        "quarantine": relative(folder, bad_file),
    }


def _write_rows(path: Path, scan: Scan, keep: Callable[[int], bool]) -> RowSet:
    """Write the rows to keep, row group by row group; returns what all rows of the shard were.

    They are read from the very bytes that were audited.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    digest, found = scan.digest, [RowSet()]
    assert digest is not None

    def write(target: Any) -> None:
        first = 0
        with (
            VerifiedFile(scan.path, digest.size, digest.segments) as source,
            pq.ParquetFile(source) as parquet,
        ):
            schema = _marked(parquet.schema_arrow, digest.sha256)
            with pq.ParquetWriter(target, schema, compression="zstd", compression_level=1) as writer:
                for index in range(parquet.num_row_groups):
                    table = parquet.read_row_group(index)
                    found[0] = found[0] + row_set(table)
                    mask = pa.array([keep(first + offset) for offset in range(table.num_rows)], pa.bool_())
                    chosen = table.filter(mask)
                    first += table.num_rows
                    if chosen.num_rows:
                        writer.write_table(chosen.replace_schema_metadata(schema.metadata))

    replace_file(path, write)
    return found[0]


def _marked(schema: pa.Schema, sha256: str) -> pa.Schema:
    metadata = {**(schema.metadata or {}), SOURCE_KEY.encode(): sha256.encode()}
    metadata.pop(NAMES_KEY.encode(), None)
    return schema.with_metadata(metadata)


def _write_findings(path: Path, scan: Scan, findings: Sequence[Finding]) -> None:
    """One JSON object per finding; `quarantine_row` is the row's place in the quarantined file."""
    places = {row: place for place, row in enumerate(sorted(scan.bad))}
    lines = []
    for found in findings:
        place = found.row if scan.refused else places.get(-1 if found.row is None else found.row)
        if place is None and found.row is not None:
            continue
        lines.append(json.dumps({**asdict(found), "quarantine_row": place}, ensure_ascii=False))
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
    replace_file(path, lambda handle: handle.write(text))


def _copy(source: Path, target: Path) -> None:
    def write(handle: Any) -> None:
        with source.open("rb") as original:
            shutil.copyfileobj(original, handle)

    replace_file(target, write)


def _predicate(
    folder: Path, result: AuditResult, scans: Sequence[Scan], quarantine: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return all of the predicate but the shards, the date, the person and the seal."""
    sources = [
        {
            "name": relative(folder, scan.path),
            "sha256": fate.sha256,
            "rows": fate.rows,
            "certified": fate.certified,
            "quarantined": fate.quarantined,
        }
        for scan, fate in zip(scans, result.shards, strict=True)
    ]
    root = folder.resolve()
    audited = {scan.path.resolve() for scan in scans}
    outside = [scan.path.resolve().parent for scan in scans if not scan.path.resolve().is_relative_to(root)]
    beside = (path for other in set(outside) for path in other.glob("*.parquet") if path not in audited)
    named = {entry["name"] for entry in quarantine}
    # What an earlier run, which certified nothing, put into quarantine may be the only copy: it stays.
    earlier = {
        relative(folder, path)
        for path in quarantined_files(folder)
        if path.suffix.lower() in SHARD_SUFFIXES and path.resolve() not in audited
    } - named
    warned = Counter(f.rule for f in result.findings if f.severity is Severity.WARNING)
    return {
        "version": package_version(),
        "statement": _CLAIM[result.strength] + (_SCRIPTED if result.profile == "test" else ""),
        "contract": {
            "name": result.contract,
            "strength": result.strength,
            "profile": str(result.profile),
            "fingerprint": result.fingerprint,
        },
        "counts": {"rows": result.rows, "certified": result.certified, "quarantined": result.quarantined},
        "sources": sources,
        "quarantine": quarantine,
        "bystanders": sorted({relative(folder, path) for path in beside} | earlier),
        "verdicts": dict(result.verdicts),
        "claims": {name: dict(counts) for name, counts in result.claims.items()},
        "losses": dict(result.losses),
        "rates": dict(result.rates),
        "warnings": dict(sorted(warned.items())),
        "waivers": [
            {"rule": rule, "reason": reason, "findings": result.waived.get(rule, 0)}
            for rule, reason in result.waivers.items()
        ],
        "provenance": {name: list(values) for name, values in result.provenance.items()},
    }
