"""What a capture run costs its client: rows a CPU second, verdicts included, and memory over 100,000 rows.

Place in the flow: run by hand. Imports `benchmarks.answers` and `harness.recording`.

    python -m benchmarks.capture                      # 20,000 rows
    python -m benchmarks.capture --rows 100000        # and how memory stands at 10,000, 20,000 ... rows
    python -m benchmarks.capture --profile            # where the time goes

Everything is real but the server's pace: rendering, HTTP, parsing, the verdict, journal, shards. The answers
are those of a real SGLang server, recorded and sent again by `benchmarks.answers` from another process, some
300 tokens each. The time is CPU time of this process, of all its threads, from the first tenth of the rows on
(what comes before is imports and the first rows); so one core sustains that many rows a second.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.answers import PROMPTS, TOKENS, answers, questions

TARGET = 500
"""Rows a second that one core is to sustain."""


def resident() -> int:
    """Return the bytes that this process holds in memory now."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()


class Marks:
    """CPU seconds and memory each time that the run tells its progress."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.seen: list[tuple[int, float, int]] = []

    def __call__(self, step: str, facts: dict[str, Any]) -> None:
        if step == "capture" and "done" in facts:
            self.seen.append((facts["done"], time.process_time(), resident()))

    def rate(self) -> float:
        """Return rows a CPU second after the first tenth."""
        first = next(mark for mark in self.seen if mark[0] >= self.rows / 10)
        last = self.seen[-1]
        return (last[0] - first[0]) / (last[1] - first[1])

    def memory(self) -> list[tuple[int, int]]:
        """Return rows and resident bytes at each tenth of the rows, the most of that stretch."""
        tenths: dict[int, tuple[int, int]] = {}
        for rows, _, held in self.seen:
            at = rows * 10 // self.rows
            if at not in tenths or held > tenths[at][1]:
                tenths[at] = rows, held
        return [tenths[at] for at in sorted(tenths)]


def run(rows: int, url: str, home: Path, logprobs: bool, marks: Marks, concurrency: int) -> Any:
    """Record so many rows into `home`."""
    from harness.recording.plan import Plan
    from harness.recording.prompts import Wanted, find_source
    from harness.recording.runner import capture

    prompts = home / "prompts.jsonl"
    asked = questions()
    # A prompt that stands there again gets samples of its own.
    times = -(-rows // (PROMPTS * 500))
    prompts.write_text("".join(f"{json.dumps(one)}\n" for one in asked * times), "utf-8")
    wanted = Wanted({"max_tokens": TOKENS, "temperature": 0.8}, {}, samples=rows // (PROMPTS * times))
    plan = Plan(
        source=find_source(prompts),
        wanted=wanted,
        folder=home / "run",
        url=url,
        concurrency=concurrency,
        adapt=False,
        tripwire=False,
        logprobs=logprobs,
    )
    return capture(plan, marks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--folder", type=Path, help="Where the run goes; a temporary folder otherwise.")
    asked = parser.parse_args()
    kept = answers()
    words = [sys.executable, "-m", "benchmarks.answers", str(kept)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            with tempfile.TemporaryDirectory(dir=asked.folder) as name:
                marks = Marks(asked.rows)
                profile = cProfile.Profile(time.process_time) if asked.profile else None
                began = time.monotonic()
                if profile:
                    profile.enable()
                summary = run(asked.rows, url, Path(name), False, marks, asked.concurrency)
                if profile:
                    profile.disable()
                wall = time.monotonic() - began
        finally:
            server.terminate()
    gc.collect()
    if profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(70)
    rate = marks.rate()
    told = {
        "rows": summary.captured,
        "tokens_a_row": summary.tokens / max(summary.captured, 1),
        "verdicts": dict(summary.verdicts),
        "rows_a_cpu_second": rate,
        "tokens_a_cpu_second": rate * summary.tokens / max(summary.captured, 1),
        "wall_seconds": wall,
        "memory": marks.memory(),
        "cores": os.cpu_count(),
    }
    print(f"{summary.captured} rows of {told['tokens_a_row']:.0f} tokens, {summary.failed} failed")
    print(f"verdicts: {told['verdicts']}")
    print(f"one core sustains {rate:.0f} rows a second (target {TARGET}), verdicts included")
    for rows, held in marks.memory():
        print(f"  {rows:>8} rows  {held / 1e6:7.0f} MB resident")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
