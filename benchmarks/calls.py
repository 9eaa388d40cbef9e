"""What a row with tool calls costs: the audit with the fast paths and without them, in turns, in one run.

Place in the flow: run by hand. Imports `benchmarks.data` and `contracts`.

    python -m benchmarks.calls                                # 4,000 turns of agents each, five families
    python -m benchmarks.calls --rows 1000 --family kimi_k2

Without the fast paths every row check sees every row; both must find the same. Times are CPU seconds of one
process with one thread in each library. Without them 400 rows are timed, since all would take minutes.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import make_calls, tokenizer_for
from contracts import audit
from contracts.batches import read_batches
from contracts.formats import FORMATS, Format
from contracts.records import Profile
from contracts.rowwise import _suspects, row_hits
from contracts.rules import ROW_CHECKS, Context
from contracts.rules.registry import Batch
from contracts.tokens import Codec, load_codec

FAMILIES = ("kimi_k2", "qwen3", "qwen3_coder", "glm45", "deepseek_v31")
SLOW_ROWS = 400


def batches(path: Path, rows: int | None = None) -> Iterator[Batch]:
    with pq.ParquetFile(path) as parquet:
        for table in read_batches(parquet):
            part = table if rows is None else table.slice(0, rows)
            yield Batch(part, pl.DataFrame(pl.from_arrow(part)))
            if rows is not None:
                return


def hits(batch: Batch, fmt: Format, codec: Codec, *, fast: bool) -> list[tuple[int, str]]:
    context = Context(Profile.DRAFT, "calls", fmt, codec, fast=fast)
    return [(row, rule) for row, rule, *_ in row_hits(batch, context)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--family", action="append", choices=sorted(FORMATS))
    asked = parser.parse_args()
    pa.set_cpu_count(1)
    print(
        "| family | rows | tokens a row | row by row: rows/s | fast: rows/s | × | looked at | audit: rows/s |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in asked.family or FAMILIES:
        fmt = FORMATS[name]
        path, codec = make_calls(asked.rows, fmt), load_codec(tokenizer_for(fmt))
        warm = next(batches(path, 50))  # imports, the vocabulary's table, the encoder
        assert hits(warm, fmt, codec, fast=True) == hits(next(batches(path, 50)), fmt, codec, fast=False)
        some = min(asked.rows, SLOW_ROWS)
        slow = cpu(lambda: hits(next(batches(path, some)), fmt, codec, fast=False)) / some  # noqa: B023
        fast = cpu(lambda: [hits(each, fmt, codec, fast=True) for each in batches(path)]) / asked.rows  # noqa: B023
        whole = cpu(lambda: audit([path], codec=codec, processes=1)) / asked.rows  # noqa: B023
        context, looked = Context(Profile.DRAFT, "calls", fmt, codec), Counter[str]()
        for batch in batches(path):
            for check in ROW_CHECKS:
                looked[getattr(check, "__name__", "")] += int(_suspects(check, batch, context).sum())
        tokens = pq.read_table(path, columns=["completion_tokens"]).column(0).to_numpy().mean()
        seen = ", ".join(f"{check} {count}" for check, count in looked.items() if count) or "0"
        print(
            f"| {name} | {asked.rows} | {tokens:.0f} | {1 / slow:.0f} | {1 / fast:.0f} | {slow / fast:.1f} "
            f"| {seen} | {1 / whole:.0f} |"
        )


def cpu(work: object) -> float:
    start = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - start


if __name__ == "__main__":
    main()
