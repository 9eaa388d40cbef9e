"""New shards from certified ones: merged, filtered, subsampled, split by prompt, shuffled; and certified.

Place in the flow: after certifying, before a trainer; `shardgate derive` calls it. Imports derive, held,
layout, loader, scatter and selection of `contracts`; numpy, pyarrow and polars while it runs.

    DIR/shards/00000.parquet …          the rows, values unchanged
    DIR/certificate.json                written last; names the sources' certificates and what was done
    DIR/PART/shards/, DIR/PART/certificate.json     with a split, a set per part, the certificates last

An interruption leaves no certificate, and the next run replaces what it left.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contracts.certificate import FILE_NAME, Certificate, read_certificate
from contracts.certified_set import CertifiedSet
from contracts.derive import DeriveError, Operation, derived_certificate, one_contract, source_entry
from contracts.held import folder_held
from contracts.layout import SHARD_SUFFIXES, clear_temporary
from contracts.loader import open_certified, verify
from contracts.scatter import DERIVED_KEY, chosen_rows, shuffled_rows, write_shards
from contracts.selection import By, parts_of
from contracts.shard import METADATA_PREFIX, ROWS_PER_GROUP, SCHEMA_VERSION

ROWS_PER_SHARD = 50_000
_WORK = ".shuffle"


@dataclass(frozen=True, slots=True)
class DerivedSet:
    """One set that was derived: its part's name (empty without a split), certificate, rows and shards."""

    part: str
    certificate: str
    rows: int
    shards: int
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the set as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Derivation:
    """What to do with the sources' rows, in this order; the same values give the same sets.

    `condition` is SQL over the shard's columns; `rows` or `fraction` a subsample; `split` part → share of
    the rows, where rows of one prompt (and, by conversation, of one conversation) stay together; `shuffle`
    orders all rows anew. `seed` feeds all three.
    """

    condition: str | None = None
    rows: int | None = None
    fraction: float | None = None
    split: Mapping[str, float] | None = None
    by: By = "conversation"
    shuffle: bool = False
    seed: int = 0
    rows_per_shard: int = ROWS_PER_SHARD
    rows_per_group: int = ROWS_PER_GROUP

    def operations(self, part: str, sources: int) -> list[Operation]:
        """Return what the certificate of one part says was done."""
        done = [Operation("merge", {"sets": sources})] if sources > 1 else []
        if self.condition is not None:
            done.append(Operation("filter", {"condition": self.condition}))
        if self.rows is not None or self.fraction is not None:
            asked = {"rows": self.rows} if self.rows is not None else {"fraction": self.fraction}
            done.append(Operation("subsample", {**asked, "seed": self.seed}))
        if self.split:
            told = {"parts": dict(self.split), "part": part, "by": self.by, "seed": self.seed}
            done.append(Operation("split", told))
        if self.shuffle:
            done.append(Operation("shuffle", {"seed": self.seed}))
        layout = {"rowsPerShard": self.rows_per_shard, "rowsPerGroup": self.rows_per_group}
        return [*done, Operation("write", layout)]


def derive(
    sources: Sequence[Path | str],
    out: Path | str,
    what: Derivation,
    *,
    public_keys: Sequence[Path | str] = (),
    checked_by: str | None = None,
) -> list[DerivedSet]:
    """Derive one set from certified ones, or one per part of a split; returns them in order.

    Args:
        sources: folders with a certificate; each row group of theirs is verified as it is read.
        out: the folder to write into; one that holds the same derivation already is left as it is.
        public_keys: the sources must be signed by one of these keys.

    Raises:
        CertificateError: a source is not certified, or not what its certificate says.
        DeriveError: it can't be done as asked; see `contracts.selection`, `contracts.derive`.
        FolderHeld: another process is writing into `out`.
    """
    out = Path(out)
    if what.seed < 0:
        raise DeriveError(f"a seed of {what.seed} can't be used", remedy="give one of 0 or more")
    if min(what.rows_per_shard, what.rows_per_group) < 1:
        raise DeriveError("a shard and a row group need at least one row", remedy="give larger numbers")
    opened = [open_certified(path, check=False, public_key=public_keys) for path in sources]
    certificates = [source.certificate for source in opened]
    contract = one_contract(certificates)
    with folder_held(out):
        places = {part: out / part for part in what.split} if what.split else {"": out}
        if (done := _done_before(out, places, certificates, what)) is not None:
            return done
        metadata = {
            **_stated(opened),
            f"{METADATA_PREFIX}schema_version": SCHEMA_VERSION,
            f"{METADATA_PREFIX}strength": contract["strength"],
            DERIVED_KEY: ",".join(certificate.sha256 for certificate in certificates),
        }
        for folder in places.values():
            _clear(folder)
        parts = parts_of(
            opened,
            condition=what.condition,
            rows=what.rows,
            fraction=what.fraction,
            split=what.split,
            by=what.by,
            seed=what.seed,
        )
        written = []
        for number, folder in enumerate(places.values()):
            tables = chosen_rows(opened, parts, number)
            if what.shuffle:
                count = sum(int((numbers == number).sum()) for numbers in parts)
                tables = shuffled_rows(tables, count, (what.seed, 3, number), folder / _WORK)
            written.append(
                write_shards(
                    folder / "shards",
                    tables,
                    metadata,
                    contract["strength"],
                    rows_per_shard=what.rows_per_shard,
                    rows_per_group=min(what.rows_per_group, what.rows_per_shard),
                )
            )
        sets = []
        for (part, folder), (files, summary) in zip(places.items(), written, strict=True):
            done_here = what.operations(part, len(opened))
            certificate = derived_certificate(
                folder, certificates, files, done_here, summary, holds="shards", checked_by=checked_by
            )
            sets.append(DerivedSet(part, str(certificate.path), summary.rows.rows, len(files)))
        return sets


