"""`shardgate bench` against real servers: equal work compared, unequal work named, failures counted.

Needs the fixtures `tiny_server` and `bare_server`. No figure is asserted: how fast a machine is says nothing.
Where a mode is to do other work or to fail, a gateway in front of the real server changes its requests.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.bodies.proxy import Proxy

pytestmark = pytest.mark.server

MODES = ["generate", "raw", "reasoning", "tools"]
SMALL = ("--concurrency", "2", "--requests", "4", "--repeats", "2")


@pytest.fixture(scope="module")
def url(tiny_server: Any) -> str:
    return str(tiny_server.base_url)


def bench(*arguments: str, code: int = 0, timeout: float = 900) -> tuple[dict[str, Any], str]:
    """Run the command; returns its report, or the error that it told, and what it said besides."""
    command = [sys.executable, "-m", "harness", "bench", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told, done.stderr


def test_the_same_script_goes_through_every_mode(url: str, tmp_path: Path) -> None:
    page, data = tmp_path / "report.txt", tmp_path / "report.json"
    report, progress = bench("--base-url", url, *SMALL, "--max-tokens", "96", "-o", str(page))
    assert report["kind"] == "modes" and report["work"] == "scripted" and report["base"] == "raw"
    assert report["equal"] is True and report["failed"] == 0
    assert report["server"]["reasoning_parser"] == "kimi_k2"
    assert [(cell["concurrency"], cell["stream"]) for cell in report["cells"]] == [(2, False), (2, True)]
    for cell in report["cells"]:
        assert cell["equal"] and cell["same_outputs"] is True and cell["differences"] == []
        assert [arm["arm"] for arm in cell["arms"]] == MODES
        for arm in cell["arms"]:
            # Four requests of 84 to 96 tokens, in each of two repeats, and the same in every mode.
            assert arm["requests"] == 8 and arm["failed"] == 0 and arm["faults"] == {}
            assert len(arm["tokens"]) == 2 and 4 * 84 <= arm["tokens"][0] <= 4 * 96
            assert arm["tokens"] == cell["arms"][0]["tokens"]
            assert arm["tokens_per_s"] > 0 and arm["requests_per_s"] > 0
            assert list(arm["latency"]) == ["p50", "p90", "p99"]
            for name in ("first", "between", "gaps"):
                assert (arm[name] is not None) == cell["stream"]
            assert arm["client_cpu_us_per_token"] > 0 and arm["client_cpu_ms_per_request"] > 0
            assert arm["front_cpu_ms_per_request"] is not None
            ratios = arm["ratios"]
            assert ("throughput" in ratios) == (arm["arm"] != "raw")
            for ratio in ratios.values():
                assert ratio["repeats"] == 2 and ratio["low"] <= ratio["value"] <= ratio["high"]
    assert set(report["overall"]) == {"generate", "reasoning", "tools"}
    assert all(one["throughput"]["repeats"] == 4 for one in report["overall"].values())
    assert report["answer"][0].startswith("reasoning mode ")
    assert "warm-up" in progress and "left" in progress
    assert page.read_text("utf-8").startswith(report["answer"][0])
    assert not data.exists()


def test_where_nothing_is_scripted_the_outputs_are_equally_long(url: str, tmp_path: Path) -> None:
    prompts, data = tmp_path / "p.jsonl", tmp_path / "report.json"
    # The rows' own sampling is not the bench's.
    rows = [{"prompt": f"{number}?", "sampling": {"max_tokens": 3 + number}} for number in range(3)]
    prompts.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    options = ("--work", "sampled", "--no-stream", "--max-tokens", "12", "--prompts", str(prompts))
    report, _ = bench("--base-url", url, *SMALL, *options, "-o", str(data))
    assert report["work"] == "sampled" and report["equal"] is True
    (cell,) = report["cells"]
    assert {tuple(arm["tokens"]) for arm in cell["arms"]} == {(48, 48)}
    assert json.loads(data.read_text("utf-8")) == report


def test_unequal_work_is_named_and_exits_with_1(url: str) -> None:
    def shorten(kind: str, body: dict[str, Any]) -> None:
        if body.get("tools") and body.get("max_tokens", 0) > 1:
            body["max_tokens"] -= 4

    with Proxy(url, request=shorten) as proxy:
        report, _ = bench(
            "--base-url", proxy.base_url, *SMALL, "--work", "sampled", "--no-stream", "--max-tokens", "12",
            "--modes", "raw,tools", code=1,
        )  # fmt: skip
    assert report["equal"] is False and report["failed"] == 0
    (cell,) = report["cells"]
    assert cell["differences"] == [
        {"arm": "tools", "what": "another number of tokens", "requests": 8, "of": 8}
    ]
    tools = cell["arms"][1]
    assert tools["tokens"] == [32, 32] and "over unequal work" in tools["words"]
    assert any("not the same work" in line for line in report["answer"])


def test_failed_requests_are_counted_by_cause_and_exit_with_1(url: str) -> None:
    count = itertools.count()

    def spoil(kind: str, body: dict[str, Any]) -> None:
        # Chat with the reasoning parser and no tools; every second one of it.
        if body.get("max_tokens", 0) > 1 and "separate_reasoning" not in body and not body.get("tools"):
            body["top_p"] = 7 if next(count) % 2 else 1

    options = ("--work", "sampled", "--no-stream", "--max-tokens", "8", "--modes", "raw,reasoning")
    with Proxy(url, request=spoil) as proxy:
        report, _ = bench("--base-url", proxy.base_url, *SMALL, *options, code=1)
    raw, reasoning = report["cells"][0]["arms"]
    assert raw["failed"] == 0 and reasoning["failed"] == report["failed"] == 4
    (fault,) = reasoning["faults"]
    assert fault.startswith("status 400") and reasoning["faults"][fault] == 4
    assert "over unequal work" in reasoning["words"]


def test_a_mode_without_any_answer_ends_the_bench_and_says_which(url: str) -> None:
    def refuse(kind: str, body: dict[str, Any]) -> None:
        if kind == "stream" and body.get("tools"):
            body["top_p"] = 7

    with Proxy(url, request=refuse) as proxy:
        told, _ = bench("--base-url", proxy.base_url, *SMALL, "--work", "sampled", "--stream", code=2)
    assert told["error"]["what"] == "no request was answered: tools, streamed"
    assert "status 400" in told["error"]["why"]


def test_a_server_without_parsers_is_told_to_have_none(bare_server: Any) -> None:
    report, _ = bench(
        "--base-url", str(bare_server.base_url), *SMALL, "--no-stream", "--max-tokens", "96", code=0
    )
    told = " ".join(report["notes"])
    assert "without a reasoning parser" in told and "without a tool-call parser" in told
    assert report["equal"] is True


def test_scripts_are_refused_where_the_server_takes_none(url: str) -> None:
    def hide(kind: str, body: dict[str, Any]) -> None:
        body.pop("enable_custom_logit_processor", None)

    with Proxy(url, answer=hide) as proxy:
        told, _ = bench("--base-url", proxy.base_url, *SMALL, "--work", "scripted", code=2)
    assert told["error"]["what"] == "this server takes no scripts"


def test_recording_and_bench_serving_do_the_same_work(url: str) -> None:
    report, progress = bench(
        "--base-url", url, "--capture", "--no-stream", "--concurrency", "2", "--requests", "4",
        "--max-tokens", "8", "--repeats", "2",
    )  # fmt: skip
    assert report["kind"] == "capture" and report["target"] == 0.97
    assert report["equal"] is True and report["failed"] == 0
    (cell,) = report["cells"]
    assert cell["equal"] and cell["differences"] == [] and cell["requests"] == 4
    assert [one["client"] for one in cell["clients"]] == ["capture", "bench_serving"]
    for one in cell["clients"]:
        assert one["tokens"] == [32, 32] and one["failed"] == 0 and one["tokens_per_s"] > 0
    assert cell["clients"][0]["ratio"] is None and cell["clients"][1]["ratio"]["repeats"] == 2
    assert set(report["overall"]) == {"bench_serving"}
    assert report["answer"][0].startswith("capture reaches ")
    assert "warm-up" in progress


def test_a_deployment_is_booted_for_the_bench_and_ended() -> None:
    report, progress = bench(
        "--deployment", "tiny", "--flags", "--max-running-requests 4", "--work", "sampled", "--no-stream",
        "--concurrency", "1", "--requests", "1", "--max-tokens", "4", "--repeats", "2",
        "--modes", "raw,reasoning",
    )  # fmt: skip
    assert report["equal"] is True and "boot" in progress
    port = report["server"]["base_url"].rpartition(":")[2]
    assert not [
        process
        for process in psutil.process_iter(["cmdline"])
        if f"--port {port}" in " ".join(process.info["cmdline"] or ())
    ]
