"""What the audit costs, as ratios to the pyarrow scan of the same columns, all measured in one run, in turns.

Place in the flow: run by hand. Imports `benchmarks.data` and `contracts`.

    python -m benchmarks.speed            # 50,000 rows, 82 million tokens
    python -m benchmarks.speed --rows 4000 --repeat 1

Times are CPU seconds of one process with one thread in each library, the shards' own caches warm. The
tokenizers library is timed on a part of the rows, since all of them would take minutes.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import FORMAT, make, qwen_tokenizer
from contracts import audit
from contracts.batches import read_batches
from contracts.columns import decoded, encode_batch, flat_encoder, flat_ids
from contracts.records import Profile
from contracts.rules import BULK, RULES, Context
from contracts.rules.proven import _equals
from contracts.schema import broken_rules, type_faults
from contracts.tokens import Codec, load_codec

HF_ROWS = 1500
TARGETS = {"structural": 1.3, "decoded": 2.0, "full": 4.5}


def frames(path: Path) -> Iterator[tuple[pa.Table, pl.DataFrame]]:
    with pq.ParquetFile(path) as parquet:
        for table in read_batches(parquet):
            yield table, pl.DataFrame(pl.from_arrow(table))


def scan(path: Path) -> None:
    """The yardstick: read every column of every row group with pyarrow, and do nothing."""
    with pq.ParquetFile(path) as parquet:
        for index in range(parquet.num_row_groups):
            parquet.read_row_group(index)


def structural(path: Path) -> None:
    """Every fidelity rule that is an expression and needs no tokenizer, and pandera over their verdicts."""
    context = Context(Profile.DRAFT, str(path), FORMAT, None)
    rules = [rule for rule in BULK if RULES[rule].kind == "fidelity" and context.active(RULES[rule])]
    verdicts = []
    for _, frame in frames(path):
        assert not type_faults(frame)
        verdicts.append(
            frame.select([BULK[rule].holds(context).fill_null(False).alias(rule) for rule in rules])
        )
    assert not broken_rules(pl.concat(verdicts))


def with_decoding(path: Path, codec: Codec) -> None:
    """The fidelity expressions with a tokenizer, pandera, and each row's ids decoded and held to its text."""
    context = Context(Profile.DRAFT, str(path), FORMAT, codec)
    rules = [rule for rule in BULK if RULES[rule].kind == "fidelity" and context.active(RULES[rule])]
    verdicts = []
    for table, frame in frames(path):
        assert not type_faults(frame)
        verdicts.append(
            frame.select([BULK[rule].holds(context).fill_null(False).alias(rule) for rule in rules])
        )
        made = decoded(codec, flat_ids(table["response_token_ids"]))
        assert made is not None and _equals(made[0], table["response_text_raw"]).all()
    assert not broken_rules(pl.concat(verdicts))


def encoders(path: Path, codec: Codec) -> tuple[float, float]:
    """Return CPU seconds a token of our encoding and of the tokenizers library's, over the same texts."""
    with pq.ParquetFile(path) as parquet:
        texts = parquet.read_row_group(0, ["response_text_raw"]).column(0).to_pylist()[:HF_ROWS]
    encode = flat_encoder(codec)
    fast = cpu(lambda: encode(texts))
    tokens = len(encode(texts)[0])
    slow = cpu(lambda: encode_batch(codec, texts))
    return fast / tokens, slow / tokens


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def peak_memory(rows: int) -> int:
    """Return the peak resident bytes of a fresh process that audits all shards one after the other."""
    command = [sys.executable, "-m", "benchmarks.speed", "--rows", str(rows), "--only-audit"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only-audit", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    pa.set_cpu_count(1)
    paths, codec = make(asked.rows), load_codec(qwen_tokenizer())
    if asked.only_audit:
        audit(paths, codec=codec, processes=1)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return
    works: dict[str, Callable[[Path], object]] = {
        "scan": scan,
        "structural": structural,
        "decoded": lambda path: with_decoding(path, codec),
        "no encoding": lambda path: audit([path], codec=codec, processes=1, encode="none"),
        "full": lambda path: audit([path], codec=codec, processes=1),
    }
    for work in works.values():  # imports, the vocabulary's table, the page cache
        work(paths[0])
    spent: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(asked.repeat):
        for name in works:
            spent[name].append(0.0)
        for path in paths:
            for name, work in works.items():
                spent[name][-1] += cpu(lambda work=work, path=path: work(path))  # type: ignore[misc]
    seconds = {name: sorted(times)[len(times) // 2] for name, times in spent.items()}
    fast, slow = encoders(paths[0], codec)
    tokens = sum(
        pq.read_table(path, columns=["completion_tokens"]).column(0).to_numpy().sum() for path in paths
    )
    by_library = seconds["full"] + float(tokens) * (slow - fast)
    ratios = {name: value / seconds["scan"] for name, value in seconds.items()}
    memory = peak_memory(asked.rows)
    told = {
        "rows": asked.rows,
        "tokens": int(tokens),
        "seconds": seconds,
        "ratios": ratios,
        "tokens_per_second": {"encode": 1 / fast, "tokenizers": 1 / slow, "full": tokens / seconds["full"]},
        "full_with_tokenizers_over_full": by_library / seconds["full"],
        "encode_speedup": slow / fast,
        "peak_bytes": memory,
    }
    print(f"{asked.rows} rows, {tokens / 1e6:.1f} million response tokens, {len(paths)} shards\n")
    print("| work | CPU s | × scan | target |\n|---|---|---|---|")
    for name, value in seconds.items():
        print(f"| {name} | {value:.2f} | {ratios[name]:.2f} | {TARGETS.get(name, '')} |")
    print(f"\nencoding: {1e-6 / fast:.1f} million tokens a second, the tokenizers library {1e-6 / slow:.2f}")
    print(f"full check, every text encoded by that library instead: {by_library / seconds['full']:.1f} ×")
    print(f"peak memory: {memory / 1e9:.2f} GB")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
