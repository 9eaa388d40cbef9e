"""The capture run against a real server: what it asks, what it writes, and how it ends.

Needs the fixtures `tiny_server` and `bare_server`. The tiny model's words are noise; the ids are what counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from contracts.records import Profile, Prompt, ServerFacts
from contracts.run import audit
from contracts.shard import seal
from contracts.tokens import Codec
from harness.client import Client
from harness.recording.rendering import Renderer
from tests.bodies.recording import committed, finished, questions, rows_of, start, until, write_prompts

pytestmark = pytest.mark.server

KILLS = int(os.environ.get("SHARDGATE_KILLS", "6"))
"""How often the client is killed; 100 for the figure of a release."""
NO_TRIP = "--no-tripwire"


@pytest.fixture(scope="module")
def url(tiny_server: Any) -> str:
    return str(tiny_server.base_url)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Grüße, 你好!"}],
        [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}],
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello <think> there"},
            {"role": "user", "content": "Go on"},
        ],
    ],
)
@pytest.mark.parametrize("kwargs", [{}, {"thinking": False}])
def test_the_prompt_is_the_one_that_the_server_makes(
    url: str, tiny_codec: Codec, messages: list[dict[str, str]], kwargs: dict[str, bool]
) -> None:
    from harness.models import tiny_model

    prompt = Prompt(name="p", messages=tuple(messages), template_kwargs=kwargs)
    renderer = Renderer(tiny_model(), tiny_codec, template=None, trust_remote_code=False)

    async def theirs() -> tuple[int, ...]:
        async with Client(url, facts=ServerFacts(base_url=url, model="tiny")) as client:
            return await client.render(prompt)

    assert renderer.ids(prompt) == asyncio.run(theirs())


def test_a_run_is_whole_and_the_audit_finds_no_row_twice(url: str, tmp_path: Path) -> None:
    too_long = {"prompt": "word " * 12_000}
    prompts = write_prompts(tmp_path / "p.jsonl", [*questions(20), too_long, {"prompt": 3}])
    folder = tmp_path / "run"
    options = ("--base-url", url, NO_TRIP, "--samples", "2", "--shard-rows", "16", "--logprobs")
    refused = finished(prompts, folder, *options, code=2)
    assert f"{prompts}:22" in refused["error"]["where"]
    assert not folder.exists()
    summary = finished(prompts, folder, *options, "--skip-bad", code=1)
    assert (summary["asked"], summary["captured"], summary["failed"], summary["left"]) == (43, 40, 3, 0)
    assert summary["failures"] == {"status-400": 2, "no-prompt": 1} and summary["state"] == "finished"
    rows = rows_of(folder)
    assert len({row["sample_id"] for row in rows}) == len(rows) == 40
    assert Counter(row["source_row_index"] for row in rows) == dict.fromkeys(range(20), 2)
    for row in rows:
        assert len(row["response_token_ids"]) == row["completion_tokens"] == len(row["output_logprobs"])
        assert row["text_source"] == "served" and row["claims"]["captured"] and row["claims"]["text"]
        assert seal(row)["content_sha256"] == row["content_sha256"]
    result = audit([folder], profile=Profile.TEST)
    fired = {found.rule for found in result.findings}
    assert result.rows == 40 and not fired & {"sample-id-twice", "sample-twice", "row-twice"}
    failed = [json.loads(line) for line in (folder / "failed.jsonl").read_text("utf-8").splitlines()]
    assert [one["reason"] for one in failed] == ["no-prompt", "status-400", "status-400"]
    # The same command asks for nothing again, and says how the run stands.
    again = finished(prompts, folder, *options, "--skip-bad", code=1)
    assert (again["captured"], again["failed"], again["tokens"]) == (40, 3, 0)
    retried = finished(prompts, folder, *options, "--skip-bad", "--retry-failed", code=1)
    assert (retried["captured"], retried["failed"]) == (40, 3)


def test_over_chat_the_row_is_what_an_application_sees(url: str, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", questions(10))
    folder = tmp_path / "run"
    summary = finished(prompts, folder, "--base-url", url, NO_TRIP, "--transport", "chat")
    rows = rows_of(folder)
    assert summary["captured"] == len(rows) == 10
    assert {row["transport"] for row in rows} == {"chat"}
    assert {row["text_source"] for row in rows} == {"derived"}
    assert all(row["response_token_ids"] and row["prompt_token_ids"] for row in rows)


def test_each_turn_is_asked_with_the_real_history(url: str, tmp_path: Path) -> None:
    said: list[dict[str, str]] = []
    for number in range(3):
        said += [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": "the source's"}]
    prompts = write_prompts(
        tmp_path / "p.jsonl", [{"id": "talk", "messages": said, "sampling": {"max_tokens": 12}}]
    )
    folder = tmp_path / "run"
    summary = finished(prompts, folder, "--base-url", url, NO_TRIP, "--turns", "each", "--samples", "2")
    assert summary["asked"] == summary["captured"] == 6
    rows = {row["sample_id"]: row for row in rows_of(folder)}
    assert Counter((row["sample_index"], row["turn_index"]) for row in rows.values()) == {
        (sample, turn): 1 for sample in range(2) for turn in range(3)
    }
    for row in rows.values():
        assert "the source's" not in {message["content"] for message in row["messages"]}
        if row["turn_index"]:
            before = rows[row["parent_sample_id"]]
            assert before["turn_index"] == row["turn_index"] - 1
            assert before["sample_index"] == row["sample_index"]
            assert row["messages"][: len(before["messages"])] == before["messages"]
        else:
            assert row["parent_sample_id"] is None


def test_other_settings_are_refused_and_named(url: str, bare_server: Any, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", questions(3))
    folder = tmp_path / "run"
    common = (NO_TRIP, "--transport", "chat")
    finished(prompts, folder, "--base-url", url, *common)
    for changed, named in (
        (("--base-url", url, "--samples", "2"), "samples: was 1, is 2"),
        (("--base-url", url, "--sampling", '{"top_p": 0.5}'), "sampling"),
        (("--base-url", str(bare_server.base_url)), "reasoning parser: was kimi_k2, is null"),
    ):
        told = finished(prompts, folder, *common, *changed, code=2)
        assert told["error"]["what"] == "the run was begun under other settings"
        assert named in told["error"]["why"]
    write_prompts(prompts, questions(4))
    assert "prompts" in finished(prompts, folder, "--base-url", url, *common, code=2)["error"]["why"]


def test_a_server_without_its_parser_is_found_at_once(bare_server: Any, tmp_path: Path) -> None:
    """The seed's case: hours of rows with the reasoning in content, told after the first ones."""
    prompts = write_prompts(tmp_path / "p.jsonl", questions(300))
    folder = tmp_path / "run"
    common = ("--base-url", str(bare_server.base_url), "--transport", "chat")
    summary = finished(prompts, folder, *common, code=1)
    assert summary["state"] == "tripped" and "reasoning-in-content" in summary["cause"]
    assert "--reasoning-parser" in summary["recommendation"]["flags"]
    assert "booted without `--reasoning-parser`" in summary["recommendation"]["headline"]
    assert summary["captured"] + summary["failed"] + summary["left"] == 300 and summary["left"] > 200
    # Who wants these rows gets them, the first ones not twice.
    whole = finished(prompts, folder, *common, NO_TRIP)
    assert whole["captured"] == len({row["sample_id"] for row in rows_of(folder, "sample_id")}) == 300


