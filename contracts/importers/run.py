"""The import: files in, shards out, and an account of every record.

Place in the flow: the importers' entry. Imports this package and `contracts.held`.

    DIR/shards/part-00000.parquet   the rows
    DIR/refused.jsonl               each record that became none: file, line, kind, reason
    DIR/import.json                 what came of it, written last: until then the import has not ended
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from contracts.digests import prompt_sha256
from contracts.held import folder_held
from contracts.importers import conversations, speculators
from contracts.importers.base import ImportFault, ImportOptions, ImportResult, Place, Refused, Unfit
from contracts.importers.source import expand, records
from contracts.importers.writer import ShardWriter
from contracts.shard import CONSTANT_COLUMNS, UNKNOWN, Row, ShardError, replace_file, seal, table_of

Progress = Callable[[str, int, int], None]
"""Called with (file, records so far, rows so far)."""

MANIFEST, REFUSED = "import.json", "refused.jsonl"
SHOWN = 20
BATCH, TELL_EVERY = 256, 512


class Reader(Protocol):
    """Makes the rows of one record, or raises `Unfit`; names the keys that it has no place for."""

    def __call__(
        self, record: Mapping[str, Any], place: Place, options: ImportOptions, unread: set[str], /
    ) -> list[Row]: ...


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of file: what it is, its strength, what its files end in, and who reads a record."""

    meaning: str
    strength: str
    suffixes: tuple[str, ...]
    read: Reader


_TEXTS = (".jsonl", ".json")
_TABLES = (".parquet", ".arrow")
SOURCES: Mapping[str, Source] = {
    "specforge": Source(
        "SpecForge's regeneration output, its _error and _skipped files counted with it",
        "text",
        (".jsonl",),
        conversations.rows_of,
    ),
    "speculators": Source(
        "speculators' regeneration output, or any file of input_ids and loss_mask",
        "token",
        (*_TEXTS, *_TABLES),
        speculators.rows_of,
    ),
    "torchspec": Source(
        "conversations as TorchSpec, EAGLE and ShareGPT have them: role/content or from/value",
        "text",
        (*_TEXTS, *_TABLES),
        conversations.rows_of,
    ),
    "automodel": Source(
        "Automodel's parquet folder (or JSONL) of messages; Model-Optimizer's JSONL too",
        "text",
        (*_TEXTS, *_TABLES),
        conversations.rows_of,
    ),
}


def import_files(
    kind: str,
    paths: Iterable[Path | str],
    out: Path | str,
    options: ImportOptions,
    *,
    on_progress: Progress | None = None,
) -> ImportResult:
    """Read files of one kind into shards under `out`.

    Raises:
        ImportFault: nothing to read, no tokenizer for ids, or the folder holds an import already.
    """
    source, out = SOURCES[kind], Path(out)
    files = expand([Path(path) for path in paths], source.suffixes)
    if kind in SIBLINGS:
        files = list(_with_siblings(files, SIBLINGS[kind]))
    missing = next((path for path in files if not path.is_file()), None)
    if missing is not None:
        raise ImportFault("there is no such file", where=str(missing), remedy="check the path")
    if source.strength == "token" and options.codec is None:
        raise ImportFault(
            "ids can't be read without their tokenizer",
            why="the fields of each row are derived from its ids",
            remedy="pass --tokenizer, the target model's folder",
        )
    with folder_held(out):
        _refuse_used(out)
        return _import(source, kind, files, out, options, on_progress)


def _refuse_used(out: Path) -> None:
    if (out / MANIFEST).exists():
        raise ImportFault(
            "the folder holds an import already", where=str(out / MANIFEST), remedy="name another folder"
        )
    shards = out / "shards"
    begun = (out / REFUSED).exists() or (out / f".{MANIFEST}.begun").exists()
    found = sorted(shards.glob("*.parquet")) if shards.is_dir() else []
    if found and not begun:
        raise ImportFault(
            "the folder holds shards that no import wrote",
            where=str(found[0]),
            remedy="name another folder",
        )
    for left in (*found, *(shards.glob(".*.tmp") if shards.is_dir() else ())):
        left.unlink()  # what an interrupted import left
    (out / f".{MANIFEST}.begun").touch()


SIBLINGS: Mapping[str, tuple[str, ...]] = {
    "specforge": ("_error.jsonl", "_skipped.jsonl"),
    "speculators": (".errors.jsonl", ".errors.json"),
}
"""What the names of the files end in that a regeneration writes beside its output."""


