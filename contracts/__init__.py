"""The data side: shards, the contract, certificates and the loader. Importing it costs next to nothing.

    from contracts import audit, open_certified, verify

Place in the flow: the front. Names are imported from their modules when they are first used, so that
`import contracts` brings in no pyarrow, polars or pandera. Never imports `harness`, torch or sglang.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contracts.certificate import (
        CertificateAltered,
        CertificateError,
        CertificateMissing,
        QuarantineAltered,
        QuarantineMissing,
        ShardAltered,
        ShardMissing,
        ShardUncertified,
        SignatureMissing,
        SignatureWrong,
        read_certificate,
    )
    from contracts.certified_set import CertifiedSet
    from contracts.errors import ShardgateError
    from contracts.loader import VerifyResult, open_certified, verify
    from contracts.run import AuditResult, audit
    from contracts.shard import row_from_capture, write_shard
    from contracts.tokens import load_codec

_HOMES = {
    "AuditResult": "run",
    "CertificateAltered": "certificate",
    "CertificateError": "certificate",
    "CertificateMissing": "certificate",
    "CertifiedSet": "certified_set",
    "QuarantineAltered": "certificate",
    "QuarantineMissing": "certificate",
    "ShardAltered": "certificate",
    "ShardMissing": "certificate",
    "ShardUncertified": "certificate",
    "ShardgateError": "errors",
    "SignatureMissing": "certificate",
    "SignatureWrong": "certificate",
    "VerifyResult": "loader",
    "audit": "run",
    "load_codec": "tokens",
    "open_certified": "loader",
    "read_certificate": "certificate",
    "row_from_capture": "shard",
    "verify": "loader",
    "write_shard": "shard",
}

__all__ = [
    "AuditResult",
    "CertificateAltered",
    "CertificateError",
    "CertificateMissing",
    "CertifiedSet",
    "QuarantineAltered",
    "QuarantineMissing",
    "ShardAltered",
    "ShardMissing",
    "ShardUncertified",
    "ShardgateError",
    "SignatureMissing",
    "SignatureWrong",
    "VerifyResult",
    "audit",
    "load_codec",
    "open_certified",
    "read_certificate",
    "row_from_capture",
    "verify",
    "write_shard",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'contracts' has no attribute {name!r}")
    return getattr(import_module(f"contracts.{home}"), name)
