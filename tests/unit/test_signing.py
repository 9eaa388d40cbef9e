"""Signatures: what the key signed holds; unsigned, wrongly signed or altered does not, each in its word."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts import SignatureMissing, SignatureWrong, open_certified, verify
from contracts.certificate import seal_of
from contracts.signing import KeyUnusable, check_signature, envelope_path, sign_certificate
from tests.bodies.certified import certified_set
from tests.conftest import need

need("securesystemslib")
need("cryptography")

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("ed25519", "ecdsa", "rsa")


def key_pair(
    folder: Path, name: str, kind: str = "ed25519", passphrase: bytes | None = None
) -> tuple[Path, Path]:
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    key: Any
    if kind == "ed25519":
        key = ed25519.Ed25519PrivateKey.generate()
    elif kind == "ecdsa":
        key = ec.generate_private_key(ec.SECP256R1())
    else:
        key = rsa.generate_private_key(65537, 2048)
    lock = forms.BestAvailableEncryption(passphrase) if passphrase else forms.NoEncryption()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, lock))
    public.write_bytes(
        key.public_key().public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


@pytest.fixture
def certified(tmp_path: Path) -> Path:
    return certified_set(tmp_path / "set", 1)


def kinds(folder: Path, *keys: Path) -> list[str]:
    return [problem["kind"] for problem in verify(folder, public_keys=keys).problems]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_key_signed_holds_for_that_key_alone(certified: Path, tmp_path: Path, kind: str) -> None:
    private, public = key_pair(tmp_path, "ours", kind)
    _, other = key_pair(tmp_path, "other")
    before = (certified / "certificate.json").read_bytes()
    envelope = sign_certificate(certified, private)
    assert (certified / "certificate.json").read_bytes() == before, "signing changes no certificate"
    held = json.loads(envelope.read_text())
    assert base64.b64decode(held["payload"]) == before
    assert held["payloadType"] == "application/vnd.in-toto+json"
    result = verify(certified, public_keys=[public])
    assert result.ok and result.signed_by == held["signatures"][0]["keyid"]
    assert open_certified(certified, public_key=public).count_rows() == result.rows
    assert kinds(certified, other) == ["SignatureWrong"]
    assert verify(certified, public_keys=[other, public]).ok, "one of the keys is enough"
    assert verify(certified).signed_by is None, "nobody asked"
    with pytest.raises(SignatureWrong):
        open_certified(certified, public_key=other)


def test_without_a_signature_a_key_opens_nothing(certified: Path, tmp_path: Path) -> None:
    _, public = key_pair(tmp_path, "ours")
    assert verify(certified).ok and kinds(certified, public) == ["SignatureMissing"]
    with pytest.raises(SignatureMissing, match="not signed"):
        open_certified(certified, public_key=[public])


@pytest.mark.parametrize(
    "damage", ["payload", "signature", "keyid", "type", "none", "json", "list", "certificate"]
)
def test_an_altered_envelope_or_certificate_does_not_hold(
    certified: Path, tmp_path: Path, damage: str
) -> None:
    private, public = key_pair(tmp_path, "ours")
    file = sign_certificate(certified, private)
    held = json.loads(file.read_text())
    if damage == "payload":
        held["payload"] = base64.b64encode(b"{}").decode()
    elif damage == "signature":
        held["signatures"][0]["sig"] = base64.b64encode(b"\0" * 64).decode()
    elif damage == "keyid":
        held["signatures"][0]["keyid"] = "0" * 64
    elif damage == "type":
        held["payloadType"] = "text/plain"
    elif damage == "none":
        held["signatures"] = []
    elif damage == "list":
        held = [held]
    file.write_text("{" if damage == "json" else json.dumps(held))
    if damage == "certificate":
        whole = json.loads((certified / "certificate.json").read_text())
        whole["predicate"]["checkedBy"] = "somebody else"
        whole["predicate"]["sha256"] = seal_of(whole)
        (certified / "certificate.json").write_text(json.dumps(whole))
        assert kinds(certified) == ["SignatureWrong"], "an old signature is told though no key is given"
    assert kinds(certified, public) == ["SignatureWrong"]


def test_two_can_sign_and_a_new_certificate_needs_a_new_signature(certified: Path, tmp_path: Path) -> None:
    ours, public = key_pair(tmp_path, "ours")
    theirs, second = key_pair(tmp_path, "theirs", "ecdsa")
    sign_certificate(certified, ours)
    sign_certificate(certified, theirs)
    assert verify(certified, public_keys=[public]).ok and verify(certified, public_keys=[second]).ok
    (certified / "certificate.json").unlink()
    certified_set(certified, 1)
    if kinds(certified, public):  # another second, another certificate
        sign_certificate(certified, theirs)
        assert kinds(certified, public) == ["SignatureWrong"], "the old signature is not taken over"
        assert verify(certified, public_keys=[second]).ok


def test_an_encrypted_key_takes_its_passphrase_from_the_environment(
    certified: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public = key_pair(tmp_path, "ours", passphrase=b"quite secret")
    with pytest.raises(KeyUnusable) as told:
        sign_certificate(certified, private)
    assert "SHARDGATE_KEY_PASSPHRASE" in told.value.remedy
    monkeypatch.setenv("SHARDGATE_KEY_PASSPHRASE", "quite secret")
    sign_certificate(certified, private)
    assert verify(certified, public_keys=[public]).ok


@pytest.mark.parametrize("wrong", ["text", "public as private", "private as public"])
def test_a_file_that_is_no_such_key_is_told(certified: Path, tmp_path: Path, wrong: str) -> None:
    private, public = key_pair(tmp_path, "ours")
    (tmp_path / "text").write_text("no key")
    sign_certificate(certified, private)
    certificate = open_certified(certified).certificate
    with pytest.raises(KeyUnusable, match="can't be used"):
        if wrong == "private as public":
            check_signature(certificate, [private])
        else:
            sign_certificate(certified, public if wrong == "public as private" else tmp_path / "text")


def shardgate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )


def test_the_commands(certified: Path, tmp_path: Path) -> None:
    private, public = key_pair(tmp_path, "ours")
    assert shardgate("verify", certified, "--public-key", public).returncode == 1
    done = shardgate("sign", certified, "--key", private, "--json")
    assert done.returncode == 0, done.stderr
    assert Path(json.loads(done.stdout)["envelope"]) == envelope_path(certified / "certificate.json")
    done = shardgate("verify", certified, "--public-key", public, "--json")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, True)
    shard = certified / "shards" / "0.parquet"
    shard.write_bytes(shard.read_bytes()[:-1])
    done = shardgate("sign", certified, "--key", private)
    assert done.returncode == 1 and "not signed" in done.stderr, "what does not hold gets no signature"
    assert shardgate("sign", certified, "--key", tmp_path / "none.pem").returncode == 2
