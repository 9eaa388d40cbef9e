"""Records of a file, one by one, each with its place: JSON lines, a JSON array, parquet, Arrow.

Place in the flow: under the importers. Imports strict_json of `contracts` and this package's base; pyarrow
inside functions. Memory is bounded by a line, or by a batch of a table; only a JSON array, objects
that go over several lines, and UTF-16 are read whole.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.importers.base import ImportFault, Place, Unfit
from contracts.strict_json import NotJson, loads, values

if TYPE_CHECKING:
    import pyarrow as pa

Record = tuple[Place, "dict[str, Any] | Unfit"]

LARGEST_LINE = 256 << 20
"""Bytes of a line beyond which it is refused instead of held in memory."""
BATCH_ROWS = 256
GZIP = b"\x1f\x8b"
ARROW = (b"ARROW1", b"\xff\xff\xff\xff")
OTHERS = {
    b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it",
    b"BZh": "compressed with bzip2: unpack it",
    b"\xfd7zXZ": "compressed with xz: unpack it",
    b"version ": "a pointer of Git LFS: fetch the file itself",
}
"""First bytes of files that are read as nothing here, and what they are."""
_NO_DATA = ("manifest.json", "dataset_info.json", "state.json", "import.json", "refused.jsonl")
"""What lies beside data in folders that trainers, `datasets` and the import itself wrote."""


def expand(paths: list[Path], suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files, folders replaced by what they hold of these suffixes, by name.

    Raises:
        ImportFault: a folder holds none.
    """
    out: list[Path] = []
    told = (*suffixes, *(f"{suffix}.gz" for suffix in suffixes if suffix in (".json", ".jsonl")))
    for path in paths:
        if not path.is_dir():
            out.append(path)
            continue
        inside = sorted(
            f for f in path.rglob("*") if f.name.endswith(told) and not f.name.startswith(".") and f.is_file()
        )
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

    found = False
    for number, record in _read(path):
        found = True
        yield place(number), record
    if not found:
        yield place(1), Unfit("the file holds no record: it is empty")


