"""What the tests of the replay share: two small models of one form that speak differently, rows, the command.

Place in the flow: none; imported by tests only.

The tiny model's head is scaled up: its words are still noise, but noise that it is sure of, so that which
model, prompt and token it was shows in a few tokens, as in a real model's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from contracts.shard import Row, seal, write_shard

ROOT = Path(__file__).resolve().parents[2]
SURE = 7.0
"""The head's factor: some two nats of entropy a token at temperature 1."""


def sure_model(folder: Path, seed: int | None = None) -> Path:
    """Write the tiny model with a sure head into `folder`; another `seed` gives another model of its form."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    from harness.models import tiny_model

    source = tiny_model()
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = load_file(str(source / "model.safetensors"))
    head = tensors["lm_head.weight"] * np.float32(SURE)
    if seed is not None:
        head = head[np.random.default_rng(seed).permutation(len(head))]
    save_file({**tensors, "lm_head.weight": head}, str(folder / "model.safetensors"), {"format": "pt"})
    return folder


def nudged_model(folder: Path, source: Path, size: float) -> Path:
    """Write `source` with noise of this relative size on every weight: what a quantisation does."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    rng = np.random.default_rng(7)
    tensors = {
        name: value * (1 + np.float32(size) * rng.standard_normal(value.shape, dtype=np.float32))
        for name, value in load_file(str(source / "model.safetensors")).items()
    }
    save_file(tensors, str(folder / "model.safetensors"), {"format": "pt"})
    return folder


def load_weights(url: str, folder: Path) -> None:
    """Have a running server take the weights of another folder."""
    body = json.dumps({"model_path": str(folder)}).encode()
    request = urllib.request.Request(
        f"{url}/update_weights_from_disk", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        assert json.load(reply)["success"]


def rows_in(folder: Path) -> list[Row]:
    """Return the rows of a run folder's shards."""
    found: list[Row] = []
    for path in sorted((folder / "shards").glob("[!.]*.parquet")):
        found += parquet.read_table(path).to_pylist()
    return found


def changed(rows: list[Row], target: Path, change: Callable[[int, Row], dict[str, Any]]) -> Path:
    """Write the rows with changes, sealed anew as whoever falsifies them would; returns the shard."""
    made = [seal({**row, **change(number, row)}) for number, row in enumerate(rows)]
    return write_shard(target, made, format_name="kimi_k2")


def replay(*words: object, code: int = 0, timeout: float = 400) -> dict[str, Any]:
    """Run `shardgate replay ... --json`; returns what it printed."""
    command = [sys.executable, "-m", "harness", "replay", "--json", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT)
    assert done.returncode == code, done.stdout[-3000:] + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def captured(url: str, folder: Path, count: int, logprobs: bool = True, **sampling: Any) -> list[Row]:
    """Have a server generate; returns the rows, as they would stand in a shard."""
    import asyncio

    from contracts.formats import format_named
    from contracts.records import Mode, Prompt, Transport
    from contracts.shard import row_from_capture
    from contracts.tokens import load_codec
    from harness.capture import derive_fields, judge_capture
    from harness.client import CaptureRequest, Client
    from harness.server.attach import server_facts

    codec, facts, fmt = load_codec(folder), server_facts(url), format_named("kimi_k2")
    assert fmt is not None

    async def all_of_them() -> list[Row]:
        made = []
        async with Client(url, facts=facts) as client:
            for number in range(count):
                prompt = Prompt(
                    name=f"p{number}",
                    messages=({"role": "user", "content": f"Question {number}: why {7 * number}?"},),
                    sampling={"max_tokens": 24, **sampling},
                )
                ids = await client.render(prompt)
                made.append(
                    CaptureRequest(prompt, Mode.RAW, Transport.GENERATE, False, ids, logprobs=logprobs)
                )
            answers = await client.capture_many(made)
        rows = []
        for number, one in enumerate(answers):
            assert not isinstance(one, Exception), one
            one, extra = derive_fields(one, codec=codec, fmt=fmt)
            judged = judge_capture(one, codec=codec, fmt=fmt, extra=extra)
            rows.append(
                row_from_capture(
                    one, judged, sample_id=f"r{number}", source_dataset="s", source_row_index=number
                )
            )
        return rows

    return asyncio.run(all_of_them())
