"""How a run folder stands, read from its files alone: what the report shows, during the run or after it.

Place in the flow: after the runner, under the report. Imports `contracts`, `harness.standing`, and settings
and store of this package.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from contracts.errors import ShardgateError
from harness.recording.settings import RUN_FILE, read_run
from harness.recording.store import FAILED, counted, read_manifest, replace_json
from harness.standing import Standing

STARTS = 200
"""Starts that `run.json` remembers, the last ones."""

_OF_A_START = ("state", "captured", "failed", "left", "tokens", "seconds", "retries", "outages")


def read_standing(folder: Path) -> Standing:
    """Read a run folder.

    Raises:
        ShardgateError: it is none, or a file of it can't be read.
    """
    run = read_run(folder)
    if run is None:
        raise ShardgateError(
            what="the folder holds no capture run",
            where=str(folder / RUN_FILE),
            why="there is no such file",
            remedy="name the folder that `shardgate capture` was given with -o",
        )
    return Standing(
        folder=folder,
        state=str(run.get("state", "")),
        settings=run["settings"],
        server=str(run.get("server", "")),
        summary=run.get("summary") or {},
        starts=tuple(run.get("starts") or ()),
        shards=tuple(read_manifest(folder)),
        counts=counted(folder),
        failures=_failures(folder / FAILED),
        unrolled=sum(path.stat().st_size for path in (folder / "journal").glob("[0-9]*.log")),
        certificate=(folder / "certificate.json").is_file(),
    )


def note_start(folder: Path, ended: str) -> None:
    """Remember in `run.json` how the start that just ended went, beside the starts before it."""
    run = read_run(folder)
    if run is None:
        return
    summary = run.get("summary") or {}
    told = {name: summary[name] for name in _OF_A_START if name in summary}
    starts = [*(run.get("starts") or ()), {"began": run.get("started", ""), "ended": ended, **told}]
    replace_json(folder / RUN_FILE, {**run, "starts": starts[-STARTS:]})


def _failures(path: Path) -> dict[str, int]:
    reasons: Counter[str] = Counter()
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                reasons[str(json.loads(line)["reason"])] += 1
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ShardgateError(
            what="the list of failures can't be read",
            where=str(path),
            why=str(error),
            remedy="remove it: the next start writes it anew",
        ) from error
    return dict(reasons.most_common())
