"""Quarantined rows generated again, turns with tools over several answers, prompts against the template.

Needs the fixture `tiny_server`. Where words matter, a gateway of ours puts scripts into the requests.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from contracts.records import Profile
from contracts.run import AuditResult, audit
from contracts.shard import write_shard
from contracts.tokens import Codec
from harness.scripted import custom_params, processor_text
from tests.bodies.proxy import Proxy
from tests.bodies.recording import (
    ROOT,
    committed,
    finished,
    questions,
    rows_of,
    start,
    until,
    write_prompts,
)

pytestmark = pytest.mark.server

NO_TRIP = "--no-tripwire"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def url(tiny_server: Any) -> str:
    return str(tiny_server.base_url)


def call(index: int, place: str) -> str:
    return (
        f"<|tool_call_begin|>functions.weather:{index}<|tool_call_argument_begin|>"
        f'{{"place":"{place}"}}<|tool_call_end|>'
    )


def section(*calls: str) -> str:
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


ANSWERS = (
    f"I look it up.</think>{section(call(0, 'Bonn'))}<|im_end|>",
    f"Two more.</think>Wait.{section(call(1, 'Ulm'), call(2, 'Hof'))}<|im_end|>",
    "Enough.</think>Sun everywhere.<|im_end|>",
)


def talk() -> list[dict[str, Any]]:
    """Return a source's conversation: other calls under other ids, and results that are kept."""

    def asked(name: str) -> dict[str, Any]:
        return {"id": name, "type": "function", "function": {"name": "weather", "arguments": "{}"}}

    return [
        {"role": "user", "content": "Weather in Bonn, Ulm and Hof?"},
        {"role": "assistant", "content": "", "tool_calls": [asked("call_x")]},
        {"role": "tool", "content": "Bonn: sun", "tool_call_id": "call_x"},
        {"role": "assistant", "content": "", "tool_calls": [asked("call_y"), asked("call_z")]},
        {"role": "tool", "content": "Ulm: sun", "tool_call_id": "call_y"},
        {"role": "tool", "content": "Hof: sun", "tool_call_id": "call_z"},
        {"role": "assistant", "content": "the source's"},
    ]


@pytest.mark.parametrize("transport", ["generate", "chat"])
def test_three_turns_with_tools_have_the_real_calls_and_the_sources_results(
    url: str, tiny_codec: Codec, tmp_path: Path, transport: str
) -> None:
    asked: list[str] = []

    def script(path: str, body: dict[str, Any]) -> None:
        """Answer each turn as the script has it: the history's assistant turns say which one it is."""
        if path == "generate":
            text = tiny_codec.decode_bytes(body["input_ids"]).decode()
            turn = text.count("<|im_assistant|>") - 1
            params = body["sampling_params"]
        elif "messages" in body:
            turn = sum(message["role"] == "assistant" for message in body["messages"])
            params = body
        else:
            return
        params["custom_params"] = custom_params(tiny_codec.encode(ANSWERS[turn]))
        body["custom_logit_processor"] = processor_text()
        asked.append(path)

    row = {"id": "talk", "messages": talk(), "tools": [WEATHER], "sampling": {"max_tokens": 120}}
    prompts = write_prompts(tmp_path / "p.jsonl", [row])
    folder = tmp_path / "run"
    with Proxy(url, request=script) as gateway:
        options = ("--base-url", gateway.base_url, NO_TRIP, "--transport", transport, "--turns", "each")
        summary = finished(prompts, folder, *options)
    assert summary["captured"] == summary["asked"] == 3, summary
    rows = sorted(rows_of(folder), key=lambda one: int(one["turn_index"]))
    for one, answer in zip(rows, ANSWERS, strict=True):
        assert tiny_codec.decode_bytes(one["response_token_ids"]).decode() == answer
    ids = ["functions.weather:0", "functions.weather:1", "functions.weather:2"]
    last = rows[2]["messages"]
    assert [call["id"] for message in last for call in json.loads(message["tool_calls"] or "[]")] == ids
    results = [(one["content"], one["tool_call_id"]) for one in last if one["role"] == "tool"]
    assert results == list(zip(["Bonn: sun", "Ulm: sun", "Hof: sun"], ids, strict=True))
    assert rows[2]["content"] == "Sun everywhere." and rows[2]["reasoning_content"] == "Enough."
    assert [one["parent_sample_id"] for one in rows] == [None, rows[0]["sample_id"], rows[1]["sample_id"]]
    # What the template makes of a history is told turn by turn, whatever it makes of it.
    told = [json.loads(line) for line in (folder / "parity.jsonl").read_text("utf-8").splitlines()]
    turns = [one for one in told if one["kind"] == "turns"]
    same = 0
    for before, after in pairwise(rows):
        whole = [*before["prompt_token_ids"], *before["response_token_ids"]]
        same += after["prompt_token_ids"][: len(whole)] == whole
    assert summary["turns"].get("same", 0) == same and sum(summary["turns"].values()) == 2
    assert len(turns) == 2 - same and {one["sample_id"] for one in turns} <= {
        one["sample_id"] for one in rows
    }
    # The template writes arguments with spaces of its own; SGLang tells the tools its own way, over chat.
    assert summary["turns"] == {"arguments-rewritten": 2}
    assert summary["prompts"] == ({} if transport == "generate" else {"other-tools-form": 3})


