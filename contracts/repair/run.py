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
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.formats import Format
from contracts.held import folder_held
from contracts.importers.writer import ShardWriter
from contracts.losses import ASSUMED
from contracts.records import Profile, Severity
from contracts.repair.assume import assumed
from contracts.repair.derive import derived, suspect
from contracts.repair.inputs import Input, Strength, looked_at, row_errors, rows_of, tables_of
from contracts.repair.restore import UNREADABLE, restored
from contracts.rules import RULES
from contracts.shard import METADATA_PREFIX, Row, ShardError, replace_file, table_of
from contracts.tokens import Codec

Progress = Callable[[str, int, int], None]
"""Called with (file, bad rows looked at, rows mended)."""

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
        for stale in out.rglob(".*.tmp"):
            stale.unlink()  # what a repair that was killed left
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
            found = looked_at(path, codec, profile, strength)
            if isinstance(found, str):
                counts["files"] += 1
                shown.append(Left(str(path), None, None, found, ()))
                continue
            with _mended(found, out, codec, profile, strength, assume, tell, counts["mended"]) as mended:
                parts = _sorted_out(found, mended, out, name, strength, log)
            counts.update(parts.counts)
            proofs.update(mended.proofs.values())
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


@dataclass(slots=True)
class _Mended:
    """Rows by number: what proves the mended ones, and why others were left. The mended rows lie in `trial`,
    in the order of `places`; of those only the ones in `proofs` count."""

    trial: Path
    places: list[int] = field(default_factory=list)
    proofs: dict[int, str] = field(default_factory=dict)
    left: dict[int, str] = field(default_factory=dict)
    losses: set[str] = field(default_factory=set)

    def rows(self) -> Iterator[Row]:
        """Yield the mended rows that count, in order."""
        if self.proofs:
            for place, row in rows_of(self.trial, None):
                if self.places[place] in self.proofs:
                    yield row


@contextmanager
def _mended(
    file: Input,
    out: Path,
    codec: Codec | None,
    profile: Profile,
    strength: Strength,
    assume: tuple[str, ...],
    tell: Progress | None,
    before: int,
) -> Iterator[_Mended]:
    """Mend a file's bad rows into a shard of their own, and leave what breaks an error rule there."""
    made = _Mended(out / f".{file.path.stem}.trial.tmp")
    try:
        with ShardWriter(
            out,
            format_name=file.format.name,
            strength=strength,
            single=made.trial.name,
            metadata=file.constants,
        ) as writer:
            for number, row in rows_of(file.path, set(file.errors)):
                mended, told = _tried(number, row, file, codec, strength, assume)
                if mended is None:
                    made.left[number] = told
                else:
                    writer.take(mended)
                    made.places.append(number)
                    made.proofs[number] = told
                    made.losses.update(mended["losses"])
                if tell is not None:
                    done = len(made.proofs)
                    tell(str(file.path), done + len(made.left), before + done)
        if made.places:
            _check_again(made, codec, profile, strength)
        yield made
    finally:
        made.trial.unlink(missing_ok=True)


def _tried(
    number: int, row: Row, file: Input, codec: Codec | None, strength: Strength, assume: tuple[str, ...]
) -> tuple[Row | None, str]:
    """Return a mended row and its proof, or None and why it is left."""
    if number in file.outside:
        return None, "a rule over the whole set is broken, which no change of the row mends"
    try:
        mended, told = _mend(row, file.format, codec, assume)
    except UNREADABLE as error:
        return None, f"the row can't be read: {' '.join(str(error).split())[:120]}"
    if mended is None:
        return None, told
    if mended == row:
        return None, "what its ids determine is right; something else is not"
    try:
        table_of([mended], strength)
    except ShardError as error:
        return None, f"mended, it does not fit the schema: {error.why[:120]}"
    return mended, told


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


def _check_again(made: _Mended, codec: Codec | None, profile: Profile, strength: Strength) -> None:
    """Audit the mended rows; what still breaks an error rule of its own is left."""
    from contracts.run import audit

    found = audit([made.trial], codec=codec, profile=profile, strength=strength)
    if found.shards[0].refused:
        told = next(f for f in found.findings if f.row is None and f.severity is Severity.ERROR)
        made.left.update(dict.fromkeys(made.proofs, f"mended, its file breaks {told.rule}: {told.message}"))
        made.proofs.clear()
    broken: dict[int, set[str]] = {}
    for finding in row_errors(found.findings):
        admitted = finding.rule == "mended-on-assumption" or RULES[finding.rule].scope == "set"
        if not admitted:
            broken.setdefault(made.places[finding.row or 0], set()).add(finding.rule)
    for number, rules in broken.items():
        made.proofs.pop(number, None)
        made.left[number] = f"derived anew it still breaks {', '.join(sorted(rules))}; generate the row again"


@dataclass(slots=True)
class _Parts:
    counts: Counter[str] = field(default_factory=Counter)
    left: list[Left] = field(default_factory=list)


def _sorted_out(file: Input, made: _Mended, out: Path, name: str, strength: Strength, log: Any) -> _Parts:
    """Write the rows of one file where they belong; a row that held, or is left, stays as it is."""
    parts = _Parts()
    fmt = file.format.name
    marks = sorted(made.losses & set(ASSUMED)) if made.proofs else []
    metadata = {f"{METADATA_PREFIX}assumed": json.dumps(marks)} if marks else {}
    kept = ShardWriter(out / "shards", format_name=fmt, strength=strength, single=name, metadata=metadata)
    away = ShardWriter(out / "left", format_name=fmt, strength=strength, single=name)
    mended = made.rows()

    def kind(number: int) -> str:
        if number in made.proofs:
            return "mended"
        return "left" if number in made.left or number in file.outside or file.quarantine else "held"

    def fill(listing: Any) -> None:
        for first, table in tables_of(file.path, strength):
            for word, run in groupby(range(first, first + table.num_rows), key=kind):
                numbers = list(run)
                rows = table.slice(numbers[0] - first, len(numbers))
                parts.counts[word] += len(numbers)
                if word == "held":
                    kept.take_table(rows)
                elif word == "left":
                    away.take_table(rows)
                    for number, sample in zip(numbers, rows["sample_id"].to_pylist(), strict=True):
                        one = _left(file, made, number, sample)
                        _line(listing, asdict(one))
                        if len(parts.left) < SHOWN:
                            parts.left.append(one)
                else:
                    for number, row in zip(numbers, rows.to_pylist(), strict=True):
                        kept.take(again := next(mended))
                        _line(log, _changed(file, made, number, row, again))

    with kept, away:
        replace_file(out / "left" / f"{Path(name).stem}.left.jsonl", fill)
    return parts


def _rules(file: Input, number: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*file.errors.get(number, ()), *file.outside.get(number, ()))))


def _changed(file: Input, made: _Mended, number: int, row: Row, again: Row) -> dict[str, Any]:
    return {
        "shard": str(file.path),
        "row": number,
        "sample_id": row["sample_id"],
        "proof": made.proofs[number],
        "columns": [key for key in row if row[key] != again[key]],
        "rules": _rules(file, number),
    }


def _left(file: Input, made: _Mended, number: int, sample_id: str | None) -> Left:
    outside = ", ".join(sorted(set(file.outside.get(number, ()))))
    reason = made.left.get(number) or (
        f"the set or the file is at fault, not the row: {outside}"
        if outside
        else "the row breaks no rule under this profile: audit it again with its set"
    )
    return Left(str(file.path), number, sample_id, reason, _rules(file, number))


def _line(handle: Any, value: Mapping[str, Any]) -> None:
    handle.write(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
