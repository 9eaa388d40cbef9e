"""The repair: shards or a quarantine in, the rows that hold now out, and an account of every row.

Place in the flow: repair's entry. Imports this package, the audit, and the importers' writer.

    DIR/shards/NAME.parquet    the rows that held and the mended ones, in order; of a quarantine the mended
    DIR/left/NAME.parquet      the rows that were left as they are, and NAME.left.jsonl with the reasons
    DIR/repairs.jsonl          each mended row: what proves it, and which columns were changed
    DIR/repair.json            the account, written last

A row is only called mended where the audit, run again over the mended rows, finds no error in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from contracts.errors import ShardgateError
from contracts.formats import Format, format_named
from contracts.held import folder_held
from contracts.importers.writer import ShardWriter
from contracts.losses import ASSUMED
from contracts.records import Finding, Profile, Severity
from contracts.repair.assume import assumed
from contracts.repair.derive import derived, suspect
from contracts.repair.restore import UNREADABLE, restored
from contracts.rules import RULES
from contracts.shard import METADATA_PREFIX, Row, ShardError, replace_file, table_of
from contracts.tokens import Codec

Progress = Callable[[str, int, int], None]
"""Called with (file, bad rows looked at, rows mended)."""
Strength = Literal["token", "text"]

BATCH = 256
REPAIRS, ACCOUNT = "repairs.jsonl", "repair.json"
SHOWN = 20


class RepairFault(ShardgateError):
    """The repair was asked for something that can't be done."""


@dataclass(frozen=True, slots=True)
class Left:
    """A row that was left as it is: where it lies, and why."""

    shard: str
    row: int | None
    sample_id: str | None
    reason: str
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What a repair came to: rows = held + mended + left. `files_left` could not be read as shards at all."""

    folder: str
    rows: int
    held: int
    mended: int
    left: int
    files_left: int
    by_proof: Mapping[str, int]
    shards: tuple[str, ...]
    first_left: tuple[Left, ...] = ()


@dataclass(slots=True)
class _File:
    """One input: its rows' own broken rules, and those of the set or the file that sent a row away."""

    path: Path
    format: Format
    quarantine: bool
    constants: dict[str, str]
    errors: dict[int, list[str]] = field(default_factory=dict)
    outside: dict[int, list[str]] = field(default_factory=dict)


def repair(
    paths: Iterable[Path | str],
    out: Path | str,
    *,
    codec: Codec | None,
    profile: Profile | str = Profile.DRAFT,
    strength: Strength = "token",
    assume: tuple[str, ...] = (),
    on_progress: Progress | None = None,
) -> RepairResult:
    """Mend what can be proven, and what `assume` names; write all rows, each where it belongs.

    Raises:
        RepairFault: no tokenizer for rows with ids, assumptions about rows with ids, or a folder in use.
    """
    from contracts.run import expand

    out, profile = Path(out), Profile(profile)
    if strength == "token" and codec is None:
        raise RepairFault(
            "ids prove nothing without their tokenizer", remedy="pass --tokenizer, the target model's folder"
        )
    if assume and strength == "token":
        raise RepairFault(
            "an assumption can only mend rows without ids",
            why="what ids say is proven or left alone",
            remedy="leave --assume out, or repair shards of text with --strength text",
        )
    files = expand(paths)
    with folder_held(out):
        used = next((path for path in sorted(out.iterdir()) if path.name != BEGUN), None)
        if used is not None and not (out / BEGUN).exists():
            raise RepairFault("the folder is not empty", where=str(used), remedy="name a new folder")
        (out / BEGUN).touch()
        return _repair(files, out, codec, profile, strength, assume, on_progress)


BEGUN = ".repair-begun"


