"""The capture run when its server is full, dies, hangs or goes away: the run goes on, and is whole.

Boots a server of its own, since it kills it; one that runs elsewhere goes away by its wire.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.bodies.recording import committed, questions, rows_of, start, until, write_prompts
from tests.bodies.wire import Wire
from tests.conftest import need

pytestmark = pytest.mark.server

NO_TRIP = "--no-tripwire"


def processes_of(parent: int, word: str) -> list[int]:
    """Return the processes below `parent` whose name or command line has the word."""
    import psutil

    found = []
    for child in psutil.Process(parent).children(recursive=True):
        try:
            if word in f"{child.name()} {' '.join(child.cmdline())}":
                found.append(child.pid)
        except psutil.Error:
            continue
    return found


def state_of(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "run.json").read_text("utf-8"))
    return told


def said(folder: Path) -> str:
    return folder.with_suffix(".out").read_text("utf-8")


def whole(folder: Path, count: int) -> None:
    rows = rows_of(folder, "sample_id", "source_row_index")
    assert sorted(row["source_row_index"] for row in rows) == list(range(count))
    assert len({row["sample_id"] for row in rows}) == count


def test_a_full_server_is_asked_less_and_a_dead_or_hanging_one_is_booted_again(tmp_path: Path) -> None:
    need("sglang")
    need("psutil")
    count = 300
    prompts = write_prompts(tmp_path / "p.jsonl", questions(count, ignore_eos=True))
    folder = tmp_path / "run"
    full = "--max-running-requests 2 --max-queued-requests 2"
    options = ("--deployment", "tiny", "--flags", full, NO_TRIP, "--transport", "chat", "--attempts", "20")
    hurried = ("--patience", "20", "--slowest", "30", "--restarts", "2")
    process = start(prompts, folder, *options, *hurried)
    try:
        assert until(lambda: committed(folder) > 60_000, process, 300)
        (server,) = processes_of(process.pid, "sglang.launch_server")[:1]
        os.kill(server, signal.SIGKILL)
        assert until(lambda: (folder / "server-1.log").exists(), process, 120)
        before = committed(folder)
        assert until(lambda: committed(folder) > before + 20_000, process, 300)
        # Stopped, not dead: the port answers, and nothing is generated any more.
        for pid in processes_of(process.pid, "sglang::scheduler"):
            os.kill(pid, signal.SIGSTOP)
        assert until(lambda: (folder / "server-2.log").exists(), process, 240)
        assert process.wait(timeout=400) == 0, said(folder)
    finally:
        process.terminate()
        process.wait(timeout=60)
    summary = state_of(folder)["summary"]
    assert (summary["asked"], summary["captured"], summary["failed"]) == (count, count, 0)
    assert summary["outages"] == 2 and summary["retries"] > 0
    whole(folder, count)


def test_a_server_elsewhere_is_waited_for_and_another_one_is_refused(
    tiny_server: Any, bare_server: Any, tmp_path: Path
) -> None:
    count = 300
    prompts = write_prompts(tmp_path / "p.jsonl", questions(count, ignore_eos=True))
    folder = tmp_path / "run"
    with Wire() as wire:
        wire.lead(tiny_server.base_url)
        options = ("--base-url", wire.url, NO_TRIP, "--transport", "chat", "--concurrency", "4")
        process = start(prompts, folder, *options)
        assert until(lambda: committed(folder) > 30_000, process)
        wire.cut()
        assert until(lambda: "waiting" in said(folder), process)
        wire.lead(bare_server.base_url)
        assert process.wait(timeout=120) == 2
        assert "another server answers" in said(folder)
        assert "reasoning parser: was kimi_k2" in said(folder)
        wire.cut()
        wire.lead(tiny_server.base_url)
        process = start(prompts, folder, *options)
        before = committed(folder)
        assert until(lambda: committed(folder) > before + 20_000, process)
        # Away for a while, and back as the same: waited for, and gone on with.
        wire.cut()
        assert until(lambda: said(folder).count("waiting") >= 2, process)
        wire.lead(tiny_server.base_url)
        assert process.wait(timeout=240) == 0, said(folder)
    summary = state_of(folder)["summary"]
    assert (summary["asked"], summary["captured"], summary["failed"]) == (count, count, 0)
    assert summary["outages"] == 1
    whole(folder, count)
