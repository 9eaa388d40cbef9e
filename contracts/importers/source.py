"""Records of a file, one by one, each with its place: JSON lines, a JSON array, parquet.

Place in the flow: under the importers. Imports `contracts.importers.base`; pyarrow inside functions. Memory
is bounded by a line, or by a batch of a parquet file; only a JSON array is read whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contracts.importers.base import ImportFault, Place, Unfit

Record = tuple[Place, "dict[str, Any] | Unfit"]

LARGEST_LINE = 256 << 20
"""Bytes of a line beyond which it is refused instead of held in memory."""
BATCH_ROWS = 256
_NO_DATA = ("manifest.json", "dataset_info.json", "state.json", "import.json", "refused.jsonl")
"""What lies beside data in folders that trainers, `datasets` and the import itself wrote."""


def expand(paths: list[Path], suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files, folders replaced by what they hold of these suffixes, by name.

    Raises:
        ImportFault: a folder holds none.
    """
    out: list[Path] = []
    for path in paths:
        if not path.is_dir():
            out.append(path)
            continue
        inside = sorted(f for f in path.rglob("*") if f.suffix in suffixes and not f.name.startswith("."))
        data = [f for f in inside if f.name not in _NO_DATA]
        if not data:
            raise ImportFault(
                "the folder holds nothing to import",
                where=str(path),
                why=f"there is no file in it that ends in {', '.join(suffixes)}",
                remedy="give the files themselves, or another --from",
            )
        out.extend(data)
    return list(dict.fromkeys(out))


def records(path: Path, dataset: str) -> Iterator[Record]:
    """Yield each record of a file with its place; what can't be read is an `Unfit` in the record's place.

    Raises:
        OSError: the file can't be opened.
    """
    written_at = datetime.fromtimestamp(int(path.stat().st_mtime), UTC)

    def place(number: int) -> Place:
        return Place(path, number, written_at, dataset)

    if path.suffix == ".parquet":
        yield from ((place(number), record) for number, record in _parquet(path))
    elif _is_array(path):
        yield from ((place(number), record) for number, record in _array(path))
    else:
        yield from ((place(number), record) for number, record in _lines(path))


def _is_array(path: Path) -> bool:
    with path.open("rb") as handle:
        return handle.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def _array(path: Path) -> Iterator[tuple[int, dict[str, Any] | Unfit]]:
    try:
        whole = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        yield 1, Unfit(f"the file begins as a JSON array and is none: {_told(error)}")
        return
    for number, value in enumerate(whole, 1):
        yield number, value if isinstance(value, dict) else Unfit(f"a {type(value).__name__}, not an object")


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | Unfit]]:
    with path.open("rb") as handle:
        number = 0
        while line := handle.readline(LARGEST_LINE):
            number += 1
            if not line.endswith(b"\n") and len(line) == LARGEST_LINE:
                while (rest := handle.readline(LARGEST_LINE)) and not rest.endswith(b"\n"):
                    pass
                yield number, Unfit(f"the line has more than {LARGEST_LINE} bytes")
                continue
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield number, _parsed(line)


def _parsed(line: bytes) -> dict[str, Any] | Unfit:
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return Unfit("text with half a surrogate pair, which no UTF-8 file can hold")
    except (ValueError, RecursionError) as error:
        return Unfit(f"no JSON: {_told(error)}")
    return value if isinstance(value, dict) else Unfit(f"a {type(value).__name__}, not an object")


def _told(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any] | Unfit]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as parquet:
            for batch in parquet.iter_batches(batch_size=BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, OSError, ValueError) as error:
        yield number + 1, Unfit(f"the parquet file can't be read from here on: {_told(error)}")
