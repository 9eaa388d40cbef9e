"""Files and folders of prompts: found, fingerprinted, read row by row as they stand.

Place in the flow: under `harness.recording.prompts`. Imports `contracts.errors` and `rowforms` of this
package; pyarrow inside functions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from contracts.errors import ShardgateError
from harness.recording.rowforms import NotAPrompt


@dataclass(frozen=True, slots=True)
class Source:
    """Prompts on disk. `digest` is SHA-256 over the files' bytes, in order.

    Of the kind `quarantine` are rows of shards that are to be generated again.
    """

    path: Path
    files: tuple[Path, ...]
    kind: Literal["jsonl", "parquet", "arrow", "quarantine"]
    digest: str

    @property
    def name(self) -> str:
        """Return what the rows call it: the file's or folder's name."""
        return self.path.name


def find_source(path: Path) -> Source:
    """Return the files that a path stands for.

    Raises:
        ShardgateError: nothing there that prompts are read from.
    """
    if path.is_dir():
        files, kind = _in_folder(path)
    else:
        files, kind = [path], _kind(path)
    return Source(path, tuple(files), kind, digest_of(files))


def digest_of(files: Sequence[Path]) -> str:
    """Return SHA-256 (hex) over the files' own, in order.

    Raises:
        ShardgateError: one of them can't be read.
    """
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        except OSError as error:
            raise ShardgateError(
                what="the prompts can't be read", where=str(file), why=error.strerror or str(error)
            ) from error
    return digest.hexdigest()


_SUFFIXES: Mapping[str, Literal["jsonl", "parquet", "arrow"]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
}


def _kind(path: Path) -> Literal["jsonl", "parquet", "arrow"]:
    if path.suffix not in _SUFFIXES:
        raise ShardgateError(
            what="the prompts are of no kind that is read",
            where=str(path),
            why=f"its name ends with {path.suffix!r}",
            remedy="give a .jsonl file (one JSON object a line), .parquet, .arrow, or a folder of a data set",
        )
    return _SUFFIXES[path.suffix]


def _in_folder(path: Path) -> tuple[list[Path], Literal["jsonl", "parquet", "arrow"]]:
    splits = path / "dataset_dict.json"
    if splits.is_file():
        try:
            names = [str(path / name) for name in json.loads(splits.read_text("utf-8"))["splits"]]
        except (ValueError, KeyError, TypeError):
            names = []
        raise ShardgateError(
            what="the folder holds several splits of a data set",
            where=str(path),
            why="a run records one set of prompts",
            remedy=f"give one of them: {', '.join(names) or 'a folder inside it'}",
        )
    state = path / "state.json"
    if state.is_file():
        try:
            told = json.loads(state.read_text("utf-8"))
            files = [path / entry["filename"] for entry in told["_data_files"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ShardgateError(
                what="the data set's state can't be read", where=str(state), why=str(error)
            ) from error
        if told.get("_indices_files"):
            raise ShardgateError(
                what="the data set is a selection of rows of another one",
                where=str(state),
                why="its indices are kept apart from its rows",
                remedy="write it flat: dataset.flatten_indices().save_to_disk(FOLDER)",
            )
        return files, "arrow"
    for suffix, kind in _SUFFIXES.items():
        if found := sorted(path.glob(f"*{suffix}")):
            return found, kind
    raise ShardgateError(
        what="the folder holds no prompts",
        where=str(path),
        why=f"no file in it ends with {', '.join(_SUFFIXES)}",
        remedy="give a file, or a folder that datasets' save_to_disk wrote",
    )


def raw_rows(source: Source) -> Iterator[tuple[str, Any]]:
    """Yield each row with where it stands; a line that is no JSON object as the error that says so."""
    for file in source.files:
        if source.kind == "jsonl":
            yield from _lines(file)
        else:
            yield from _table_rows(file, source.kind)


def _lines(file: Path) -> Iterator[tuple[str, Any]]:
    with file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            where = f"{file}:{number}"
            if not line.strip():
                continue
            try:
                yield where, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield where, NotAPrompt(f"the line is no JSON: {error}")


def _table_rows(file: Path, kind: str) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    number = 0
    try:
        if kind == "parquet":
            with parquet.ParquetFile(file) as opened:
                for batch in opened.iter_batches(batch_size=256):
                    for row in batch.to_pylist():
                        yield f"{file}, row {number}", without_nulls(row)
                        number += 1
            return
        with pa.memory_map(str(file)) as mapped, _arrow(mapped) as reader:
            for batch in reader:
                for row in batch.to_pylist():
                    yield f"{file}, row {number}", without_nulls(row)
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise ShardgateError(
            what="the prompts can't be read", where=f"{file}, row {number}", why=str(error)
        ) from error


def _arrow(mapped: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(mapped)  # what `datasets` writes
    except pa.ArrowInvalid:
        mapped.seek(0)
        opened = pa.ipc.open_file(mapped)
        batches = (opened.get_batch(n) for n in range(opened.num_record_batches))
        return pa.RecordBatchReader.from_batches(opened.schema, batches)


def without_nulls(value: Any) -> Any:
    """Drop null entries of objects: a table gives every struct all keys that any of them has."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
