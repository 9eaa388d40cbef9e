"""The certificate: an in-toto Statement over a set's shards, with our predicate; built, sealed, read back.

Place in the flow: after the audit, before the loader. Imports `contracts.errors` and `contracts.segments`;
jsonschema inside functions. Its form is `certificate.schema.json`, beside this module.

    CertificateError           every reason not to open a set
        CertificateMissing     there is no certificate
        CertificateAltered     it can't be read, has not the form, or is not what was signed off
        ShardMissing           a shard that it names is gone
        ShardAltered           a shard's bytes are not the certified ones
        ShardUncertified       a file of their kind lies beside the certified ones that it does not name
        QuarantineMissing      quarantined rows or their findings are gone: not every row is accounted for
        QuarantineAltered      they are not what they were
        SourceMissing          a source, asked for, is not where it was
        SourceAltered          a source is not the one that the rows came from
        RowsDiffer             the rows are not those that the certificate accounts for
        SignatureMissing       a public key was given, and the certificate is not signed
        SignatureWrong         the signature is not one of that key over this certificate
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.segments import FileDigest, Segment

FILE_NAME = "certificate.json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:shardgate:certificate:v1"
_ISSUE_ANEW = "audit the shards again with `shardgate audit --certify DIR`"


class CertificateError(ShardgateError):
    """A set of shards can't be opened as certified."""


class CertificateMissing(CertificateError):
    """There is no certificate where one was looked for."""


class CertificateAltered(CertificateError):
    """The certificate can't be read, has not the form, or was changed after it was written."""


class ShardMissing(CertificateError):
    """A certified shard is not there."""


class ShardAltered(CertificateError):
    """A certified shard's bytes were changed."""


class ShardUncertified(CertificateError):
    """A file of their kind lies among the certified ones without being certified."""


class QuarantineMissing(CertificateError):
    """Quarantined rows, or the findings that sent them there, are gone."""


class QuarantineAltered(CertificateError):
    """Quarantined rows or their findings were changed."""


class SourceMissing(CertificateError):
    """A source of the set is not where it was."""


class SourceAltered(CertificateError):
    """A source of the set is no longer the one that its rows came from."""


class RowsDiffer(CertificateError):
    """The rows of the files are not the ones that the certificate accounts for."""


class SignatureMissing(CertificateError):
    """A signature was asked for, and there is none."""


class SignatureWrong(CertificateError):
    """The signature is of another key, of another certificate, or none at all."""


@dataclass(frozen=True, slots=True)
class CertifiedShard:
    """One certified shard: its name (relative to the certificate, `/` between folders) and its digest."""

    name: str
    rows: int
    digest: FileDigest


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that was read and found whole: the file's bytes, and `statement`, the JSON in them."""

    path: Path
    shards: tuple[CertifiedShard, ...]
    statement: Mapping[str, Any]
    raw: bytes = field(default=b"", repr=False)

    @property
    def sha256(self) -> str:
        """Return the SHA-256 (hex) of the certificate's file, by which others name it."""
        return hashlib.sha256(self.raw).hexdigest()

    @property
    def holds(self) -> str:
        """Return what the subjects are: `shards`, or a trainer's own files (`export`)."""
        return str(self.predicate.get("holds", "shards"))

    @property
    def folder(self) -> Path:
        """Return the folder that the names are relative to."""
        return self.path.parent

    @property
    def predicate(self) -> Mapping[str, Any]:
        """Return our part of the statement."""
        return self.statement["predicate"]  # type: ignore[no-any-return]

    @property
    def known_names(self) -> set[str]:
        """Return every file that the certificate speaks of: shards, sources, bystanders, quarantine."""
        predicate = self.predicate
        named = {entry["name"] for key in ("sources", "quarantine") for entry in predicate[key]}
        findings = {entry["findings"]["name"] for entry in predicate["quarantine"] if "findings" in entry}
        return {shard.name for shard in self.shards} | named | findings | set(predicate["bystanders"])

    def path_of(self, shard: CertifiedShard) -> Path:
        """Return where a shard lies."""
        return self.folder / shard.name


def statement(shards: list[CertifiedShard], predicate: Mapping[str, Any]) -> dict[str, Any]:
    """Return the in-toto Statement of certified shards, sealed with its own digest."""
    entries = [
        {
            "name": shard.name,
            "rows": shard.rows,
            "size": shard.digest.size,
            "segments": [
                {"offset": s.offset, "length": s.length, "sha256": s.sha256, "rows": s.rows}
                for s in shard.digest.segments
            ],
        }
        for shard in shards
    ]
    whole: dict[str, Any] = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": shard.name, "digest": {"sha256": shard.digest.sha256}} for shard in shards],
        "predicateType": PREDICATE_TYPE,
        "predicate": {**predicate, "shards": entries},
    }
    whole["predicate"]["sha256"] = seal_of(whole)
    return whole


def seal_of(whole: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) over the statement's canonical JSON without `predicate.sha256`."""
    predicate = {key: value for key, value in whole["predicate"].items() if key != "sha256"}
    text = json.dumps({**whole, "predicate": predicate}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=1)
