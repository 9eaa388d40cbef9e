"""The gate: a certified set opens as a pyarrow dataset, anything else is refused with its own reason.

Place in the flow: between the certificate and the trainer. Imports certificate, certify's layout and segments
of `contracts`; pyarrow inside functions. Every byte that the dataset serves went through its segment's
digest on the way in: what was verified is what is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.certificate import (
    Certificate,
    CertificateError,
    CertifiedShard,
    ShardAltered,
    ShardMissing,
    ShardUncertified,
    read_certificate,
)
from contracts.certify import QUARANTINE, parquet_beside
from contracts.segments import AlteredBytes, VerifiedFile, file_sha256

if TYPE_CHECKING:
    import pyarrow.dataset as ds


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Whether a set is what its certificate says. `problems` holds `kind`, `shard`, `message`, `remedy`."""

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

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {**asdict(self), "problems": list(self.problems)}


def verify(path: Path | str) -> VerifyResult:
    """Check every shard of a set against its certificate; what does not hold is listed, all of it.

    Raises:
        CertificateMissing, CertificateAltered: there is nothing to check against.
    """
    certificate = read_certificate(path)
    predicate = certificate.predicate
    problems = [
        {
            "kind": type(problem).__name__,
            "shard": problem.where,
            "message": f"{problem.what}: {problem.why}",
            "remedy": problem.remedy,
        }
        for problem in _problems(certificate)
    ]
    contract = predicate["contract"]
    return VerifyResult(
        ok=not problems,
        certificate=str(certificate.path),
        shards=len(certificate.shards),
        rows=sum(shard.rows for shard in certificate.shards),
        contract=contract["name"],
        profile=contract["profile"],
        strength=contract["strength"],
        checked_at=predicate["checkedAt"],
        checked_by=predicate["checkedBy"],
        statement=predicate["statement"],
        problems=tuple(problems),
    )


def open_certified(path: Path | str, *, check: bool = True) -> ds.Dataset:
    """Open a certified set, its certificate's shards in order, as a pyarrow dataset.

    Args:
        path: the run folder, or its certificate.
        check: hash all shards now. False leaves that to the reading, where each row group is verified once
            as it comes in, so that many ranks need not each hash the whole set; an altered byte then
            raises `ShardAltered` while reading.

    Raises:
        CertificateMissing, CertificateAltered, ShardMissing, ShardAltered, ShardUncertified: see
            `contracts.certificate`.
    """
    import pyarrow.dataset as ds
    from pyarrow.fs import PyFileSystem

    certificate = read_certificate(path)
    problem = next(_problems(certificate, hashed=check), None)
    if problem is not None:
        raise problem
    from contracts.verified_fs import VerifiedFiles

    files = VerifiedFiles({str(certificate.path_of(shard)): shard.digest for shard in certificate.shards})
    names = [str(certificate.path_of(shard)) for shard in certificate.shards]
    return ds.dataset(names, filesystem=PyFileSystem(files), format="parquet")


def _problems(certificate: Certificate, hashed: bool = True) -> Iterator[CertificateError]:
    for shard in certificate.shards:
        problem = _shard_problem(certificate, shard, hashed)
        if problem is not None:
            yield problem
    folder = certificate.folder.resolve()
    known = {(folder / name).resolve() for name in certificate.known_names}
    places = {path.parent for path in known} - {folder / QUARANTINE}
    for path in sorted(parquet_beside(folder, sorted(places)) - known):
        yield ShardUncertified(
            "a shard lies beside the certified ones without being certified",
            where=str(path),
            why="it was added after the certificate was written, which does not name it",
            remedy="take it away, or audit the whole set again with `shardgate audit --certify NEW_DIR`",
        )


def _shard_problem(certificate: Certificate, shard: CertifiedShard, hashed: bool) -> CertificateError | None:
    path = certificate.path_of(shard)
    if not path.is_file():
        return ShardMissing(
            "a certified shard is missing",
            where=str(path),
            why="the certificate names it, and there is no such file",
            remedy="copy it back from where it was certified, or audit what is left again",
        )
    size = path.stat().st_size
    why = None
    if size != shard.digest.size:
        why = f"it has {size} bytes, {shard.digest.size} were certified"
    elif hashed and file_sha256(path) != shard.digest.sha256:
        why = f"its SHA-256 is not the certified one{_where_altered(path, shard)}"
    if why is None:
        return None
    return ShardAltered(
        "a certified shard was altered",
        where=str(path),
        why=why,
        remedy="copy it again from where it was certified, or audit it again",
    )


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