def _repair(
    files: list[Path],
    out: Path,
    codec: Codec | None,
    profile: Profile,
    strength: Strength,
    assume: tuple[str, ...],
    tell: Progress | None,
) -> RepairResult:
    counts: Counter[str] = Counter()
    proofs: Counter[str] = Counter()
    shown: list[Left] = []
    written: list[str] = []
    names: Counter[str] = Counter()

    def fill(log: Any) -> None:
        for path in files:
            names[path.name] += 1
            name = path.name if names[path.name] == 1 else f"{path.stem}.{names[path.name]}.parquet"
            found = _looked_at(path, codec, profile, strength)
            if isinstance(found, str):
                counts["files"] += 1
                shown.append(Left(str(path), None, None, found, ()))
                continue
            mended = _mended(found, out, codec, profile, strength, assume, tell, counts["mended"])
            parts = _sorted_out(found, mended, out, name, strength, log)
            counts.update(parts.counts)
            proofs.update(proof for _, proof in mended.good.values())
            shown.extend(parts.left[: SHOWN - len(shown)])
            if parts.counts["held"] + parts.counts["mended"]:
                written.append(f"shards/{name}")

    replace_file(out / REPAIRS, fill)
    result = RepairResult(
        folder=str(out),
        rows=counts["held"] + counts["mended"] + counts["left"],
        held=counts["held"],
        mended=counts["mended"],
        left=counts["left"],
        files_left=counts["files"],
        by_proof=dict(sorted(proofs.items())),
        shards=tuple(written),
        first_left=tuple(shown),
    )
    text = json.dumps(asdict(result), indent=1) + "\n"
    replace_file(out / ACCOUNT, lambda handle: handle.write(text.encode("utf-8", "replace")))
    (out / BEGUN).unlink(missing_ok=True)
    return result


def _looked_at(path: Path, codec: Codec | None, profile: Profile, strength: Strength) -> _File | str:
    """Audit one file; return its rows' errors, or why it can't be repaired as a file."""
    from contracts.run import audit

    found = audit([path], codec=codec, profile=profile, strength=strength)
    if found.shards[0].refused:
        told = next(f for f in found.findings if f.row is None and f.severity is Severity.ERROR)
        return f"{told.rule}: {told.message}"
    import pyarrow.parquet as pq

    metadata = pq.read_schema(path).metadata or {}
    fmt = format_named(metadata.get(f"{METADATA_PREFIX}format".encode(), b"").decode("utf-8", "replace"))
    if fmt is None:
        return "format-unknown: the file's format is not one that shardgate knows"
    listing = path.with_name(f"{path.stem}.findings.jsonl")
    key = f"{METADATA_PREFIX}constants"
    constants = {key: metadata.get(key.encode(), b"{}").decode("utf-8", "replace")}
    file = _File(path, fmt, listing.is_file(), constants)
    for finding in _row_errors(found.findings):
        where = file.outside if RULES[finding.rule].scope == "set" else file.errors
        where.setdefault(finding.row or 0, []).append(finding.rule)
    if file.quarantine:
        _read_listing(listing, file)
    return file


def _row_errors(findings: Iterable[Finding]) -> Iterator[Finding]:
    return (f for f in findings if f.row is not None and f.severity is Severity.ERROR)


def _read_listing(listing: Path, file: _File) -> None:
    """Add what the quarantine's own list says of rows by rules over the set or the file."""
    for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            told = json.loads(line)
            rule, row, severity = told["rule"], told["quarantine_row"], told["severity"]
        except (ValueError, KeyError, TypeError):
            continue
        known = RULES.get(rule)
        if severity == "error" and isinstance(row, int) and (known is None or known.scope != "row"):
            file.outside.setdefault(row, []).append(str(rule))


@dataclass(slots=True)
class _Mended:
    """Rows by number: mended (row, proof), and why others were left."""

    good: dict[int, tuple[Row, str]] = field(default_factory=dict)
    left: dict[int, str] = field(default_factory=dict)


def _mended(
    file: _File,
    out: Path,
    codec: Codec | None,
    profile: Profile,
    strength: Strength,
    assume: tuple[str, ...],
    tell: Progress | None,
    before: int,
) -> _Mended:
    made = _Mended()
    for number, row in _rows(file.path, set(file.errors)):
        if number in file.outside:
            made.left[number] = "a rule over the whole set is broken, which no change of the row mends"
            continue
        try:
            mended, told = _mend(row, file.format, codec, assume)
        except UNREADABLE as error:
            mended, told = None, f"the row can't be read: {' '.join(str(error).split())[:120]}"
        if mended is None or mended == row:
            made.left[number] = (
                told if mended is None else "what its ids determine is right; something else is not"
            )
        else:
            made.good[number] = (mended, told)
        if tell is not None:
            tell(str(file.path), len(made.good) + len(made.left), before + len(made.good))
    _check_again(file, made, out, codec, profile, strength)
    return made


def _mend(row: Row, fmt: Format, codec: Codec | None, assume: tuple[str, ...]) -> tuple[Row | None, str]:
    """Return the mended row and its proof, or None and why it is left."""
    if row["response_token_ids"] is None:
        found = assumed(row, fmt, assume)
        if found is not None:
            return found[0], f"assumption {found[1]}"
        asked = "no assumption that was given fits it" if assume else "a text without ids proves nothing"
        return None, f"{asked}; generate the row again"
    assert codec is not None
    if doubt := suspect(row, codec):
        return None, f"the ids are in doubt: {doubt}; generate the row again"
    sealed = restored(row, fmt, codec)
    if sealed is not None and sealed != row:
        return sealed, "digest"
    again, told = derived(row, fmt, codec)
    if again is None:
        return None, f"{told}; generate the row again"
    return again, f"ids, confirmed by {told}"


