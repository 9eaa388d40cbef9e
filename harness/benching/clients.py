"""The two clients that the bench compares: `shardgate capture` and SGLang's `bench_serving`, each a process.

Place in the flow: under the comparison of recording. Imports `contracts`, and `work` of this package; pyarrow
inside functions.

Each client's own clock counts: from the first request to the last answer, for `capture` until the last shard
stands on the disk. The loading of tokenizers and parsers is in neither.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.records import ServerFacts
from harness.benching.work import sampling_of

START_SECONDS = 300.0
"""How long a client may take to start: it imports SGLang and loads the tokenizer."""

# In 0.5.23 `sglang.bench_serving` is a deprecated name. Its module imports `datasets` for an image set that
# is not used here, and an environment that boots SGLang on a CPU does not have that package.
_START = """
import importlib.util, runpy, sys, types
if importlib.util.find_spec("datasets") is None:
    sys.modules["datasets"] = types.ModuleType("datasets")
    sys.modules["datasets"].load_dataset = None
try:
    name = "sglang.benchmark.serving" if importlib.util.find_spec("sglang.benchmark.serving") else ""
except ModuleNotFoundError:
    name = ""
runpy.run_module(name or "sglang.bench_serving", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One client's run: its own clock's seconds, and what came back whole."""

    seconds: float
    requests: int
    failed: int
    prompt_tokens: int | None
    tokens: int
    faults: tuple[str, ...] = ()

    @property
    def rate(self) -> float | None:
        """Return tokens a second."""
        return self.tokens / self.seconds if self.seconds > 0 else None


class Clients:
    """Starts the clients against one server; what they write goes into `folder`.

    `tokenizer` is the model's folder. `timeout` is in seconds, for one request.
    """

    def __init__(
        self,
        facts: ServerFacts,
        *,
        api_key: str | None,
        folder: Path,
        tokenizer: Path,
        trust_remote_code: bool,
        max_tokens: int,
        timeout: float,
    ) -> None:
        self._facts = facts
        self._key = api_key
        self._folder = folder
        self._tokenizer = tokenizer
        self._trust = trust_remote_code
        self._max_tokens = max_tokens
        self._timeout = timeout
        self._runs = 0

    def capture(self, asked: Path, concurrency: int, count: int) -> tuple[Run, Path]:
        """Record the `count` prompts of a file; returns the run and its folder.

        Raises:
            ShardgateError: it ended with an error instead of a summary.
        """
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        command = [sys.executable, "-m", "harness", "capture", str(asked), "-o", str(folder), "--json"]
        command += [
            "--base-url",
            self._facts.base_url,
            "--sampling",
            json.dumps(sampling_of(self._max_tokens)),
        ]
        # What the forced length does to the verdicts must not end the run.
        command += ["--concurrency", str(concurrency), "--fixed-concurrency", "--no-tripwire"]
        command += ["--tokenizer", str(self._tokenizer)]
        if self._trust:
            command.append("--trust-remote-code")
        done = self._finished(command, {"SHARDGATE_API_KEY": self._key} if self._key else {}, count)
        try:
            told = json.loads(done.stdout)
        except ValueError:
            told = {"error": {"what": "no summary", "why": done.stderr[-500:]}}
        if "error" in told:
            error = told["error"]
            raise ShardgateError(
                what=f"capture ended with an error: {error.get('what', '')}",
                where=str(error.get("where", "")),
                why=str(error.get("why", "")),
                remedy=str(error.get("remedy", "")),
            )
        return (
            Run(
                seconds=float(told["seconds"]),
                requests=count,
                failed=count - int(told["captured"]),
                prompt_tokens=sum(map(len, prompt_ids(folder))),
                tokens=int(told["tokens"]),
                faults=tuple(map(str, told["failures"])),
            ),
            folder,
        )

    def serving(self, texts: Path, concurrency: int, count: int, *, stream: bool) -> Run:
        """Run `bench_serving` over `count` prompts, a file of its data set `custom`.

        Raises:
            ShardgateError: it ended without a result.
        """
        self._runs += 1
        output = self._folder / f"serving-{self._runs}.jsonl"
        options = {
            "backend": "sglang",
            "base-url": self._facts.base_url,
            "model": self._facts.model,
            "tokenizer": str(self._tokenizer),
            "dataset-name": "custom",
            "dataset-path": str(texts),
            "num-prompts": count,
            "sharegpt-output-len": self._max_tokens,
            "max-concurrency": concurrency,
            "output-file": str(output),
            "seed": 1,
        }
        command = [sys.executable, "-P", "-c", _START]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        command += ["--disable-tqdm", "--output-details", *([] if stream else ["--disable-stream"])]
        key = {"OPENAI_API_KEY": self._key} if self._key else {}
        done = self._finished(command, {**key, "PYTHONWARNINGS": "ignore"}, count)
        try:
            told = json.loads(output.read_text("utf-8").splitlines()[-1])
        except (OSError, ValueError, IndexError):
            last = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            raise ShardgateError(
                what="sglang.bench_serving ended without a result",
                where=f"exit code {done.returncode}",
                why=last[-1] if last else "it said nothing",
                remedy="it comes with SGLang: install shardgate with its extra `cpu` (or `gpu`)",
            ) from None
        faults = dict.fromkeys(line.splitlines()[-1] for line in told.get("errors") or () if line)
        return Run(
            seconds=float(told["duration"]),
            requests=count,
            failed=count - int(told["completed"]),
            # The server's own counts; `total_input_tokens` is what the client's tokenizer made of the text.
            prompt_tokens=sum(told["input_lens"]) if told.get("input_lens") else None,
            tokens=int(told["total_output_tokens"]),
            faults=tuple(faults),
        )

    def _finished(
        self, command: Sequence[str], environment: Mapping[str, str], count: int
    ) -> subprocess.CompletedProcess[str]:
        # No look-up at a model hub, and no proxy between a client and its server.
        given = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "NO_PROXY": "*",
            **environment,
        }
        try:
            return subprocess.run(
                command,
                env=given,
                capture_output=True,
                text=True,
                timeout=START_SECONDS + self._timeout * count,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ShardgateError(
                what=f"a client did not end within {error.timeout:.0f} seconds",
                where=self._facts.base_url,
                why=f"{count} requests may take {self._timeout:g} seconds each",
                remedy="check that the server generates; a slow one needs a longer --timeout",
            ) from None


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write JSON lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


def prompt_ids(folder: Path) -> list[list[int]]:
    """Return the prompts' token ids of all rows of a run folder."""
    import pyarrow.parquet as parquet

    found: list[list[int]] = []
    for path in sorted((folder / "shards").glob("[!.]*.parquet")):
        found += parquet.read_table(path, columns=["prompt_token_ids"])["prompt_token_ids"].to_pylist()
    return found
