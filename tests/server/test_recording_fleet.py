"""Several servers in one run: replicas share the work, and each goes and comes back without a row lost.

Needs the fixture `tiny_server`, and boots a second one beside it, which it kills.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.server import SGLangServer, load_deployment
from harness.server.hardware import free_port
from tests.bodies.recording import committed, finished, questions, rows_of, start, until, write_prompts
from tests.conftest import need

pytestmark = pytest.mark.server

NO_TRIP = "--no-tripwire"
OTHER = """
["other"]
model = "{model}"
gpus = 0
flags = ["--random-seed", "1"]
reasoning_parser = "kimi_k2"
tool_parser = "kimi_k2"
"""


@contextmanager
def serving(
    port: int, log: Path, deployment: str = "tiny", file: Path | None = None
) -> Iterator[SGLangServer]:
    need("sglang")
    with load_deployment(deployment, file).server(port=port, log_path=log) as server:
        yield server


@pytest.fixture
def stays(tiny_server: SGLangServer) -> SGLangServer:
    """The replica that lives through the module."""
    return tiny_server


def summary_of(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "run.json").read_text("utf-8"))["summary"]
    return told


def said(folder: Path) -> str:
    return folder.with_suffix(".out").read_text("utf-8")


def whole(folder: Path, count: int) -> None:
    summary = summary_of(folder)
    assert (summary["asked"], summary["captured"], summary["failed"]) == (count, count, 0)
    rows = rows_of(folder, "sample_id", "source_row_index")
    assert sorted(row["source_row_index"] for row in rows) == list(range(count))
    assert len({row["sample_id"] for row in rows}) == count


@contextmanager
def paused(process: subprocess.Popen[str]) -> Iterator[None]:
    """Keep a run from ending while a server boots; whoever has the server lets it go on."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def stopped(process: subprocess.Popen[str], folder: Path, code: int, seconds: float = 300) -> None:
    assert process.wait(timeout=seconds) == code, said(folder)


def test_one_of_two_dies_and_comes_back_and_nothing_is_lost(stays: SGLangServer, tmp_path: Path) -> None:
    count = 400
    port = free_port("127.0.0.1")
    urls = (f"http://127.0.0.1:{port}", str(stays.base_url))
    prompts = write_prompts(tmp_path / "p.jsonl", questions(count, ignore_eos=True))
    folder = tmp_path / "run"
    both = ("--base-url", urls[0], "--base-url", urls[1])
    options = (NO_TRIP, "--transport", "chat", "--concurrency", "4", "--wait-server", "60")
    with serving(port, tmp_path / "one.log") as server:
        # Begun with one; the other joins at the next start: URLs are no part of what a run is.
        process = start(prompts, folder, "--base-url", urls[1], *options)
        assert until(lambda: committed(folder) > 30_000, process)
        process.send_signal(signal.SIGTERM)
        stopped(process, folder, 128 + signal.SIGTERM)
        process = start(prompts, folder, *both, *options)
        assert until(lambda: committed(folder) > 150_000, process)
        os.kill(server.pid, signal.SIGKILL)
    assert until(lambda: f"{urls[0]} is away" in said(folder), process)
    before = committed(folder)
    assert until(lambda: committed(folder) > before + 20_000, process), "the other one goes on"
    with paused(process), serving(port, tmp_path / "two.log"):
        process.send_signal(signal.SIGCONT)
        assert until(lambda: f"{urls[0]} is back" in said(folder), process)
        stopped(process, folder, 0)
    whole(folder, count)
    servers = summary_of(folder)["servers"]
    assert servers[urls[0]]["outages"] == 1 and servers[urls[1]]["outages"] == 0
    assert min(servers[url]["answers"] for url in urls) > 20
    assert sum(servers[url]["answers"] for url in urls) <= count


def test_another_server_is_refused_by_name_before_anything_is_sent(
    stays: SGLangServer, tmp_path: Path
) -> None:
    from harness.models import tiny_model

    other = tmp_path / "other-model"
    shutil.copytree(tiny_model(), other)
    file = tmp_path / "deployments.toml"
    file.write_text(OTHER.format(model=other), "utf-8")
    prompts = write_prompts(tmp_path / "p.jsonl", questions(20))
    folder = tmp_path / "run"
    port = free_port("127.0.0.1")
    both = ("--base-url", str(stays.base_url), "--base-url", f"http://127.0.0.1:{port}")
    with serving(port, tmp_path / "other.log", "other", file):
        told = finished(prompts, folder, *both, NO_TRIP, code=2)["error"]
    assert told["what"] == "the servers are not the same; nothing was sent"
    assert told["where"] == f"http://127.0.0.1:{port}"
    assert str(stays.base_url) in told["why"] and "model: was" in told["why"] and "other-model" in told["why"]
    assert not (folder / "shards").exists() and not (folder / "run.json").exists()
    # One that nobody listens at is no other server: the run goes on with those that are there.
    summary = finished(prompts, folder, *both, NO_TRIP)
    assert summary["captured"] == 20 and summary["servers"][f"http://127.0.0.1:{port}"]["state"] == "away"


def test_one_that_hangs_or_comes_back_as_another_gets_no_work(stays: SGLangServer, tmp_path: Path) -> None:
    import psutil

    count = 1000  # the other one must have work left when the hang is noticed
    port = free_port("127.0.0.1")
    url = f"http://127.0.0.1:{port}"
    prompts = write_prompts(tmp_path / "p.jsonl", questions(count, ignore_eos=True))
    folder = tmp_path / "run"
    options = (NO_TRIP, "--concurrency", "4", "--patience", "12", "--slowest", "60", "--metrics-port", "0")
    both = ("--base-url", str(stays.base_url), "--base-url", url)
    with serving(port, tmp_path / "one.log") as server:
        process = start(prompts, folder, *both, *options)
        assert until(lambda: committed(folder) > 60_000, process)
        # Stopped, not dead: the port answers, and nothing is generated any more.
        assert server.pid is not None
        for child in psutil.Process(server.pid).children(recursive=True):
            if "scheduler" in child.name():
                child.suspend()
        assert until(lambda: f"{url} is away" in said(folder), process)
    with paused(process), serving(port, tmp_path / "two.log", "tiny-plain"):
        process.send_signal(signal.SIGCONT)
        assert until(lambda: f"{url} is taken out, another server answers" in said(folder), process)
        stopped(process, folder, 0)
    assert "reasoning parser: was kimi_k2, is null" in said(folder)
    whole(folder, count)
    assert summary_of(folder)["servers"][url]["state"] == "other"
