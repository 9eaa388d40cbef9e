"""Checking a set against its certificate: every reason why it does not hold.

Place in the flow: under the loader and `shardgate verify`. Imports certificate, layout, segments and signing
of `contracts`; accounting and pyarrow when rows are asked for.

Always: the certificate in itself, its shards' bytes, nothing added beside them, the quarantine.
With a public key: the signature. With `sources`: the sets or files that the rows came from, where they lie.
With `rows`: the rows of the files again, against the digests that account for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contracts.certificate import (
    Certificate,
    CertificateError,
    CertifiedShard,
    QuarantineAltered,
    QuarantineMissing,
    RowsDiffer,
    ShardAltered,
    ShardMissing,
    ShardUncertified,
    SourceAltered,
    SourceMissing,
    read_certificate,
)
from contracts.layout import QUARANTINE, quarantine_strangers, strangers
from contracts.segments import AlteredBytes, VerifiedFile, file_sha256

_COPY = "copy it again from where it was certified, or audit it again"


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Whether a set is what its certificate says. `problems` holds `kind`, `shard`, `message`, `remedy`.

    `signed_by` is the id of the key that signed, None where no key was given to check with.
    """

    ok: bool
    certificate: str
    shards: int
    rows: int
    contract: str
    profile: str
    strength: str
    checked_at: str
    checked_by: str
    statement: str
    problems: tuple[dict[str, str], ...] = ()
    signed_by: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {**asdict(self), "problems": list(self.problems)}


def verify(
    path: Path | str,
    *,
    public_keys: Sequence[Path | str] = (),
    quarantine: bool = True,
    sources: bool = False,
    rows: bool = False,
) -> VerifyResult:
    """Check a set against its certificate; what does not hold is listed, all of it.

    Args:
        public_keys: PEM files; one of them must have signed the certificate.
        quarantine: False where only the certified files were copied along.
        sources: check the sources too, as far as they lead.
        rows: read all rows again and account for them by digest.

    Raises:
        CertificateMissing, CertificateAltered: there is nothing to check against.
        KeyUnusable: a key can't be read.
    """
    certificate = read_certificate(path)
    found = list(problems(certificate, public_keys=public_keys, quarantine=quarantine))
    if sources:
        found.extend(_source_problems(certificate, rows=rows))
    if rows and not found:  # of files that are not the certified ones there is nothing more to say
        found.extend(_row_problems(certificate))
    contract, predicate = certificate.predicate["contract"], certificate.predicate
    signed_by = None
    if public_keys and not found:
        from contracts.signing import check_signature

        signed_by = check_signature(certificate, public_keys)
    return VerifyResult(
        ok=not found,
        certificate=str(certificate.path),
        shards=len(certificate.shards),
        rows=sum(shard.rows for shard in certificate.shards),
        contract=contract["name"],
        profile=contract["profile"],
        strength=contract["strength"],
        checked_at=predicate["checkedAt"],
        checked_by=predicate["checkedBy"],
        statement=predicate["statement"],
        problems=tuple(
            {
                "kind": type(problem).__name__,
                "shard": problem.where,
                "message": f"{problem.what}: {problem.why}",
                "remedy": problem.remedy,
            }
            for problem in found
        ),
        signed_by=signed_by,
    )


def problems(
    certificate: Certificate,
    *,
    hashed: bool = True,
    public_keys: Sequence[Path | str] = (),
    quarantine: bool = False,
) -> Iterator[CertificateError]:
    """Yield what does not hold: signature, shards in their order, files added, quarantine
    if asked for.

    `hashed=False` looks at the shards' sizes only.
    """
    from contracts.signing import check_signature, stale_envelope

    try:
        if public_keys:
            check_signature(certificate, public_keys)
        elif (stale := stale_envelope(certificate)) is not None:
            yield stale
    except CertificateError as error:
        yield error
    # Hashing lets other threads run; each shard is read by one.
    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
    try:
        for problem in pool.map(lambda shard: _shard_problem(certificate, shard, hashed), certificate.shards):
            if problem is not None:
                yield problem
    finally:
        # Who asked for the first problem alone does not wait for the other shards' hashes.
        pool.shutdown(cancel_futures=True)
    for path in [*strangers(certificate), *(quarantine_strangers(certificate) if quarantine else ())]:
        yield ShardUncertified(
            "a file lies among the set's own without being in its certificate",
            where=str(path),
            why="it was added after the certificate was written, which does not name it",
            remedy="take it away, or audit the whole set again with `shardgate audit --certify NEW_DIR`",
        )
    if quarantine:
        for entry in certificate.predicate["quarantine"]:
            yield from _quarantine_problems(certificate, entry)


