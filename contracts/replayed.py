"""The record of a replay (claim 5: are these the model's tokens?), and how a certificate takes it in.

Place in the flow: written by `shardgate replay`, read by certifying. Imports `contracts.errors` and `shard`;
`contracts.certificate` inside functions.

`replay.json` lies beside the shards and names each by its SHA-256, so that it speaks of those bytes and no
others. The certificate keeps its summary and its digest, and the claim `model` beside the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.shard import replace_file

FILE_NAME = "replay.json"
VERSION = 1
SUMMARY = ("madeAt", "rows", "seed", "verdict", "reference", "thresholds", "server", "differences")
"""The keys of the record that the certificate repeats."""

_AGAIN = "replay the shards as they are now: shardgate replay SHARDS --base-url URL"


class ReplayRefused(ShardgateError):
    """A replay's record can't enter the certificate."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A record that was read and found whole; `summary` is what the certificate's predicate holds."""

    path: Path
    record: Mapping[str, Any]
    summary: Mapping[str, Any]

    def entered(self, predicate: Mapping[str, Any]) -> dict[str, Any]:
        """Return a certificate's predicate with the record's summary, the claim `model` and a sentence.

        Raises:
            ReplayRefused: the record was made over other files than the audited ones, or the model does not
                say of these that they are its own.
        """
        replayed = sorted(shard["sha256"] for shard in self.record["shards"])
        audited = sorted(str(source["sha256"]) for source in predicate["sources"])
        if replayed != audited:
            missing = [s["name"] for s in self.record["shards"] if s["sha256"] not in audited]
            raise ReplayRefused(
                "the replay was made over other shards",
                where=str(self.path),
                why=f"{missing[0]} is not audited, or was changed since"
                if missing
                else f"it speaks of {len(replayed)} shards, and {len(audited)} are audited",
                remedy=_AGAIN,
            )
        rows = self.summary["rows"]
        if self.summary["verdict"] != "consistent":
            raise ReplayRefused(
                f"the model does not say that these are its tokens: {self.summary['verdict']}",
                where=str(self.path),
                why=f"of {rows['replayed']} rows that it was asked about {rows['consistent']} are consistent",
                remedy="leave out the rows or shards that the record names and replay the others; or ask the "
                "server that made them. A certificate without --replay does not speak of this claim",
            )
        asked = {
            "true": rows["consistent"],
            "false": rows["replayed"] - rows["consistent"],
            "null": rows["set"] - rows["replayed"],
        }
        return {
            **predicate,
            "replay": dict(self.summary),
            "claims": {**predicate["claims"], "model": {k: v for k, v in asked.items() if v}},
            "statement": f"{predicate['statement']}; the model was asked about {rows['replayed']:,} of "
            f"{rows['set']:,} rows, and finds them as likely as its own responses",
        }


def write_replay(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record, sealed with its own digest: beside, synced, renamed."""
    whole = {**record, "version": VERSION}
    text = json.dumps({**whole, "sha256": seal_of(whole)}, indent=1, ensure_ascii=True, allow_nan=False)
    replace_file(path, lambda handle: handle.write(text.encode() + b"\n"))


def seal_of(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) over a record's canonical JSON without its own digest."""
    kept = {key: value for key, value in record.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_replay(path: Path | str) -> Replay:
    """Read a record and check that it is whole.

    Raises:
        ReplayRefused: it can't be read, has not the form, or was changed after it was written.
    """
    from contracts.certificate import replay_faults

    path = Path(path)
    path = path / FILE_NAME if path.is_dir() else path

    def refused(why: str) -> ReplayRefused:
        return ReplayRefused("this is no record of a replay", where=str(path), why=why, remedy=_AGAIN)

    try:
        raw = path.read_bytes()
        record = json.loads(raw)
        shards = [(shard["name"], shard["sha256"]) for shard in record["shards"]]
        summary = {key: record[key] for key in SUMMARY}
    except OSError as error:
        raise refused(error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise refused(f"it can't be read: {type(error).__name__} {error}") from error
    if record.get("version") != VERSION:
        raise refused(f"it has the version {record.get('version')!r}; this shardgate reads {VERSION}")
    if record.get("sha256") != seal_of(record):
        raise refused("its contents are not the ones that its own digest was made over")
    summary["sha256"] = hashlib.sha256(raw).hexdigest()
    if told := replay_faults(summary):
        raise refused(f"it has not a record's form: {told[0]}")
    rows = summary["rows"]
    if not shards or not rows["consistent"] <= rows["replayed"] <= rows["sampled"] <= rows["set"]:
        raise refused("its counts contradict each other")
    return Replay(path, record, summary)