def _with_siblings(files: list[Path], endings: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files, each with the ones of what failed that were written beside it."""
    told: set[Path] = set()
    for path in files:
        for one in (path, *(path.with_name(f"{path.stem}{ending}") for ending in endings)):
            if one not in told and (one in files or one.is_file()):
                told.add(one)
                yield one


@dataclass(slots=True)
class _Told:
    """What one record came to: its rows, or its kind and reason."""

    place: Place
    rows: list[Row] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    refused: tuple[str, str] | None = None


def _import(
    source: Source, kind: str, files: list[Path], out: Path, options: ImportOptions, tell: Progress | None
) -> ImportResult:
    counts: Counter[str] = Counter()
    unread: Counter[str] = Counter()
    refused: list[Refused] = []
    unknown: set[str] = set()
    samples: Counter[tuple[str, bytes]] = Counter()
    writer = ShardWriter(out / "shards", format_name=options.format.name, strength=source.strength)

    def settle(batch: list[_Told], handle: Any) -> None:
        _refuse_unfitting(batch, source.strength)
        for told in batch:
            counts[told.refused[0] if told.refused else "imported"] += 1
            if told.refused:
                one = Refused(str(told.place.file), told.place.number, *told.refused)
                handle.write(json.dumps(asdict(one), ensure_ascii=False).encode("utf-8", "replace") + b"\n")
                if len(refused) < SHOWN:
                    refused.append(one)
                continue
            unread.update(told.unread)
            for row in told.rows:
                writer.take(row)
                unknown.update(name for name in (*CONSTANT_COLUMNS, "finish_reason") if row[name] == UNKNOWN)
        batch.clear()

    def fill(handle: Any) -> None:
        batch: list[_Told] = []
        for path in files:
            dataset = options.dataset or path.stem
            for place, record in records(path, dataset):
                if isinstance(record, Unfit) and _is_empty_sibling(path, SIBLINGS.get(kind, ())):
                    continue
                counts["records"] += 1
                batch.append(_taken(source, kind, record, place, options, samples))
                if sum(len(told.rows) for told in batch) >= BATCH or len(batch) >= TELL_EVERY:
                    settle(batch, handle)
                    if tell is not None:
                        tell(str(path), counts["records"], writer.rows)
        settle(batch, handle)

    with writer:
        replace_file(out / REFUSED, fill)
    if tell is not None and files:
        tell(str(files[-1]), counts["records"], writer.rows)
    result = ImportResult(
        folder=str(out),
        format=options.format.name,
        strength=source.strength,
        records=counts["records"],
        imported=counts["imported"],
        rows=writer.rows,
        refused=counts["refused"],
        failed=counts["failed"],
        skipped=counts["skipped"],
        shards=tuple(path.name for path in writer.paths),
        unknown=tuple(sorted(unknown)),
        unread=dict(sorted(unread.items(), key=lambda one: (-one[1], one[0]))[:SHOWN]),
        first_refused=tuple(refused),
    )
    text = json.dumps({**asdict(result), "from": kind, "files": [str(f) for f in files]}, indent=1) + "\n"
    replace_file(out / MANIFEST, lambda handle: handle.write(text.encode("utf-8", "replace")))
    (out / f".{MANIFEST}.begun").unlink(missing_ok=True)
    return result


def _is_empty_sibling(path: Path, endings: tuple[str, ...]) -> bool:
    """Tell whether it is a regeneration's list of failures, of which there were none."""
    return path.name.endswith(endings) and path.stat().st_size == 0


def _taken(
    source: Source,
    kind: str,
    record: Mapping[str, Any] | Unfit,
    place: Place,
    options: ImportOptions,
    samples: Counter[tuple[str, bytes]],
) -> _Told:
    """Return a record's rows, sealed, or what it came to instead."""
    told = _Told(place)
    if isinstance(record, Unfit):
        told.refused = ("refused", str(record))
        return told
    if kind == "specforge":
        named = next((w for w in ("error", "skipped") if place.file.stem.endswith(f"_{w}")), None)
        said = next(conversations.specforge_status(record), None)
        if said is not None or named is not None:
            word = {"error": "failed", "skipped": "skipped", None: ""}[named]
            reason = str(record.get("error") or record.get("status") or "no reason told")[:200]
            told.refused = said or (word, reason)
            return told
    if kind == "speculators" and (why := speculators.failed(record)) is not None:
        told.refused = ("failed", why)
        return told
    try:
        rows = source.read(record, place, options, told.unread)
        for row in rows:
            if record.get("primary_id") is not None:
                key = (row["conversation_id"], prompt_sha256(row))
                row["sample_index"] = samples[key]
                samples[key] += 1
        told.rows = [seal(row) for row in rows]
    except Unfit as error:
        told.refused = ("refused", str(error))
    except ShardError as error:
        told.refused = ("refused", f"{error.what}: {' '.join(error.why.split())[:200]}")
    return told


def _refuse_unfitting(batch: list[_Told], strength: str) -> None:
    """Refuse the records whose rows do not fit the schema; one look at all of them where all do."""
    rows = [row for told in batch for row in told.rows]
    if not rows or _misfit(rows, strength) is None:
        return
    for told in batch:
        found = _misfit(told.rows, strength) if told.rows else None
        if found is not None:
            told.refused = ("refused", f"{found.what}: {' '.join(found.why.split())[:200]}")


def _misfit(rows: list[Row], strength: str) -> ShardError | None:
    ids = ("prompt_token_ids", "response_token_ids")  # checked while they were read, and most of the work
    try:
        table_of([{**row, **{name: row[name] and row[name][:1] for name in ids}} for row in rows], strength)
    except ShardError as error:
        return error
    return None
