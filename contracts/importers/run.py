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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from contracts.held import folder_held
from contracts.importers import conversations, speculators
from contracts.importers.base import ImportFault, ImportOptions, ImportResult, Place, Refused, Unfit
from contracts.importers.source import expand, records
from contracts.importers.writer import ShardWriter
from contracts.shard import CONSTANT_COLUMNS, UNKNOWN, Row, ShardError, replace_file, seal

Progress = Callable[[str, int, int], None]
"""Called with (file, records so far, rows so far)."""

MANIFEST, REFUSED = "import.json", "refused.jsonl"
SHOWN = 20
TELL_EVERY = 512


class Reader(Protocol):
    """Makes the rows of one record, or raises `Unfit`."""

    def __call__(self, record: Mapping[str, Any], place: Place, options: ImportOptions, /) -> list[Row]: ...


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of file: what it is, its strength, what its files end in, and who reads a record."""

    meaning: str
    strength: str
    suffixes: tuple[str, ...]
    read: Reader


_TEXTS = (".jsonl", ".json")
SOURCES: Mapping[str, Source] = {
    "specforge": Source(
        "SpecForge's regeneration output, its _error and _skipped files counted with it",
        "text",
        (".jsonl",),
        conversations.rows_of,
    ),
    "speculators": Source(
        "speculators' regeneration output, or any JSONL of input_ids and loss_mask",
        "token",
        _TEXTS,
        speculators.rows_of,
    ),
    "torchspec": Source(
        "conversations as TorchSpec, EAGLE and ShareGPT have them: role/content or from/value",
        "text",
        (*_TEXTS, ".parquet"),
        conversations.rows_of,
    ),
    "automodel": Source(
        "Automodel's parquet folder (or JSONL) of messages; Model-Optimizer's JSONL too",
        "text",
        (*_TEXTS, ".parquet"),
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
    if kind == "specforge":
        files = list(_with_siblings(files))
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
    for left in found:
        left.unlink()  # what an interrupted import left
    (out / f".{MANIFEST}.begun").touch()


def _with_siblings(files: Iterable[Path]) -> Iterator[Path]:
    """Yield SpecForge's files, each with the `_error` and `_skipped` ones that were written beside it."""
    told: set[Path] = set()
    files = list(files)
    for path in files:
        for one in (path, *(path.with_name(f"{path.stem}_{word}.jsonl") for word in ("error", "skipped"))):
            if one not in told and (one in files or one.is_file()):
                told.add(one)
                yield one


def _import(
    source: Source, kind: str, files: list[Path], out: Path, options: ImportOptions, tell: Progress | None
) -> ImportResult:
    counts: Counter[str] = Counter()
    refused: list[Refused] = []
    unknown: set[str] = set()
    samples: Counter[str] = Counter()
    writer = ShardWriter(out / "shards", format_name=options.format.name, strength=source.strength)

    def fill(handle: Any) -> None:
        for path in files:
            dataset = options.dataset or path.stem
            for place, record in records(path, dataset):
                counts["records"] += 1
                reason = _take(source, kind, record, place, options, writer, unknown, samples)
                counts[reason[0] if reason else "imported"] += 1
                if reason:
                    told = Refused(str(path), place.number, *reason)
                    handle.write(
                        json.dumps(asdict(told), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
                    )
                    if len(refused) < SHOWN:
                        refused.append(told)
                if tell is not None and counts["records"] % TELL_EVERY == 0:
                    tell(str(path), counts["records"], writer.rows)

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
        first_refused=tuple(refused),
    )
    text = json.dumps({**asdict(result), "from": kind, "files": [str(f) for f in files]}, indent=1) + "\n"
    replace_file(out / MANIFEST, lambda handle: handle.write(text.encode("utf-8", "replace")))
    (out / f".{MANIFEST}.begun").unlink(missing_ok=True)
    return result


def _take(
    source: Source,
    kind: str,
    record: Mapping[str, Any] | Unfit,
    place: Place,
    options: ImportOptions,
    writer: ShardWriter,
    unknown: set[str],
    samples: Counter[str],
) -> tuple[str, str] | None:
    """Write a record's rows; return what it came to instead, and why."""
    if isinstance(record, Unfit):
        return "refused", str(record)
    if kind == "specforge":
        named = next((w for w in ("error", "skipped") if place.file.stem.endswith(f"_{w}")), None)
        told = next(conversations.specforge_status(record), None)
        if told is not None or named is not None:
            word = {"error": "failed", "skipped": "skipped", None: ""}[named]
            reason = str(record.get("error") or record.get("status") or "no reason told")[:200]
            return told or (word, reason)
    try:
        rows = source.read(record, place, options)
        for row in rows:
            if record.get("primary_id") is not None:
                row["sample_index"] = samples[row["conversation_id"]]
                samples[row["conversation_id"]] += 1
            _fits(seal(row), source.strength)
    except Unfit as error:
        return "refused", str(error)
    except ShardError as error:
        return "refused", f"{error.what}: {' '.join(error.why.split())[:200]}"
    for row in rows:
        writer.take(seal(row))
        unknown.update(name for name in (*CONSTANT_COLUMNS, "finish_reason") if row[name] == UNKNOWN)
    return None


def _fits(row: Row, strength: str) -> None:
    """Raise `ShardError` where a row does not fit the schema."""
    from contracts.importers.writer import table_of

    ids = ("prompt_token_ids", "response_token_ids")  # checked while they were read, and most of the work
    table_of([{**row, **{name: row[name] and row[name][:1] for name in ids}}], strength)
