"""The parts of the capture run by themselves: pacing, tripwire, settings, numbers, the command's refusals.

Place in the flow: none; `harness.recording` without a server.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import ShardgateError
from contracts.formats import format_named
from contracts.records import (
    Capture,
    Claims,
    Fields,
    Judgement,
    Loss,
    Mode,
    Prompt,
    SegmentKind,
    ServerFacts,
    Transport,
    Usage,
    Verdict,
)
from harness.recording.generate import Patience, _fitted, weights_told
from harness.recording.metrics import MetricsPort
from harness.recording.pacing import Pacer
from harness.recording.settings import OtherSettings, pin, read_run
from harness.recording.status import Status, server_gauges
from harness.recording.tripwire import Tripwire

FORMAT = format_named("kimi_k2")
FACTS = ServerFacts(
    base_url="http://x", model="m", reasoning_parser="kimi_k2", tool_parser="kimi_k2", weight_version="1"
)


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def paced(pacer: Pacer, clock: Clock, tokens_a_second: Callable[[int], float], windows: int) -> list[int]:
    """Play a server that gives `tokens_a_second(requests)`; returns the limit after each window."""
    limits = []
    for _ in range(windows):
        limit = pacer.limit
        answers = max(limit, 4)
        rate = tokens_a_second(limit)
        seconds = answers * 100 / rate
        for _ in range(answers):
            clock.now += seconds / answers
            pacer.answered(100)
        limits.append(pacer.limit)
    return limits


@given(full_at=st.integers(min_value=2, max_value=200), a_request=st.floats(min_value=1, max_value=500))
def test_the_limit_goes_to_where_the_server_is_full(full_at: int, a_request: float) -> None:
    """Up to `full_at` requests each brings its own rate; beyond it they share one."""
    clock = Clock()
    pacer = Pacer(256, clock=clock)
    limits = paced(pacer, clock, lambda n: a_request * min(n, full_at), 60)
    settled = limits[20:]
    assert all(full_at * 0.5 <= limit <= max(full_at * 2.5, 20) for limit in settled), (full_at, limits)


def test_a_server_that_gains_gets_all_that_is_allowed() -> None:
    clock = Clock()
    pacer = Pacer(200, clock=clock)
    assert paced(pacer, clock, lambda n: 30 * n**0.8, 30)[-1] == 200


@given(refusals=st.integers(min_value=1, max_value=200), limit=st.integers(min_value=1, max_value=300))
def test_refusals_of_one_burst_cut_once(refusals: int, limit: int) -> None:
    clock = Clock()
    pacer = Pacer(300, start=limit, clock=clock)
    clock.now = 10.0
    for _ in range(refusals):
        pacer.refused(9.0)
    assert pacer.limit == max(1, int(limit * 2 / 3)) and pacer.cuts == 1
    clock.now = 20.0
    pacer.refused(15.0)
    assert pacer.limit >= 1 and pacer.cuts == 2


def test_no_more_are_under_way_than_the_limit() -> None:
    async def go() -> int:
        pacer = Pacer(3, fixed=True)
        most = 0

        async def one() -> None:
            nonlocal most
            await pacer.acquire()
            most = max(most, pacer.under_way)
            await asyncio.sleep(0)
            await pacer.release()

        await asyncio.gather(*(one() for _ in range(50)))
        assert pacer.under_way == 0
        return most

    assert asyncio.run(go()) == 3


def test_a_deadline_grows_with_the_asked_tokens() -> None:
    def prompt(**sampling: int) -> Prompt:
        return Prompt(name="p", messages=(), sampling=sampling)

    patience = Patience(base=10, slowest=2)
    assert patience.deadline(prompt(max_tokens=100), FACTS) == 60
    assert patience.deadline(prompt(max_completion_tokens=200), FACTS) == 110
    assert patience.deadline(prompt(), replace(FACTS, flags={"context_length": 1000})) == 510


def answer(*losses: str, verdict: Verdict = Verdict.EXACT, chat: bool = False) -> tuple[Capture, Judgement]:
    capture = Capture(
        prompt=Prompt(name="p", messages=({"role": "user", "content": "x"},)),
        mode=Mode.REASONING,
        transport=Transport.CHAT if chat else Transport.GENERATE,
        stream=False,
        server=FACTS,
        request={},
        response_body=b"",
        fields=Fields(content="x"),
        raw_text=None,
        prompt_token_ids=(1,),
        response_token_ids=(2,),
        finish_reason="stop",
        matched_stop=None,
        usage=Usage(1, 1),
        request_id=None,
        created_at=datetime.now(UTC),
    )
    told = tuple(Loss(name, SegmentKind.CONTENT, 0, 0) for name in losses)
    return capture, Judgement(Claims(), verdict, told, None, "x", None, None, "stop", "x", "x")


@pytest.mark.parametrize("name", ["ids-missing", "invented-token", "token-out-of-range"])
def test_ids_that_are_no_truth_trip_at_once(name: str) -> None:
    wire = Tripwire(FACTS, FORMAT, 1000)
    wire.saw(700, *answer(name, verdict=Verdict.CONTRADICTED))
    assert wire.tripped is not None and name in wire.tripped.cause


@pytest.mark.parametrize("name", ["reasoning-in-content", "marker-leaked"])
def test_leaks_trip_at_once_where_the_parser_is_missing(name: str) -> None:
    leak = answer(name, verdict=Verdict.CONTRADICTED, chat=True)
    bare = Tripwire(replace(FACTS, reasoning_parser=None), FORMAT, 10)
    bare.saw(0, *leak)
    assert bare.tripped is not None
    right = Tripwire(FACTS, FORMAT, 10)
    right.saw(0, *leak)
    assert right.tripped is None, "with the right parser on, one such answer is the parser's own loss"


def test_short_answers_do_not_decide() -> None:
    wire = Tripwire(FACTS, FORMAT, 10)
    bad = answer("finish-contradicted", verdict=Verdict.CONTRADICTED)
    for number in range(9):  # all bad so far, and all of them early
        wire.saw(number, *bad)
        wire.finished(number)
        wire.saw(100 + number, *bad)  # asked for later, answered sooner: not of the cohort
        wire.finished(100 + number)
        assert wire.tripped is None and not wire.decided
    wire.saw(9, *bad)
    wire.finished(9)
    assert wire.decided and wire.tripped is not None and "10 of the first 10" in wire.tripped.cause


@given(bad=st.integers(min_value=0, max_value=40), failed=st.integers(min_value=0, max_value=40))
def test_the_shares_decide(bad: int, failed: int) -> None:
    size = 40 + bad + failed
    wire = Tripwire(FACTS, FORMAT, size)
    for number in range(size):
        if number < failed:
            wire.finished(number, "timeout")
            continue
        wrong = number < failed + bad
        found = answer("finish-contradicted", verdict=Verdict.CONTRADICTED) if wrong else answer()
        wire.saw(number, *found)
        wire.finished(number)
    assert wire.decided
    assert (wire.tripped is not None) == (bad > 0.10 * (40 + bad) or failed > 0.25 * size)


def test_a_run_smaller_than_the_cohort_is_decided_by_what_it_has() -> None:
    wire = Tripwire(FACTS, FORMAT, 64)
    wire.finished(0, "timeout")
    wire.finished(1, "timeout")
    assert wire.tripped is None
    wire.shrink(2)
    assert wire.tripped is not None and "2 of the first 2 requests failed: timeout (2)" in wire.tripped.cause


def test_a_run_goes_on_under_its_own_settings_only(tmp_path: Path) -> None:
    then = {"model": "a", "samples": 1, "sampling": {"top_p": 1, "top_k": 2}}
    assert pin(tmp_path, then, {}) is False
    assert pin(tmp_path, {**then, "sampling": {"top_k": 2, "top_p": 1}}, {}) is True
    with pytest.raises(OtherSettings) as caught:
        pin(tmp_path, {"model": "b", "samples": 1, "new": 3}, {})
    for told in ("model: was a, is b", "new: was null, is 3", "sampling: was"):
        assert told in caught.value.why
    assert "samples" not in caught.value.why


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "server.log").write_text("", "utf-8")
    assert read_run(tmp_path) is None, "what a run killed before its first words leaves"
    (tmp_path / "thesis.tex").write_text("", "utf-8")
    with pytest.raises(ShardgateError, match="taken"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text('{"servers": []}', "utf-8")
    with pytest.raises(ShardgateError, match="no capture run"):
        read_run(tmp_path)


def test_the_servers_own_gauges_are_read_over_all_ranks() -> None:
    text = (
        "# HELP sglang:num_running_reqs The number of running requests.\n"
        'sglang:num_running_reqs{model_name="m",tp_rank="0"} 3.0\n'
        'sglang:num_running_reqs{model_name="m",tp_rank="1"} 4.0\n'
        'sglang:num_queue_reqs{model_name="m"} 2.0\n'
        'sglang:token_usage{tp_rank="0"} 0.25\nsglang:token_usage{tp_rank="1"} 0.5\n'
        "sglang:cache_hit_rate 0.9\n"
    )
    assert server_gauges(text) == {"running": 7.0, "queued": 2.0, "cache": 0.5}
    assert server_gauges("") == {}


def test_numbers_for_people_and_for_machines() -> None:
    clock = Clock()
    status = Status(total=100, captured=10, failed=1, clock=clock)
    status.causes["timeout"] = 1
    clock.now = 2.0
    status.verdicts.update(exact=3, lossy=1)
    status.count(4, 0, 800)
    status.captured += 4
    facts = status.progress()
    assert (facts["done"], facts["total"]) == (15, 100) and "400 tokens/s" in facts["message"]
    assert facts["remaining"] == pytest.approx(85 / 2)
    assert facts["verdicts"] == "lossy 25% exact 75%" and "timeout 1" in facts["failed"]
    with MetricsPort(status.open_metrics, 0) as port:
        base = f"http://127.0.0.1:{port.port}"
        with urllib.request.urlopen(f"{base}/metrics", timeout=10) as reply:
            text = reply.read().decode()
        with pytest.raises(urllib.error.HTTPError), urllib.request.urlopen(f"{base}/", timeout=10):
            pass
        with pytest.raises(ShardgateError, match="port"), MetricsPort(status.open_metrics, port.port):
            pass
    assert "shardgate_capture_captured_total 14" in text
    assert 'shardgate_capture_failures_total{reason="timeout"} 1' in text and text.endswith("# EOF\n")


def test_tool_results_answer_the_calls_that_were_made() -> None:
    results = [{"role": "tool", "content": "sun", "tool_call_id": "old"}, {"role": "user", "content": "ok"}]
    call = {"id": "functions.f:0", "function": {"name": "f", "arguments": "{}"}}
    fitted = _fitted({"role": "assistant", "tool_calls": [call]}, results)
    assert fitted == [{**results[0], "tool_call_id": "functions.f:0"}, results[1]]
    assert _fitted({"role": "assistant"}, results) is None
    assert _fitted({"role": "assistant", "tool_calls": [call]}, results[1:]) is None
    assert _fitted({"role": "assistant"}, results[1:]) == results[1:]


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        ({"weight_version": "1"}, "1"),
        ({"weight_versions": [{"version": "1", "start": 0, "end": 5}], "weight_version": "1"}, "1"),
        (
            {"weight_versions": [{"version": v, "start": 0, "end": 5} for v in "12"], "weight_version": "2"},
            "1+2",
        ),
        ({}, None),
    ],
)
def test_a_response_names_the_weights_that_made_it(meta: dict[str, object], told: str | None) -> None:
    lie = 'I was made by "weight_version":"9", "weight_versions":[{"version":"8"}]'
    for spacing in ((",", ":"), (", ", ": ")):
        body = json.dumps({"text": lie, "meta_info": {"id": "x", **meta}}, separators=spacing).encode()
        assert weights_told(body) == told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "give one server"),
        (["--base-url", "http://127.0.0.1:1", "--deployment", "tiny"], "give one server"),
        (["--base-url", "http://127.0.0.1:1", "--flags", "--tp-size 2"], "runs already"),
        (["--base-url", "http://127.0.0.1:1", "--sampling", "[1]"], "not a JSON object"),
        (["--deployment", "tiny-router"], "is a group"),
        (["--base-url", "http://127.0.0.1:1", "--wait-server", "0"], "127.0.0.1:1"),
    ],
)
def test_wrong_use_is_told_and_nothing_is_written(tmp_path: Path, options: list[str], told: str) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"prompt": "x"}) + "\n", "utf-8")
    root = Path(__file__).resolve().parents[2]
    words = [sys.executable, "-m", "harness", "capture", str(prompts), "-o", str(tmp_path / "run"), *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=root)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "shards").exists()
