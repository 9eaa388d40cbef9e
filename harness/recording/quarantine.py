"""The rows of a quarantine as prompts: each generated anew, as the row that it replaces was asked for.

Place in the flow: under `harness.recording.prompts`, for `capture --only`. Imports `contracts`, and prompts,
rowforms and sources of this package; pyarrow inside functions.

A row is asked for with its own messages, tools, template arguments and sampling; the new one is called after
it, `OLD.again-TURN`, keeps its conversation, source, sample and parent, and never has its id: later turns of
the old conversation were answers to the old row. A spare copy of another row is
not asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from contracts.digests import prompt_sha256
from contracts.errors import ShardgateError
from harness.recording.prompts import Again, BadRow, Task, Wanted, new_task
from harness.recording.rowforms import NotAPrompt, messages_of, settings_of, tools_of
from harness.recording.sources import Source, digest_of, without_nulls

_COLUMNS = (
    "sample_id", "conversation_id", "source_dataset", "source_row_index", "turn_index", "sample_index",
    "parent_sample_id", "messages", "tools", "template_kwargs", "sampling_params", "constraint",
    "prompt_token_ids", "prompt_sha256",
)  # fmt: skip
_COPIES = frozenset({"sample-id-twice", "sample-twice", "row-twice"})
"""The rules that tell a row which stands in the set a second time."""
_NOT_SAMPLING = ("mode", "stream")
"""What the column `sampling_params` holds beside the request's own parameters."""
_AGAIN = re.compile(r"^(?P<item>.*)\.again(?P<times>\d*)$", re.DOTALL)


def find_quarantine(path: Path) -> Source:
    """Return the shards of a quarantine, a folder or one of its files, as a source of prompts.

    Raises:
        ShardgateError: no shard is there.
    """
    files = sorted(path.glob("[!.]*.parquet")) if path.is_dir() else [path]
    if not files or any(file.suffix != ".parquet" for file in files):
        raise ShardgateError(
            what="no quarantined rows are there",
            where=str(path),
            why="it holds no .parquet file" if path.is_dir() else "it is no .parquet file",
            remedy="give the folder quarantine/ that `shardgate audit --certify` wrote",
        )
    return Source(path, tuple(files), "quarantine", digest_of(files))


def again(source: Source, wanted: Wanted) -> Iterator[Task | BadRow]:
    """Yield what each quarantined row asks for, each once; a row without a usable prompt as its fault."""
    number = -1
    taken: set[str] = set()
    for file in source.files:
        spare = _spare(file.with_name(f"{file.stem}.findings.jsonl"))
        for place, row in enumerate(_rows(file)):
            if place in spare:
                continue
            number += 1
            try:
                task = _task(row, wanted)
            except NotAPrompt as error:
                yield BadRow(number, f"{file}, row {place}", str(error))
                continue
            assert task.again is not None
            if task.again.item not in taken:  # two rows that claim one id: nothing says which one it was
                taken.add(task.again.item)
                yield task


def _spare(findings: Path) -> set[int]:
    """Return the rows that stand there a second time and have no other fault: the first ones are kept."""
    try:
        lines = findings.read_text("utf-8").splitlines()
    except OSError:
        return set()
    told: dict[int, list[bool]] = {}
    for line in lines:
        try:
            found = json.loads(line)
            place, bad = found["quarantine_row"], found["severity"] == "error"
            copy = found["rule"] in _COPIES and not found["message"].endswith("with other content")
        except (ValueError, KeyError, TypeError):
            continue
        if place is not None and bad:
            told.setdefault(place, []).append(copy)
    return {place for place, copies in told.items() if all(copies)}


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(file) as opened:
            there = [name for name in _COLUMNS if name in opened.schema_arrow.names]
            for batch in opened.iter_batches(batch_size=256, columns=there):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ShardgateError(
            what="the quarantined rows can't be read",
            where=str(file),
            why=str(error),
            remedy="take the file out of the quarantine's folder, and its prompts from their source",
        ) from error


def _task(row: Mapping[str, Any], wanted: Wanted) -> Task:
    if lacking := [name for name in _COLUMNS[:9] if name != "parent_sample_id" and name not in row]:
        raise NotAPrompt(f"it is no row of a shard: it has no {', '.join(lacking)}")
    if not row["sample_id"] or not row["messages"]:
        raise NotAPrompt("it has no sample_id, or no messages")
    if "scripted" in (row.get("constraint") or ""):
        raise NotAPrompt("it was scripted, and no model generates it again")
    plain = without_nulls({**row, "messages": row["messages"][:-1]})
    sampling, kwargs = settings_of(plain)
    sampling = {name: value for name, value in sampling.items() if name not in _NOT_SAMPLING}
    return new_task(
        str(row["conversation_id"]),
        messages_of({"messages": plain["messages"]}),
        tools_of(plain),
        sampling,
        kwargs,
        wanted=wanted,
        samples=1,
        row=row["source_row_index"],
        again=Again(
            replaces=row["sample_id"],
            item=_item(row["sample_id"], row["turn_index"]),
            sample_index=row["sample_index"],
            parent=row.get("parent_sample_id"),
            dataset=row["source_dataset"],
            prompt_ids=_sealed(row),
        ),
    )


def _item(sample: str, turn: int) -> str:
    """Return the item's name of the row that replaces one, told apart from any earlier replacement."""
    item = sample.removesuffix(f"-{turn}")
    if found := _AGAIN.match(item):
        return f"{found['item']}.again{int(found['times'] or 1) + 1}"
    return f"{item}.again"


def _sealed(row: Mapping[str, Any]) -> tuple[int, ...] | None:
    ids = row.get("prompt_token_ids")
    if ids and prompt_sha256({"prompt_token_ids": ids}) == row.get("prompt_sha256"):
        return tuple(ids)
    return None
