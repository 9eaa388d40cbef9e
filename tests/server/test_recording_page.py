"""The run's page at each end of a start, and what a run tells nobody: its key, its prompts, its answers.

Needs the fixture `tiny_server`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.bodies.proxy import Proxy
from tests.bodies.recording import ROOT, command, committed, rows_of, until, write_prompts

pytestmark = pytest.mark.server

KEY = "sk-only-for-the-server"
ASKED = "Nobody but the server reads this"


def test_key_prompts_and_answers_stay_where_they_belong(tiny_server: Any, tmp_path: Path) -> None:
    """Shards and journal hold what was said, by nature; nothing else that a run writes or tells does."""
    rows = [
        {"prompt": f"{ASKED} {n}", "sampling": {"max_tokens": 40, "temperature": 1, "ignore_eos": True}}
        for n in range(300)
    ]
    prompts = write_prompts(tmp_path / "p.jsonl", [*rows, {"prompt": f"{ASKED} " * 9000}, {"prompt": 3}])
    folder = tmp_path / "run"
    environment = {**os.environ, "SHARDGATE_API_KEY": KEY}
    with Proxy(tiny_server.base_url) as gateway, (tmp_path / "out").open("w", encoding="utf-8") as out:
        more = ("--base-url", gateway.base_url, "--no-tripwire", "--transport", "chat", "--concurrency", "4")
        words = command(prompts, folder, *more, "--skip-bad", "--metrics-port", "0")

        def start() -> subprocess.Popen[str]:
            return subprocess.Popen(words, stdout=out, stderr=out, cwd=ROOT, text=True, env=environment)

        process = start()
        assert until(lambda: committed(folder) > 20_000, process)
        told = (tmp_path / "out").read_text("utf-8")
        port = told.split("http://127.0.0.1:")[-1].split("/")[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
            numbers = reply.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 128 + signal.SIGTERM
        assert "STOPPED" in (folder / "report.html").read_text("utf-8")
        assert start().wait(timeout=240) == 1
        assert f"Bearer {KEY}" in gateway.authorizations
    page = (folder / "report.html").read_text("utf-8")
    run = json.loads((folder / "run.json").read_text("utf-8"))
    assert "FINISHED" in page and [one["state"] for one in run["starts"]] == ["stopped", "finished"]
    answers = {row["response_text_raw"] for row in rows_of(folder, "response_text_raw")}
    files = [path for path in folder.iterdir() if path.is_file()]
    assert {"report.html", "run.json", "shards.json", "failed.jsonl"} <= {path.name for path in files}
    texts = {path.name: path.read_text("utf-8") for path in [*files, tmp_path / "out"]} | {"metrics": numbers}
    for name, text in texts.items():
        assert KEY not in text and ASKED not in text, name
        assert not [answer for answer in answers if len(answer) > 20 and answer in text], name