def _shard_problem(certificate: Certificate, shard: CertifiedShard, hashed: bool) -> CertificateError | None:
    path = certificate.path_of(shard)
    if not path.is_file():
        return ShardMissing(
            "a certified file is missing",
            where=str(path),
            why="the certificate names it, and there is no such file",
            remedy="copy it back from where it was certified, or audit what is left again",
        )
    try:
        size = path.stat().st_size
        why = None
        if size != shard.digest.size:
            why = f"it has {size} bytes, {shard.digest.size} were certified"
        elif hashed and file_sha256(path) != shard.digest.sha256:
            why = f"its SHA-256 is not the certified one{_where_altered(path, shard)}"
    except OSError as error:
        why = f"it can't be read: {error.strerror or error}"
    if why is None:
        return None
    return ShardAltered("a certified file was altered", where=str(path), why=why, remedy=_COPY)


def _where_altered(path: Path, shard: CertifiedShard) -> str:
    with VerifiedFile(path, shard.digest.size, shard.digest.segments) as file:
        first = 0
        for index, segment in enumerate(shard.digest.segments):
            file.seek(segment.offset)
            try:
                file.read(segment.length)
            except AlteredBytes:
                rows = f", rows {first} to {first + segment.rows - 1}" if segment.rows else ""
                end = segment.offset + segment.length
                return f"; altered in segment {index} (bytes {segment.offset} to {end}{rows})"
            first += segment.rows
    return ""


def _quarantine_problems(certificate: Certificate, entry: dict[str, Any]) -> Iterator[CertificateError]:
    for part in (entry, *([entry["findings"]] if "findings" in entry else [])):
        path = certificate.folder / part["name"]
        if not path.is_file():
            yield QuarantineMissing(
                "quarantined rows are gone" if part is entry else "the findings of quarantined rows are gone",
                where=str(path),
                why="the certificate accounts for every row, certified or quarantined",
                remedy=f"copy `{QUARANTINE}/` back, or verify with --no-quarantine",
            )
        elif file_sha256(path) != part["sha256"]:
            yield QuarantineAltered(
                "a file of the quarantine was altered",
                where=str(path),
                why="its SHA-256 is not the one in the certificate",
                remedy="copy it again from where the set was certified",
            )


def _source_problems(certificate: Certificate, *, rows: bool) -> Iterator[CertificateError]:
    """Check what the rows came from: audited files, or the sets that this one was derived from."""
    derivation = certificate.predicate.get("derivation")
    entries = certificate.predicate["sources"] if derivation is None else derivation["sources"]
    for entry in entries:
        path = certificate.folder / entry["name"]
        if entry["sha256"] is None:
            continue  # there was no such file when it was audited
        if not path.is_file():
            yield SourceMissing(
                "a source is not where it was",
                where=str(path),
                why="the certificate names it by its path from here",
                remedy="put it back there, or verify without --sources",
            )
        elif file_sha256(path) != entry["sha256"]:
            yield SourceAltered(
                "a source is no longer the one that the rows came from",
                where=str(path),
                why="its SHA-256 is not the one in the certificate",
                remedy="put the old one back, or derive the set again from the new one",
            )
        elif derivation is not None:
            source = read_certificate(path)
            yield from problems(source, quarantine=True)
            yield from _source_problems(source, rows=rows)
            if rows:
                yield from _row_problems(source)


def _row_problems(certificate: Certificate) -> Iterator[CertificateError]:
    """Read the rows again and hold them against the digests that account for them."""
    from contracts.accounting import RowSet, file_rows

    folder, predicate = certificate.folder, certificate.predicate
    shards = {shard.name: shard for shard in certificate.shards}

    def differ(where: Path, why: str) -> RowsDiffer:
        return RowsDiffer("the rows are not the ones accounted for", where=str(where), why=why, remedy=_COPY)

    if (derivation := predicate.get("derivation")) is not None:
        if certificate.holds != "shards":
            return  # an export's files are accounted for as files
        read = [file_rows(certificate.path_of(shard), shard.digest) for shard in certificate.shards]
        found = sum(read, RowSet())
        if found.hex != derivation["rowsDigest"] or found.rows != derivation["rows"]["kept"]:
            yield differ(certificate.path, f"{found.rows} rows, digest {found.hex[:16]}…")
        return
    kept = {entry["name"]: entry for entry in predicate["quarantine"]}
    for source in predicate["sources"]:
        told = source.get("accounted")
        if not told or told["by"] != "rows":
            continue  # the file as a whole is certified, or quarantined: its SHA-256 says more
        whole, parts = RowSet(), RowSet()
        if (original := folder / source["name"]).is_file() and file_sha256(original) == source["sha256"]:
            whole = file_rows(original)
            if whole.hex != told["input"]:
                yield differ(original, "the digest of its rows is not the one that was certified")
        for role, name in (("certified", told.get("shard")), ("quarantined", told["quarantine"])):
            if name is None:
                continue
            path = folder / name
            found = file_rows(path, shards[name].digest if name in shards else None)
            parts = parts + found
            rows = shards[name].rows if name in shards else kept[name]["rows"]
            if found.hex != told[role] or found.rows != rows:
                yield differ(
                    path, f"{found.rows} rows, digest {found.hex[:16]}…, {told[role][:16]}… is certified"
                )
        if whole.rows and whole != parts:
            yield differ(original, "its rows are not those that are certified and quarantined of it")
