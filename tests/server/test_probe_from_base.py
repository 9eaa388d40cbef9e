"""The base install probes a real server: neither torch nor sglang on the probing side.

Place in the flow: runs the installed command in `.venv-base` (`.ci/base-env`) against the session's server.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shardgate() -> Path:
    done = subprocess.run([ROOT / ".ci" / "base-env"], capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip()) / "bin" / "shardgate"


def _probe(shardgate: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # From a folder of its own: beside the sources, Python would import those instead of the wheel's.
    return subprocess.run(
        [shardgate, "probe", *arguments], capture_output=True, text=True, timeout=500, cwd="/"
    )


def test_probe_from_the_base_install(shardgate: Path, tiny_server: Any) -> None:
    done = _probe(shardgate, tiny_server.base_url, "--json")
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout)
    assert set(told) >= {"server", "results", "recommendation"}
    assert told["server"]["engine_version"]
    assert {result["mode"] for result in told["results"]} == {"raw", "reasoning", "tools"}
    verdicts = [result["verdict"] for result in told["results"] if result["fault"] is None]
    assert verdicts
    # Without the engine's ids nothing would be proven, and the probe would have measured nothing.
    assert "unproven" not in verdicts
    assert done.returncode == (1 if "contradicted" in verdicts else 0)


def test_the_table_goes_to_standard_output_and_progress_elsewhere(shardgate: Path, tiny_server: Any) -> None:
    done = _probe(shardgate, tiny_server.base_url)
    assert done.returncode in (0, 1), done.stderr
    assert "Recommendation" in done.stdout and "--reasoning-parser kimi_k2" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "Recommendation" not in done.stderr and done.stderr
