"""What the tests of the capture run share: the command in its own process, and what stands in its folder.

Place in the flow: none; imported by tests only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

ROOT = Path(__file__).resolve().parents[2]


def write_prompts(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def questions(count: int, **sampling: Any) -> list[dict[str, Any]]:
    """Return prompts whose answers differ in length."""
    return [
        {"prompt": f"Question {n}?", "sampling": {"max_tokens": 4 + 7 * n % 60, "temperature": 1, **sampling}}
        for n in range(count)
    ]


def command(prompts: Path, folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "harness", "capture", str(prompts), "-o", str(folder), *more]


def start(prompts: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    """Start the command; what it says goes to a file beside the folder."""
    with folder.with_suffix(".out").open("a", encoding="utf-8") as out:
        return subprocess.Popen(
            command(prompts, folder, *more), stdout=out, stderr=out, cwd=ROOT, text=True, env={**os.environ}
        )


def finished(prompts: Path, folder: Path, *more: str, code: int = 0, timeout: float = 240) -> dict[str, Any]:
    """Run the command to its end; returns its summary, or the error that it told."""
    done = subprocess.run(
        command(prompts, folder, "--json", *more), capture_output=True, text=True, timeout=timeout, cwd=ROOT
    )
    assert done.returncode == code, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def rows_of(folder: Path, *columns: str) -> list[dict[str, Any]]:
    """Return the rows of all visible shards."""
    found: list[dict[str, Any]] = []
    for path in sorted((folder / "shards").glob("[!.]*.parquet")):
        found += parquet.read_table(path, columns=list(columns) or None).to_pylist()
    return found


def committed(folder: Path) -> int:
    """Return how many bytes the journal and the shards have: grows with each commit."""
    names = [*folder.glob("journal/*.log"), *folder.glob("shards/*.parquet")]
    sizes = []
    for path in names:
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return sum(sizes)


def until(holds: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120) -> bool:
    """Wait until something holds; False where the process ended first."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.01)
    raise AssertionError("it never came to hold")
