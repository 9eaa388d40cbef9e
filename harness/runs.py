"""The run folder: built beside, renamed when whole; rows and shards written into it.

Place in the flow: under the pipeline. Imports `contracts` and `harness.capture`.

    run.json          what was run: servers, prompts, outcomes, seconds
    shards/           parquet shards as recorded
    certified/        shards made of the good rows of a shard that also had bad ones
    quarantine/       the bad rows, with the findings that sent them there
    certificate.json  written last; without it the loader refuses the shards
    report.html       the same report for people
    audit.html        the audit of the shards, for people
    *.log             the servers' logs
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.formats import Format
from contracts.records import Capture, Judgement
from contracts.shard import row_from_capture, write_shard
from harness.capture import constraint_of

RUN_FILE = "run.json"
AUDIT_PAGE = "audit.html"


@contextmanager
def run_folder(target: Path) -> Iterator[Path]:
    """Yield a fresh folder beside `target` that takes its place when the block ends well.

    A crash leaves the old run as it was and the unfinished one beside it, for its logs.

    Raises:
        ShardgateError: `target` holds something that is no run of ours, or can't be written.
    """
    if (
        target.exists()
        and not (target / RUN_FILE).is_file()
        and (not target.is_dir() or any(target.iterdir()))
    ):
        raise ShardgateError(
            what="the run folder is taken",
            where=str(target),
            why=f"it holds files but no {RUN_FILE}, so it is no earlier run",
            remedy="name another folder (--run-folder), or empty this one",
        )
    partial = target.with_name(f"{target.name}.partial")
    try:
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
    except OSError as error:
        raise ShardgateError(
            what="the run folder can't be written",
            where=str(partial),
            why=error.strerror or str(error),
            remedy="name a folder on a disk that you may write to (--run-folder)",
        ) from error
    yield partial
    old = target.with_name(f"{target.name}.old")
    if old.exists():
        shutil.rmtree(old)
    if target.exists():
        target.rename(old)
    partial.rename(target)
    if old.exists():
        shutil.rmtree(old)


def write_rows(path: Path, judged: Sequence[tuple[Capture, Judgement]], *, fmt: Format, source: str) -> int:
    """Write one shard of judged captures; returns its rows. Captures without the engine's ids are left out.

    Sample ids are `{prompt}:{transport}:{mode}:{sample index}`, unique over a run of one shard a plan.
    """
    rows = []
    for index, (capture, judgement) in enumerate(judged):
        if capture.response_token_ids is None or capture.prompt_token_ids is None:
            continue
        key = f"{capture.prompt.name}:{capture.transport}:{capture.mode}:{capture.sample_index}"
        rows.append(
            row_from_capture(
                capture,
                judgement,
                sample_id=key,
                source_dataset=source,
                source_row_index=index,
                constraint=constraint_of(capture),
            )
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_shard(path, rows, format_name=fmt.name)
    return len(rows)


def write_json(path: Path, value: Any) -> None:
    """Write JSON beside, synced, renamed."""
    beside = path.with_name(f".{path.name}.tmp")
    with beside.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1, default=str)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