def test_over_chat_every_prompt_is_held_against_the_template(url: str, tmp_path: Path) -> None:
    rows = [*questions(6), {"prompt": "Weather?", "tools": [WEATHER], "sampling": {"max_tokens": 4}}]
    prompts = write_prompts(tmp_path / "p.jsonl", rows)
    folder = tmp_path / "run"
    options = ("--base-url", url, "--transport", "chat")
    summary = finished(prompts, folder, *options, NO_TRIP)
    assert summary["prompts"] == {"same": 6, "other-tools-form": 1}
    # A server behind something that puts a system prompt in front: named, and no run of a night.
    with Proxy(url, request=add_system) as gateway:
        options = ("--base-url", gateway.base_url, "--transport", "chat", "--max-drift", "0.1")
        tripped = finished(prompts, tmp_path / "other", *options, code=1)
    assert tripped["state"] == "tripped" and "other-system-prompt (7)" in tripped["cause"]
    lines = (tmp_path / "other" / "parity.jsonl").read_text("utf-8").splitlines()
    assert any("Be brief" in json.loads(line)["found"] for line in lines)


def test_a_run_with_nothing_left_needs_no_server(url: str, tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", questions(4))
    folder = tmp_path / "run"
    finished(prompts, folder, "--base-url", url, NO_TRIP)
    for server in (("--deployment", "tiny"), ("--base-url", "http://127.0.0.1:1", "--wait-server", "0")):
        again = finished(prompts, folder, *server, NO_TRIP, timeout=60)
        assert (again["state"], again["captured"], again["left"], again["tokens"]) == ("finished", 4, 0, 0)
    assert not (folder / "server.log").exists()
    # Something is left: then it is the server that is missing.
    (folder / "shards.json").unlink()
    (folder / "shards" / "part-00000.parquet").unlink()
    told = finished(prompts, folder, "--base-url", "http://127.0.0.1:1", "--wait-server", "0", code=2)
    assert "127.0.0.1:1" in told["error"]["where"]


def add_system(path: str, body: dict[str, Any]) -> None:
    if "messages" in body:
        body["messages"].insert(0, {"role": "system", "content": "Be brief."})


def test_a_quarantined_row_is_generated_again_and_the_set_is_clean(
    url: str, tiny_codec: Codec, tmp_path: Path
) -> None:
    count = 0

    def script(path: str, body: dict[str, Any]) -> None:
        """Answer with words: the tiny model's own are noise, which an audit finds much about."""
        nonlocal count
        if path == "generate":
            count += 1
            text = f"That was question {count}.</think>The answer is {count}.<|im_end|>"
            body["sampling_params"]["custom_params"] = custom_params(tiny_codec.encode(text))
            body["custom_logit_processor"] = processor_text()

    asked = [
        {"prompt": f"Question {n}?", "sampling": {"max_tokens": 60, "temperature": 1}} for n in range(12)
    ]
    prompts = write_prompts(tmp_path / "p.jsonl", asked)
    first, second = tmp_path / "first", tmp_path / "second"
    with Proxy(url, request=script) as gateway:
        options = ("--base-url", gateway.base_url, "--samples", "2")
        finished(prompts, first, *options)
        (shard,) = (first / "shards").glob("*.parquet")
        rows = parquet.read_table(shard).to_pylist()
        lost = dict(rows[5])
        rows[5] = {**lost, "response_token_ids": [*lost["response_token_ids"][:-1], 7, 7, 7]}
        write_shard(shard, rows, format_name="kimi_k2")
        broken = audit([first], codec=tiny_codec, certify=tmp_path / "set")
        assert broken.quarantined == 1 and broken.certified == 23, errors(broken)
        again = ("--only", str(tmp_path / "set" / "quarantine"), "-o", str(second), *options[:2])
        done = told(*again)
        assert done["asked"] == done["captured"] == 1 and done["prompts"] == {"same": 1}
        assert told(*again)["tokens"] == 0, "what was generated again is not asked for once more"
    (new,) = rows_of(second)
    assert new["sample_id"] == lost["sample_id"].removesuffix("-0") + ".again-0"
    kept = ("conversation_id", "source_dataset", "source_row_index", "sample_index", "turn_index", "messages")
    for name in kept[:-1]:
        assert new[name] == lost[name], name
    assert (
        new["messages"][:-1] == lost["messages"][:-1] and new["prompt_token_ids"] == lost["prompt_token_ids"]
    )
    assert new["sampling_params"] == lost["sampling_params"]
    whole = audit([tmp_path / "set" / "certified", second], codec=tiny_codec, profile=Profile.DRAFT)
    assert whole.rows == 24 and not errors(whole)


def errors(result: AuditResult) -> list[Any]:
    return [found for found in result.findings if str(found.severity) == "error"]


def told(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "capture", "--json", *words],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def post(url: str, path: str, **body: Any) -> None:
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 200


@pytest.mark.parametrize("transport", ["generate", "chat"])
def test_weights_that_change_in_the_middle_of_answers_stand_in_the_rows(
    url: str, tmp_path: Path, transport: str
) -> None:
    """A trainer pauses the engine in place, loads new weights, and lets the same requests go on."""
    from harness.models import tiny_model

    prompts = write_prompts(tmp_path / "p.jsonl", [
        {"prompt": f"Question {n}?", "sampling": {"max_tokens": 150, "ignore_eos": True}} for n in range(60)
    ])  # fmt: skip
    folder = tmp_path / "run"
    options = (
        "--base-url",
        url,
        NO_TRIP,
        "--transport",
        transport,
        "--concurrency",
        "8",
        "--fixed-concurrency",
    )
    process = start(prompts, folder, *options)
    try:
        assert until(lambda: committed(folder) > 20_000, process)
        post(url, "/pause_generation", mode="in_place")
        post(url, "/update_weights_from_disk", model_path=str(tiny_model()), weight_version="new",
             flush_cache=False)  # fmt: skip
        post(url, "/continue_generation")
        assert process.wait(timeout=240) == 0, folder.with_suffix(".out").read_text("utf-8")
    finally:
        post(url, "/continue_generation")
        post(url, "/update_weight_version", new_version="default", abort_all_requests=False)
    versions = Counter(row["weight_version"] for row in rows_of(folder, "weight_version"))
    assert versions.total() == 60 and versions["default+new"] >= 1
    assert set(versions) <= {"default", "new", "default+new"}
    summary = json.loads((folder / "run.json").read_text("utf-8"))["summary"]
    assert summary["weight_updates"] >= 1 and summary["failed"] == 0


@pytest.mark.parametrize("transport", ["generate", "chat"])
def test_an_aborted_answer_is_asked_again_and_never_a_row(url: str, tmp_path: Path, transport: str) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", [
        {"prompt": f"Question {n}?", "sampling": {"max_tokens": 150, "ignore_eos": True}} for n in range(40)
    ])  # fmt: skip
    folder = tmp_path / "run"
    options = (
        "--base-url",
        url,
        NO_TRIP,
        "--transport",
        transport,
        "--concurrency",
        "8",
        "--fixed-concurrency",
    )
    process = start(prompts, folder, *options)
    assert until(lambda: committed(folder) > 20_000, process)
    post(url, "/abort_request", rid="", abort_all=True)
    assert process.wait(timeout=240) == 0, folder.with_suffix(".out").read_text("utf-8")
    rows = rows_of(folder, "finish_reason", "completion_tokens", "source_row_index")
    assert sorted(row["source_row_index"] for row in rows) == list(range(40))
    assert {row["finish_reason"] for row in rows} == {"length"}
    assert {row["completion_tokens"] for row in rows} == {150}
    assert json.loads((folder / "run.json").read_text("utf-8"))["summary"]["retries"] >= 1
