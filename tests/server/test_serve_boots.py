"""`shardgate serve` for real: a command against a server that runs, and one whose server dies under it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.server import SGLangServer

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]

ASK = """
import json, os, sys, urllib.request
with urllib.request.urlopen(os.environ["OPENAI_BASE_URL"] + "/models") as answer:
    print("model", json.load(answer)["data"][0]["id"], flush=True)
"""

KILL = """
import pathlib, signal, time
parent = os.getppid()
for children in pathlib.Path(f"/proc/{parent}/task").glob("*/children"):
    for pid in children.read_text().split():
        if b"\\0sglang.launch_server\\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
            print("killing", pid, flush=True)
            os.kill(int(pid), signal.SIGKILL)
time.sleep(600)
"""


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )


def test_a_command_runs_against_a_server_by_url(bare_server: SGLangServer) -> None:
    done = serve(bare_server.base_url, "--", sys.executable, "-c", ASK + "sys.exit(7)")
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"model {bare_server.model_path}\n"
    bare_server.check()
    said = serve(bare_server.base_url)
    assert said.returncode == 0
    assert "runs:" in said.stdout and "reasoning parser none" in said.stdout


def test_a_server_that_dies_under_its_command_ends_both(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    done = serve("tiny-plain", "--log", str(log), "--", sys.executable, "-c", ASK + KILL)
    assert done.returncode == 2, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("model ") and lines[1].startswith("killing ")
    assert "the server died" in done.stderr and str(log) in done.stderr
    assert "--reasoning-parser kimi_k2" in done.stderr, "the seed's fault is told before the boot"
    assert "sglang.launch_server --model-path" in done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(lines[1].split()[1]), 0)