def test_sigterm_flushes_and_the_next_start_goes_on(url: str, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", questions(400, ignore_eos=True))
    folder = tmp_path / "run"
    common = ("--base-url", url, NO_TRIP, "--transport", "chat", "--concurrency", "4", "--metrics-port", "0")
    process = start(prompts, folder, *common)
    assert until(lambda: committed(folder) > 50_000, process)
    told = folder.with_suffix(".out").read_text("utf-8")
    port = told.split("http://127.0.0.1:")[-1].split("/")[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        assert reply.headers["Content-Type"].startswith("application/openmetrics-text")
        text = reply.read().decode()
    assert "shardgate_capture_generations 400" in text and text.endswith("# EOF\n")
    # The folder is this run's alone for as long as it lives.
    second = finished(prompts, folder, *common, code=2)
    assert second["error"]["what"] == "another run works in this folder"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    state = json.loads((folder / "run.json").read_text("utf-8"))
    kept = len(rows_of(folder, "sample_id"))
    assert state["state"] == "stopped" and state["summary"]["captured"] == kept > 0
    summary = finished(prompts, folder, *common)
    assert summary["captured"] == len({row["sample_id"] for row in rows_of(folder, "sample_id")}) == 400


def test_rows_name_the_weights_that_made_them_and_aborts_are_asked_again(url: str, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", questions(400, ignore_eos=True))
    folder = tmp_path / "run"

    def update(version: str) -> None:
        body = json.dumps({"new_version": version, "abort_all_requests": True}).encode()
        request = urllib.request.Request(
            f"{url}/update_weight_version", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            assert reply.status == 200

    process = start(prompts, folder, "--base-url", url, NO_TRIP, "--transport", "chat", "--concurrency", "4")
    try:
        assert until(lambda: committed(folder) > 50_000, process)
        update("later")
        assert process.wait(timeout=120) == 0, folder.with_suffix(".out").read_text("utf-8")
    finally:
        update("default")
    state = json.loads((folder / "run.json").read_text("utf-8"))
    assert state["summary"]["captured"] == 400 and state["summary"]["weight_updates"] >= 1
    rows = rows_of(folder, "weight_version", "finish_reason")
    assert {"default", "later"} <= {row["weight_version"] for row in rows}
    assert "abort" not in {row["finish_reason"] for row in rows}


@pytest.mark.parametrize("transport", ["chat", "generate"])
def test_a_client_killed_at_any_moment_loses_nothing_and_doubles_nothing(
    url: str, tmp_path: Path, transport: str
) -> None:
    kills = KILLS if transport == "chat" else min(KILLS, 2)
    prompts = write_prompts(tmp_path / "p.jsonl", questions(60 * kills, ignore_eos=True))
    folder = tmp_path / "run"
    common = ("--base-url", url, NO_TRIP, "--transport", transport, "--shard-rows", "7", "--concurrency", "8")
    draw = random.Random(6)
    killed = 0
    for _ in range(kills):
        before = committed(folder)
        process = start(prompts, folder, *common)
        # From the first write on at any moment, of a run that writes all the time.
        if until(lambda before=before: committed(folder) != before, process):  # type: ignore[misc]
            try:
                process.wait(timeout=draw.uniform(0, 0.6))
            except Exception:
                process.kill()
                killed += 1
        process.wait(timeout=60)
        visible = [row["sample_id"] for row in rows_of(folder, "sample_id")]
        assert len(visible) == len(set(visible))
    assert killed >= kills - 1
    summary = finished(prompts, folder, *common)
    rows = rows_of(folder)
    assert summary["asked"] == summary["captured"] == len(rows) == 60 * kills
    assert Counter(row["source_row_index"] for row in rows) == dict.fromkeys(range(60 * kills), 1)
    assert len({row["sample_id"] for row in rows}) == len(rows)
    assert all(seal(row)["content_sha256"] == row["content_sha256"] for row in rows)
    assert not list((folder / "shards").glob(".*"))
