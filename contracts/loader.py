"""The gate: a certified set opens, anything else is refused with its own reason.

Place in the flow: between the certificate and the trainer. Imports certificate, certified_set and verifying
of `contracts`. Every byte that an opened set serves went through its segment's digest on the way in: what
was verified is what is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from contracts.certificate import read_certificate
from contracts.certified_set import CertifiedSet, HoldsNoShards
from contracts.verifying import VerifyResult, problems, verify

__all__ = ["VerifyResult", "open_certified", "verify"]


def open_certified(
    path: Path | str,
    *,
    check: bool | None = None,
    public_key: Path | str | Sequence[Path | str] | None = None,
) -> CertifiedSet:
    """Open a certified set: as Arrow tables, a pyarrow dataset, a torch or a Hugging Face dataset.

    Args:
        path: the set's folder, or its certificate.
        check: hash all shards now. False leaves that to the reading, where each row group is hashed once as
            it comes in, so that many ranks need not each hash the whole set; an altered byte then raises
            `ShardAltered` while reading. None does so in a job of several ranks (`WORLD_SIZE` above 1, as
            torchrun sets it), and checks now elsewhere.
        public_key: PEM file or files; the certificate must be signed by one of them.

    Raises:
        CertificateMissing, CertificateAltered, ShardMissing, ShardAltered, ShardUncertified,
        SignatureMissing, SignatureWrong: see `contracts.certificate`.
        HoldsNoShards: the set is an export; `verify` is its gate.
    """
    certificate = read_certificate(path)
    if certificate.holds != "shards":
        raise HoldsNoShards(
            "these are a trainer's own files, not shards",
            where=str(certificate.path),
            why="the certificate is that of an export",
            remedy="check them with `shardgate verify DIR`, give them to the trainer, or open their source",
        )
    hashed = not _one_of_many() if check is None else check
    problem = next(problems(certificate, hashed=hashed, public_keys=key_files(public_key)), None)
    if problem is not None:
        raise problem
    return CertifiedSet(certificate)


def key_files(given: Path | str | Sequence[Path | str] | None) -> tuple[Path | str, ...]:
    """Return the key files as a tuple, from one, several or none."""
    if given is None:
        return ()
    return (given,) if isinstance(given, Path | str) else tuple(given)


def _one_of_many() -> bool:
    size = os.environ.get("WORLD_SIZE", "")
    return size.isdigit() and int(size) > 1
