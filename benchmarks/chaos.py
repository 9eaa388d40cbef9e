"""A capture run whose client and server are killed at random moments: how many rows are lost and doubled.

Place in the flow: run by hand; needs SGLang on this machine (the extra `cpu`). Imports `contracts`, `harness`
and `tests.bodies.recording`.

    python -m benchmarks.chaos                  # 100 kills, one in eight of the server
    python -m benchmarks.chaos --kills 20 --seed 7 --transport generate

Every kill is SIGKILL. After each, what the folder holds is read from the disk: no shard may hold a row twice
or half, and a row that was seen once must be there at the end, the same byte for byte. The last start ends by
itself; then every prompt has exactly one row.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from contracts.shard import seal
from harness.recording.journal import read_segment
from harness.recording.rows import decode
from harness.server import SGLangServer, load_deployment
from harness.server.hardware import free_port
from tests.bodies.recording import committed, questions, rows_of, start, write_prompts

SERVER_SHARE = 1 / 8
PROMPTS_A_KILL = 60


def held(folder: Path) -> dict[str, bytes]:
    """Return what the folder holds now, in shards and journal: sample id → digest of the row.

    A segment that became a shard may still lie there until the next start; its rows are the shard's.
    """
    found = {}
    for row in rows_of(folder, "sample_id", "content_sha256"):
        assert row["sample_id"] not in found, f"{row['sample_id']} stands in the shards twice"
        found[row["sample_id"]] = row["content_sha256"]
    for path in sorted((folder / "journal").glob("[0-9]*.log")):
        for payload in read_segment(path).payloads:
            table, _ = decode(payload)
            if table is not None:
                pairs = zip(table["sample_id"].to_pylist(), table["content_sha256"].to_pylist(), strict=True)
                for sample, digest in pairs:
                    assert found.setdefault(sample, digest) == digest, f"{sample} is there in two forms"
    return found


def wait(process: subprocess.Popen[str], seconds: float) -> bool:
    """Wait so long; returns whether the process lives."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def boot(port: int, log: Path) -> SGLangServer:
    """Boot the tiny model's server and wait until it serves."""
    server = load_deployment("tiny").server(port=port, log_path=log)
    server.start()
    return server


def chaos(home: Path, kills: int, seed: int, transport: str) -> dict[str, Any]:
    """Run, kill, and count."""
    draw = random.Random(seed)
    port = free_port("127.0.0.1")
    folder = home / "run"
    count = PROMPTS_A_KILL * kills
    prompts = write_prompts(home / "prompts.jsonl", questions(count, ignore_eos=True))
    options = ("--base-url", f"http://127.0.0.1:{port}", "--no-tripwire", "--transport", transport)
    options += ("--shard-rows", "7", "--concurrency", "8", "--patience", "60")
    server = boot(port, home / "server-0.log")
    killed: Counter[str] = Counter()
    seen: dict[str, bytes] = {}
    process = start(prompts, folder, *options)
    try:
        while killed.total() < kills:
            before = committed(folder)
            until = time.monotonic() + 300
            while committed(folder) == before and process.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            # From a write on at any moment, of a run that writes all the time.
            if wait(process, draw.uniform(0, 0.8)):
                if draw.random() < SERVER_SHARE:
                    os.kill(server.pid, signal.SIGKILL)
                    killed["server"] += 1
                    server.stop()
                    # The client may go too while the server is away.
                    if draw.random() < 0.5 and wait(process, draw.uniform(0, 3)):
                        process.kill()
                        killed["client"] += 1
                    server = boot(port, home / f"server-{killed['server']}.log")
                else:
                    process.kill()
                    killed["client"] += 1
            if not wait(process, 0.0):
                for sample, digest in held(folder).items():
                    assert seen.setdefault(sample, digest) == digest, f"{sample} was made anew"
                if process.returncode == 0:
                    break
                process = start(prompts, folder, *options)
                print(f"{dict(killed)}, {len(seen)} of {count} rows seen", flush=True)
        code = process.wait(timeout=3600)
        if code:
            code = start(prompts, folder, *options).wait(timeout=3600)
        assert code == 0, folder.with_suffix(".out").read_text("utf-8")[-3000:]
    finally:
        process.kill()
        server.stop()
    rows = rows_of(folder)
    there = {row["sample_id"]: row["content_sha256"] for row in rows}
    sources = Counter(row["source_row_index"] for row in rows)
    assert not list((folder / "shards").glob(".*")), "a half-written shard was left"
    assert all(seal(row)["content_sha256"] == row["content_sha256"] for row in rows)
    state = json.loads((folder / "run.json").read_text("utf-8"))["summary"]
    return {
        "kills": dict(killed),
        "asked": state["asked"],
        "captured": state["captured"],
        "rows": len(rows),
        "seen_before_the_end": len(seen),
        "lost": sum(sources[n] == 0 for n in range(count))
        + sum(there.get(sample) != digest for sample, digest in seen.items()),
        "doubled": len(rows) - len(there) + sum(number > 1 for number in sources.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--transport", choices=["chat", "generate"], default="chat")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        told = chaos(Path(name), asked.kills, asked.seed, asked.transport)
    print(
        f"{sum(told['kills'].values())} kills {told['kills']}: lost {told['lost']}, doubled {told['doubled']}"
    )
    print(json.dumps(told))
    raise SystemExit(told["lost"] + told["doubled"] > 0)


if __name__ == "__main__":
    main()