def json_schema() -> Mapping[str, Any]:
    """Return the certificate's JSON schema."""
    text = Path(__file__).with_name("certificate.schema.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def faults(whole: Any) -> list[str]:
    """Return where a JSON value breaks the certificate's schema; empty where it does not."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

    errors = Draft202012Validator(json_schema()).iter_errors(whole)
    return [f"{error.json_path}: {error.message[:200]}" for error in errors]


def replay_faults(summary: Any) -> list[str]:
    """Return where a replay's summary breaks the schema that the predicate has for it."""
    from jsonschema import Draft202012Validator

    whole = json_schema()
    part = {"$defs": whole["$defs"], "$ref": "#/$defs/replay"}
    return [
        f"{error.json_path}: {error.message[:200]}"
        for error in Draft202012Validator(part).iter_errors(summary)
    ]


def locate(path: Path | str) -> Path:
    """Return the certificate's file for a run folder or the file itself."""
    path = Path(path)
    return path / FILE_NAME if path.is_dir() else path


def read_certificate(path: Path | str) -> Certificate:
    """Read a certificate and check that it is whole; the shards are not looked at.

    Raises:
        CertificateMissing: there is none.
        CertificateAltered: it can't be read, breaks the schema, or its own digest does not fit.
    """
    file = locate(path)
    if not file.is_file():
        raise CertificateMissing(
            "there is no certificate",
            where=str(file),
            why="these shards were never certified, or the certificate was taken away",
            remedy=_ISSUE_ANEW,
        )
    if file.suffix == ".parquet":
        raise CertificateMissing(
            "this is a shard, not a certificate",
            where=str(file),
            why="a certificate speaks of a set of shards and lies in the folder that was certified into",
            remedy=f"give that folder, or its {FILE_NAME}; where there is none, {_ISSUE_ANEW}",
        )
    try:
        raw = file.read_bytes()
        whole = json.loads(raw, object_pairs_hook=_object)
    except (ValueError, OSError, RecursionError) as error:
        raise _altered(file, f"it can't be read: {error}") from error
    if told := faults(whole):
        raise _altered(file, f"it has not a certificate's form: {told[0]}")
    if seal_of(whole) != whole["predicate"]["sha256"]:
        raise _altered(file, "its contents are not the ones that its own digest was made over")
    digests = {entry["name"]: entry["digest"]["sha256"] for entry in whole["subject"]}
    shards = []
    for entry in whole["predicate"]["shards"]:
        if entry["name"] not in digests:
            raise _altered(file, f"the shard {entry['name']} is no subject of it")
        segments = tuple(Segment(s["offset"], s["length"], s["sha256"], s["rows"]) for s in entry["segments"])
        if gap := _gaps(entry):
            raise _altered(file, f"the segments of {entry['name']} {gap}")
        whole_file = FileDigest(entry["size"], digests[entry["name"]], segments)
        shards.append(CertifiedShard(entry["name"], entry["rows"], whole_file))
    if len(shards) != len(digests) or len(whole["subject"]) != len(digests):
        raise _altered(file, "subjects and shards are not the same")
    if miscount := _miscounted(whole["predicate"]):
        raise _altered(file, miscount)
    return Certificate(file, tuple(shards), whole, raw)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; a key that is there twice would be read one way here and another elsewhere."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice in one object")
    return found


def _gaps(entry: Mapping[str, Any]) -> str | None:
    """Say what keeps a shard's segments from covering it, byte by byte and row by row."""
    at = 0
    for segment in entry["segments"]:
        if segment["offset"] != at:
            return f"leave a gap or overlap at byte {at}"
        at += segment["length"]
    if at != entry["size"]:
        return f"cover {at} of {entry['size']} bytes"
    if sum(segment["rows"] for segment in entry["segments"]) != entry["rows"]:
        return "do not hold its rows"
    return None


def _miscounted(predicate: Mapping[str, Any]) -> str | None:
    """Say where the predicate's counts contradict each other or its shards; a seal does not see that."""
    sources, counts, derivation = predicate["sources"], predicate["counts"], predicate.get("derivation")
    for name in ("rows", "certified", "quarantined"):
        if derivation is None and counts[name] != sum(source[name] for source in sources):
            return f"it counts {counts[name]} {name}, its sources have another number"
    for source in sources:
        told = source.get("accounted", {"by": "file"})
        if told["by"] == "rows" and (
            int(told["certified"], 16) + int(told["quarantined"], 16) - int(told["input"], 16)
        ) % (1 << 256):
            return f"the digests of the rows of {source['name']} do not add up"
    if counts["rows"] != counts["certified"] + counts["quarantined"]:
        return "not every row is certified or quarantined"
    if counts["certified"] != sum(shard["rows"] for shard in predicate["shards"]):
        return f"it counts {counts['certified']} certified rows, its shards have another number"
    if counts["quarantined"] != sum(kept["rows"] for kept in predicate["quarantine"]):
        return f"it counts {counts['quarantined']} quarantined rows, its quarantine has another number"
    if derivation is not None:
        rows = derivation["rows"]
        if rows["kept"] != counts["certified"] or rows["sources"] != rows["kept"] + rows["leftOut"]:
            return "not every row of its sources is kept or left out"
        if rows["sources"] != sum(source["rows"] for source in derivation["sources"]):
            return f"it counts {rows['sources']} rows in its sources, they have another number"
    return None


def _altered(file: Path, why: str) -> CertificateAltered:
    return CertificateAltered("the certificate was altered", where=str(file), why=why, remedy=_ISSUE_ANEW)