def _check_again(
    file: _File, made: _Mended, out: Path, codec: Codec | None, profile: Profile, strength: Strength
) -> None:
    """Audit the mended rows; what still breaks an error rule of its own is left."""
    from contracts.run import audit

    fitting = {}
    for number, (row, proof) in made.good.items():
        try:
            table_of([row], strength)
        except ShardError as error:
            made.left[number] = f"mended, it does not fit the schema: {error.why[:120]}"
            continue
        fitting[number] = (row, proof)
    made.good = fitting
    if not made.good:
        return
    trial = out / f".{file.path.stem}.trial.parquet"
    places = list(made.good)
    try:
        with ShardWriter(
            out, format_name=file.format.name, strength=strength, single=trial.name, metadata=file.constants
        ) as writer:
            for row, _ in made.good.values():
                writer.take(row)
        found = audit([trial], codec=codec, profile=profile, strength=strength)
    finally:
        trial.unlink(missing_ok=True)
    broken: dict[int, set[str]] = {}
    for finding in _row_errors(found.findings):
        admitted = finding.rule == "mended-on-assumption" or RULES[finding.rule].scope == "set"
        if not admitted:
            broken.setdefault(places[finding.row or 0], set()).add(finding.rule)
    for number, rules in broken.items():
        del made.good[number]
        made.left[number] = f"derived anew it still breaks {', '.join(sorted(rules))}; generate the row again"


@dataclass(slots=True)
class _Parts:
    counts: Counter[str] = field(default_factory=Counter)
    left: list[Left] = field(default_factory=list)


def _sorted_out(file: _File, made: _Mended, out: Path, name: str, strength: Strength, log: Any) -> _Parts:
    """Write the rows of one file where they belong; a row that held stays as it is."""
    parts = _Parts()
    fmt = file.format.name
    marks = sorted({loss for row, _ in made.good.values() for loss in row["losses"] if loss in ASSUMED})
    metadata = {f"{METADATA_PREFIX}assumed": json.dumps(marks)} if marks else {}
    kept = ShardWriter(out / "shards", format_name=fmt, strength=strength, single=name, metadata=metadata)
    away = ShardWriter(out / "left", format_name=fmt, strength=strength, single=name)

    def fill(listing: Any) -> None:
        for number, row in _rows(file.path, None):
            rules = tuple(dict.fromkeys((*file.errors.get(number, ()), *file.outside.get(number, ()))))
            if number in made.good:
                mended, proof = made.good[number]
                kept.take(mended)
                parts.counts["mended"] += 1
                changed = [key for key in row if row[key] != mended[key]]
                told = {
                    "shard": str(file.path),
                    "row": number,
                    "sample_id": row["sample_id"],
                    "proof": proof,
                    "columns": changed,
                    "rules": rules,
                }
                _line(log, told)
            elif number in made.left or number in file.outside or file.quarantine:
                away.take(row)
                parts.counts["left"] += 1
                outside = ", ".join(sorted(set(file.outside.get(number, ()))))
                reason = made.left.get(number) or (
                    f"the set or the file is at fault, not the row: {outside}"
                    if outside
                    else "the row breaks no rule under this profile: audit it again with its set"
                )
                one = Left(str(file.path), number, row["sample_id"], reason, rules)
                _line(listing, asdict(one))
                if len(parts.left) < SHOWN:
                    parts.left.append(one)
            else:
                kept.take(row)
                parts.counts["held"] += 1

    with kept, away:
        replace_file(out / "left" / f"{Path(name).stem}.left.jsonl", fill)
    return parts


def _line(handle: Any, value: Mapping[str, Any]) -> None:
    handle.write(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def _rows(path: Path, wanted: set[int] | None) -> Iterator[tuple[int, Row]]:
    """Yield (number, row) of a shard, all or the wanted ones, a batch at a time."""
    import pyarrow.parquet as pq

    number = 0
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(batch_size=BATCH):
            if wanted is None or any(number + offset in wanted for offset in range(batch.num_rows)):
                for offset, row in enumerate(batch.to_pylist()):
                    if wanted is None or number + offset in wanted:
                        yield number + offset, row
            number += batch.num_rows
