"""Signing a certificate: a DSSE envelope around its very bytes, beside it; off unless a key is given.

Place in the flow: after the certificate is written; the loader and `shardgate verify` ask it when they are
given a public key. Imports certificate of `contracts`; securesystemslib and cryptography (the extra `sign`)
inside functions.

    certificate.json        the in-toto Statement, as it is without signing
    certificate.dsse.json   {"payload": base64 of that file, "payloadType", "signatures": [{"keyid", "sig"}]}

Keys are PEM files: private ones as PKCS#8 (Ed25519, ECDSA or RSA), public ones as SubjectPublicKeyInfo.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from contracts.certificate import (
    Certificate,
    SignatureMissing,
    SignatureWrong,
    read_certificate,
)
from contracts.errors import ShardgateError
from contracts.shard import replace_file

PAYLOAD_TYPE = "application/vnd.in-toto+json"
PASSPHRASE_VARIABLE = "SHARDGATE_KEY_PASSPHRASE"


class KeyUnusable(ShardgateError):
    """A key file can't be read, or is no key that can do this."""


def envelope_path(certificate: Path) -> Path:
    """Return where the envelope of a certificate's file lies."""
    return certificate.with_name(f"{certificate.name.removesuffix('.json')}.dsse.json")


def sign_certificate(path: Path | str, key: Path | str) -> Path:
    """Sign the certificate of a set with a private key; returns the envelope's path.

    A signature of another key is kept, so that several can sign the same certificate. The passphrase of an
    encrypted key is read from the environment variable SHARDGATE_KEY_PASSPHRASE.

    Raises:
        CertificateMissing, CertificateAltered: there is none, or it does not hold in itself.
        KeyUnusable: the key can't be read.
        ShardgateError: the extra `sign` is not installed.
    """
    dsse, signer = _library("securesystemslib.dsse"), _private(Path(key))
    certificate = read_certificate(path)
    target = envelope_path(certificate.path)
    envelope = dsse.Envelope(certificate.raw, PAYLOAD_TYPE, {})
    if target.is_file():
        try:
            before = _envelope(target)
        except SignatureWrong:
            before = None  # it says nothing that could be kept
        if before is not None and before.payload == certificate.raw and before.payload_type == PAYLOAD_TYPE:
            envelope = before
    envelope.sign(signer)
    text = json.dumps(envelope.to_dict(), indent=2).encode() + b"\n"
    replace_file(target, lambda handle: handle.write(text))
    return target


def check_signature(certificate: Certificate, keys: Sequence[Path | str]) -> str:
    """Return the id of the key, one of `keys` (public, PEM), that signed exactly this certificate.

    Raises:
        SignatureMissing: there is no envelope.
        SignatureWrong: it is of another certificate, was altered, or none of the keys signed it.
        KeyUnusable: a key can't be read.
    """
    errors = _library("securesystemslib.exceptions")
    public = [_public(Path(key)) for key in keys]
    file = envelope_path(certificate.path)
    if not file.is_file():
        raise SignatureMissing(
            "the certificate is not signed",
            where=str(certificate.path),
            why=f"a public key was given, and there is no {file.name} beside the certificate",
            remedy="have it signed with `shardgate sign DIR --key FILE`, or copy the envelope along",
        )
    envelope = _envelope(file)
    if envelope.payload_type != PAYLOAD_TYPE or envelope.payload != certificate.raw:
        raise _wrong(file, "it is the signature of another certificate, or of this one before it was altered")
    try:
        accepted = envelope.verify(public, threshold=1)
    except (errors.Error, ValueError) as error:
        raise _wrong(file, "none of the given keys signed it, or the signature was altered") from error
    return str(next(iter(accepted)))


def stale_envelope(certificate: Certificate) -> SignatureWrong | None:
    """Return what is wrong with an envelope that is there though nobody asked for one; needs no library."""
    file = envelope_path(certificate.path)
    if not file.is_file():
        return None
    try:
        fits = base64.b64decode(json.loads(file.read_bytes())["payload"]) == certificate.raw
    except (OSError, ValueError, LookupError, TypeError, RecursionError, binascii.Error):
        return _wrong(file, "it is no DSSE envelope")
    return None if fits else _wrong(file, "it is the signature of another certificate, or of an older one")


def _wrong(file: Path, why: str) -> SignatureWrong:
    return SignatureWrong(
        "the certificate's signature does not hold",
        where=str(file),
        why=why,
        remedy="get certificate and signature again from where they were made",
    )


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ShardgateError(
            "signatures need the extra `sign`", why=str(error), remedy="pip install 'shardgate[sign]'"
        ) from error


def _envelope(file: Path) -> Any:
    dsse, errors = _library("securesystemslib.dsse"), _library("securesystemslib.exceptions")
    try:
        return dsse.Envelope.from_dict(json.loads(file.read_bytes()))
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        errors.Error,
    ) as error:
        raise _wrong(file, f"it is no DSSE envelope: {type(error).__name__}: {error}") from error


def _private(path: Path) -> Any:
    signer, keys = (
        _library("securesystemslib.signer"),
        _library("cryptography.hazmat.primitives.serialization"),
    )
    passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    try:
        key = keys.load_pem_private_key(path.read_bytes(), passphrase.encode() if passphrase else None)
        return signer.CryptoSigner(key)
    except Exception as error:  # the library has an error of its own for each way a key can be wrong
        raise _unusable(path, "private", error) from error


def _public(path: Path) -> Any:
    signer, keys = (
        _library("securesystemslib.signer"),
        _library("cryptography.hazmat.primitives.serialization"),
    )
    try:
        return signer.SSlibKey.from_crypto(keys.load_pem_public_key(path.read_bytes()))
    except Exception as error:
        raise _unusable(path, "public", error) from error


def _unusable(path: Path, kind: str, error: Exception) -> KeyUnusable:
    hint = f" (an encrypted key's passphrase comes from {PASSPHRASE_VARIABLE})" if kind == "private" else ""
    return KeyUnusable(
        f"this {kind} key can't be used",
        where=str(path),
        why=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
        remedy=f"give a PEM file with a {kind} Ed25519, ECDSA or RSA key{hint}",
    )