def _read(path: Path) -> Iterator[tuple[int, dict[str, Any] | Unfit]]:
    with path.open("rb") as handle:
        first = handle.read(8)
    other = next((what for magic, what in OTHERS.items() if first.startswith(magic)), None)
    if other is not None:
        yield 1, Unfit(f"the file is {other}; give JSON lines, a JSON array, parquet or Arrow")
    elif path.suffix == ".parquet" or first.startswith(b"PAR1"):
        yield from _table(path, _parquet)
    elif path.suffix == ".arrow" or first.startswith(ARROW):
        yield from _table(path, _arrow)
    else:
        number = 0
        try:
            for number, record in _array(path) if _is_array(path) else _lines(path):
                yield number, record
        except (UnicodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield number + 1, Unfit(f"the file can't be read from here on: {_told(error)}")


def _is_array(path: Path) -> bool:
    with _opened(path) as handle:
        return bool(handle.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["))


def _wide(path: Path) -> str | None:
    """Return the encoding of a file that is not UTF-8, by its first bytes; None where they say nothing."""
    with path.open("rb") as handle:
        first = handle.read(4)
    if first[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-32" if first == b"\xff\xfe\0\0" else "utf-16"
    if first.startswith((b"{\0", b"[\0")):
        return "utf-16-le"
    return "utf-16-be" if first[:1] == b"\0" and first[1:2] in (b"{", b"[") else None


def _array(path: Path) -> Iterator[tuple[int, dict[str, Any] | Unfit]]:
    try:
        with _opened(path) as handle:
            whole = loads(handle.read().removeprefix(codecs.BOM_UTF8))
    except NotJson as error:
        yield 1, Unfit(f"the file begins as a JSON array and is none: {error}")
        return
    for number, value in enumerate(whole, 1):
        yield number, _checked(value)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | Unfit]]:
    with _opened(path) as handle:
        number = begun = 0
        while True:
            line = handle.readline(LARGEST_LINE)
            if not line:
                return
            number += 1
            if not line.endswith(b"\n") and len(line) >= LARGEST_LINE:
                while (rest := handle.readline(LARGEST_LINE)) and not rest.endswith(b"\n"):
                    pass
                yield number, Unfit(f"the line has more than {LARGEST_LINE} bytes")
                continue
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            record = _parsed(line)
            if not begun and isinstance(record, Unfit) and line.lstrip().startswith(b"{"):
                spread = _over_lines(path)
                if spread is not None:
                    yield from enumerate(map(_checked, spread), 1)
                    return
            begun = number
            yield number, record


def _over_lines(path: Path) -> list[Any] | None:
    """Return the values of a file whose first object goes over several lines; None where it does not."""
    if path.stat().st_size > LARGEST_LINE:
        return None
    try:
        with _opened(path) as handle:
            return values(handle.read().decode("utf-8-sig"))
    except (ValueError, EOFError, OSError):
        return None


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file as the bytes of UTF-8, whatever it is encoded or compressed in; UTF-16 is read whole."""
    encoding = _wide(path)
    if encoding is not None:
        if path.stat().st_size > LARGEST_LINE:
            raise UnicodeError(f"{encoding}, and too large to be read whole: write it as UTF-8")
        yield io.BytesIO(path.read_bytes().decode(encoding).encode("utf-8", "surrogatepass"))
        return
    with path.open("rb") as handle:
        packed = handle.read(2) == GZIP
        handle.seek(0)
        if not packed:
            yield handle
            return
        with gzip.open(handle) as unpacked:
            yield unpacked


def _parsed(line: bytes) -> dict[str, Any] | Unfit:
    try:
        return _checked(loads(line))
    except NotJson as error:
        return Unfit(f"no JSON: {error}")


def _checked(value: Any) -> dict[str, Any] | Unfit:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return Unfit("text with half a surrogate pair, which no UTF-8 file can hold")
    except (ValueError, RecursionError) as error:
        return Unfit(f"no JSON: {_told(error)}")
    return value if isinstance(value, dict) else Unfit(f"a {type(value).__name__}, not an object")


def _told(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _table(
    path: Path, batches: Callable[[Path], Iterator[pa.RecordBatch]]
) -> Iterator[tuple[int, dict[str, Any] | Unfit]]:
    import pyarrow as pa

    number = 0
    try:
        for batch in batches(path):
            for row in batch.to_pylist():
                number += 1
                yield number, _from_struct(row)
    except (pa.ArrowException, OSError, ValueError) as error:
        yield number + 1, Unfit(f"the file can't be read from here on: {_told(error)}")


def _parquet(path: Path) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as parquet:
        yield from parquet.iter_batches(batch_size=BATCH_ROWS)


def _arrow(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield what `datasets` keeps in a folder (a stream), or an Arrow file."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as mapped:
        try:
            reader = pa.ipc.open_stream(mapped)
        except pa.ArrowInvalid:
            mapped.seek(0)
            opened = pa.ipc.open_file(mapped)
            for number in range(opened.num_record_batches):
                yield opened.get_batch(number)
            return
        yield from reader


def _from_struct(row: dict[str, Any]) -> dict[str, Any] | Unfit:
    """Return a row without the nulls that a table gives every struct for the keys that others have.

    Arguments of a call are another matter: there a null may be what the model wrote.
    """
    try:
        made: dict[str, Any] = _without_nulls(row, False)
    except Unfit as error:
        return error
    return made


def _without_nulls(value: Any, arguments: bool) -> Any:
    if isinstance(value, dict):
        if arguments and None in value.values():
            raise Unfit(
                "the arguments of a call are a struct with nulls: a null that the model wrote and a key that "
                "it did not write look alike; keep arguments as JSON text"
            )
        return {
            key: _without_nulls(item, arguments or key == "arguments")
            for key, item in value.items()
            if item is not None
        }
    return [_without_nulls(item, arguments) for item in value] if isinstance(value, list) else value