def _done_before(
    out: Path, places: Mapping[str, Path], sources: Sequence[Certificate], what: Derivation
) -> list[DerivedSet] | None:
    """Return the sets where all are there already, as they would become; None where none is there.

    Raises:
        DeriveError: the folder holds a certificate of something else, or one that no longer holds.
    """
    held = [folder for folder in {out, *places.values()} if (folder / FILE_NAME).exists()]
    if not held:
        return None
    out_sets = []
    for part, folder in places.items():
        if not (folder / FILE_NAME).exists():
            continue  # killed between two certificates: what is there is checked, then done again
        found = read_certificate(folder)
        derivation = found.predicate.get("derivation")
        wanted = {
            "operations": [
                {"name": o.name, "parameters": dict(o.parameters)}
                for o in what.operations(part, len(sources))
            ],
            "sources": [source_entry(folder, source) for source in sources],
        }
        same = derivation is not None and all(derivation[key] == wanted[key] for key in wanted)
        if not same or not verify(folder).ok:
            raise _other(found.path, "it is not of this derivation" if not same else "it no longer holds")
        rows = sum(shard.rows for shard in found.shards)
        out_sets.append(
            DerivedSet(part, str(found.path), rows, len(found.shards), "derived before, unchanged")
        )
    if len(out_sets) == len(places):
        return out_sets
    if out in held and out not in places.values():
        raise _other(out / FILE_NAME, "it is that of a set, and a split was asked for")
    for folder in held:
        (folder / FILE_NAME).unlink()
    return None


def _other(path: Path, why: str) -> DeriveError:
    return DeriveError(
        "the folder holds another certificate",
        where=str(path),
        why=why,
        remedy="derive into a new folder, or take the old certificate away first",
    )


def _stated(opened: Sequence[CertifiedSet]) -> dict[str, str]:
    """Return the format that all shards state, and the constants that all state alike.

    Raises:
        DeriveError: they state several formats; rows of two can't share a shard.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from contracts.verified_fs import CertifiedFile

    format_key, constants_key = f"{METADATA_PREFIX}format", f"{METADATA_PREFIX}constants"
    formats: dict[str, Path] = {}
    constants: dict[str, Any] | None = None
    for source in opened:
        for shard in source.certificate.shards:
            path = source.certificate.path_of(shard)
            with CertifiedFile(path, shard.digest) as file:
                file.seek(shard.digest.segments[-1].offset)
                metadata = pq.read_schema(pa.BufferReader(file.read())).metadata or {}
            formats[metadata.get(format_key.encode(), b"").decode()] = path
            own = json.loads(metadata.get(constants_key.encode(), b"{}"))
            alike = own.items() if constants is None else constants.items() & own.items()
            constants = dict(alike)
    if len(formats) > 1:
        raise DeriveError(
            "the sources hold rows of several formats",
            where=", ".join(f"{name}: {path}" for name, path in sorted(formats.items())),
            remedy="derive from each format's sets apart",
        )
    return {format_key: next(iter(formats)), constants_key: json.dumps(constants or {}, sort_keys=True)}


def _clear(folder: Path) -> None:
    """Take away what an interrupted run left in a part's folder; files of others are refused."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.rmtree(folder / _WORK, ignore_errors=True)
    clear_temporary(folder, "shards")
    for place in (folder, folder / "shards"):
        for path in sorted(place.glob("*")):
            if path.is_dir():
                continue
            if path.suffix.lower() not in SHARD_SUFFIXES:
                continue
            try:
                ours = DERIVED_KEY.encode() in (pq.read_schema(path).metadata or {})
            except (pa.ArrowException, OSError):
                ours = False
            if not ours:
                raise DeriveError(
                    "the folder holds a shard that deriving did not write",
                    where=str(path),
                    remedy="derive into a new folder",
                )
            path.unlink()
