"""Containers that are no JSON lines: a Hugging Face Arrow folder, and a folder of parquet with a manifest.

Place in the flow: an exporter. Imports `contracts.shard`; pyarrow inside functions. The Arrow folder is
written as `datasets` 4 and 5 read it with `load_from_disk`, without that package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.shard import replace_file

if TYPE_CHECKING:
    import pyarrow as pa

Rows = Iterable[dict[str, Any]]

_NUMBERS = {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"}
FEATURES = {
    "input_ids": _NUMBERS,
    "loss_mask": _NUMBERS,
    "seq_len": {"dtype": "int64", "_type": "Value"},
}
BATCH = 256


def write_arrow_folder(folder: Path, rows: Rows) -> list[Path]:
    """Write speculators' training folder: input_ids, loss_mask (long), seq_len. Returns its files."""
    import pyarrow as pa

    numbers = pa.list_(pa.int64())
    told = {"huggingface": json.dumps({"info": {"features": FEATURES}})}
    schema = pa.schema(
        [("input_ids", numbers), ("loss_mask", numbers), ("seq_len", pa.int64())], metadata=told
    )
    data = folder / "data-00000-of-00001.arrow"

    def fill(handle: Any) -> None:
        with pa.ipc.new_stream(handle, schema) as writer:
            for batch in _batches(rows):
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))

    replace_file(data, fill)
    digest = hashlib.sha256()
    with data.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    state: dict[str, Any] = {
        "_data_files": [{"filename": data.name}],
        "_fingerprint": digest.hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": "torch",
        "_output_all_columns": False,
        "_split": None,
    }
    info = {"citation": "", "description": "", "features": FEATURES, "homepage": "", "license": ""}
    return [data, _json(folder / "dataset_info.json", info), _json(folder / "state.json", state)]


def write_parquet_folder(folder: Path, rows: Rows, per_file: int = 10_000) -> list[Path]:
    """Write Automodel's folder: parquet files of `messages` (and `tools`, JSON text), and manifest.json.

    A table gives every message every key, and Automodel refuses `tool_calls` that are there and null: without
    a call in the whole set there is no such key, else messages of the assistant without one have `[]`. So the
    rows wait in a file until the last is known.
    """
    import tempfile

    import pyarrow.parquet as pq

    with tempfile.TemporaryFile(dir=folder) as waiting:
        called = False
        for row in rows:
            called = called or any("tool_calls" in message for message in row["messages"])
            waiting.write(json.dumps(_flat(row)).encode() + b"\n")
        waiting.seek(0)
        schema = _messages_schema(called)
        files: list[Path] = []
        counts: list[int] = []
        batches = _batches(_with_calls(json.loads(line), called) for line in waiting)
        while (first := next(batches, None)) is not None:
            path = folder / f"train-{len(files):05d}.parquet"
            replace_file(path, _filler(schema, first, batches, per_file, counts, pq))
            files.append(path)
    manifest = {
        "format": "parquet",
        "num_rows": sum(counts),
        "files": [{"path": path.name, "num_rows": rows_} for path, rows_ in zip(files, counts, strict=True)],
    }
    return [*files, _json(folder / "manifest.json", manifest)]


def _messages_schema(called: bool) -> pa.Schema:
    import pyarrow as pa

    text = pa.string()
    function = pa.struct([("name", text), ("arguments", text)])
    call = pa.struct([("id", text), ("type", text), ("function", function)])
    keys = [("role", text), ("content", text), ("reasoning_content", text)]
    if called:
        keys.append(("tool_calls", pa.list_(call)))
    message = pa.struct([*keys, ("tool_call_id", text), ("name", text)])
    return pa.schema([("messages", pa.list_(message)), ("tools", text)])


def _with_calls(row: dict[str, Any], called: bool) -> dict[str, Any]:
    if called:
        for message in row["messages"]:
            if message["role"] == "assistant":
                message.setdefault("tool_calls", [])
    return row


def _filler(
    schema: pa.Schema,
    first: list[dict[str, Any]],
    batches: Iterator[list[dict[str, Any]]],
    per_file: int,
    counts: list[int],
    pq: Any,
) -> Callable[[Any], None]:
    def fill(handle: Any) -> None:
        import pyarrow as pa

        written, batch = 0, first
        with pq.ParquetWriter(handle, schema, compression="zstd") as writer:
            while True:
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                written += len(batch)
                if written >= per_file:
                    break
                following = next(batches, None)
                if following is None:
                    break
                batch = following
        counts.append(written)

    return fill


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    declared = row.get("tools")
    return {**row, "tools": None if declared is None else json.dumps(declared, ensure_ascii=False)}


def _batches(rows: Rows) -> Iterator[list[dict[str, Any]]]:
    held: list[dict[str, Any]] = []
    for row in rows:
        held.append(row)
        if len(held) == BATCH:
            yield held
            held = []
    if held:
        yield held


def _json(path: Path, value: Any) -> Path:
    text = json.dumps(value, indent=1) + "\n"
    replace_file(path, lambda handle: handle.write(text.encode()))
    return path
