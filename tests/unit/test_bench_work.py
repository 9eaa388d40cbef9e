"""What a bench asks and compares: the same prompts and outputs, unequal work named, failures counted.

Place in the flow: tests `harness.benching` and the command's refusals; batches are made here, no server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import ShardgateError
from contracts.formats import FORMATS
from contracts.records import ServerFacts
from fixtures.corruptions.families import codec_of
from harness.benching import equal, results, work
from harness.benching.clients import Run
from harness.benching.load import Answer, Batch
from harness.benching.records import CAPTURE, WHOLE, RecordsReport, cell_of
from harness.benching.results import UNEQUAL, ModesReport
from harness.benching.stats import ratio_of
from harness.benching.words import lines
from harness.report.data import dumps
from harness.scripted import check_script

ROOT = Path(__file__).resolve().parents[2]
FACTS = ServerFacts(base_url="http://127.0.0.1:1", model="m")


def answers(*tokens: int, **more: object) -> tuple[Answer, ...]:
    told = [Answer(0.5, prompt_tokens=7, tokens=count, said=count) for count in tokens]
    return tuple(replace(one, **more) for one in told)  # type: ignore[arg-type]


def batch(arm: str, asked: tuple[Answer, ...], seconds: float = 1.0, front: float | None = 0.2) -> Batch:
    return Batch(arm, seconds, 0.1, front, asked)


def report_of(batches: dict[str, list[Batch]]) -> ModesReport:
    equality = equal.compared(batches, "raw")
    cell = results.cell_of(8, False, batches, "raw", equality)
    overall = {}
    for arm in batches:
        if arm != "raw":
            single = results.single_ratios(batches[arm], batches["raw"])
            overall[arm] = {n: r for n, v in single.items() if (r := ratio_of(v)) is not None}
    failed = results.failures([cell])
    return ModesReport(
        kind="modes",
        server=FACTS,
        work="sampled",
        base="raw",
        settings={"repeats": 2},
        cells=(cell,),
        overall=overall,
        equal=cell.equal,
        failed=failed,
        notes=("a note",),
        answer=results.answers_of([cell], overall, "raw", failed),
    )


def test_equal_work_is_called_equal_and_the_same_tokens_the_same() -> None:
    batches = {arm: [batch(arm, answers(5, 6)), batch(arm, answers(5, 6))] for arm in ("raw", "tools")}
    found = equal.compared(batches, "raw")
    assert found.equal and found.same_outputs is True
    report = report_of(batches)
    assert report.equal and not report.failed
    assert not any(UNEQUAL in line for line in lines(report))


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (answers(5, 9), "another number of tokens"),
        (answers(5, 6, prompt_tokens=8), "another prompt"),
        (answers(5, 6, as_scripted=False), "tokens that the script does not have"),
    ],
)
def test_unequal_work_is_named_in_the_report(others: tuple[Answer, ...], said: str) -> None:
    report = report_of(
        {
            "raw": [batch("raw", answers(5, 6)), batch("raw", answers(5, 6))],
            "tools": [batch("tools", others), batch("tools", answers(5, 6))],
        }
    )
    assert not report.equal
    (difference, *_) = report.cells[0].differences
    assert difference.arm == "tools" and difference.what == said and difference.of == 4
    assert any(said in line for line in report.answer)
    assert any(UNEQUAL in line for line in report.answer if "tools mode" in line)
    assert UNEQUAL in next(arm.words for arm in report.cells[0].arms if arm.arm == "tools")


def test_outputs_of_one_length_and_other_tokens_are_told_and_no_fault() -> None:
    found = equal.compared(
        {"raw": [batch("raw", answers(5))], "tools": [batch("tools", answers(5, said=1))]}, "raw"
    )
    assert found.equal and found.same_outputs is False
    untold = equal.compared({"raw": [batch("raw", answers(5, said=None))]}, "raw")
    assert untold.equal and untold.same_outputs is None


def test_failures_are_counted_by_cause_and_named() -> None:
    broken = (*answers(5), Answer(0.1, fault="status 500: no"), Answer(0.1, fault="status 500: no"))
    report = report_of(
        {
            "raw": [batch("raw", answers(5, 5, 5)), batch("raw", answers(5, 5, 5))],
            "reasoning": [batch("reasoning", broken), batch("reasoning", answers(5, 5, 5))],
        }
    )
    arm = next(arm for arm in report.cells[0].arms if arm.arm == "reasoning")
    assert report.failed == arm.failed == 2 and arm.faults == {"status 500: no": 2} and arm.requests == 6
    assert UNEQUAL in arm.words and any("2 requests failed" in line for line in report.answer)
    assert any("2 of 6 requests failed: status 500: no (2)" in line for line in lines(report))
    assert results.first_fault(broken) is None and results.first_fault(broken[1:]) == "status 500: no"


def test_a_report_is_json_with_every_figure_and_ratio() -> None:
    batches = {arm: [batch(arm, answers(5, 6), rate) for rate in (1.0, 1.1)] for arm in ("raw", "reasoning")}
    told = json.loads(dumps(report_of(batches)))
    assert told["kind"] == "modes" and told["base"] == "raw" and told["equal"] is True
    (raw, reasoning) = told["cells"][0]["arms"]
    assert raw["ratios"] == {} and raw["tokens"] == [11, 11]
    assert reasoning["ratios"]["throughput"] == {
        "value": 1.0, "low": 1.0, "high": 1.0, "minimum": 1.0, "median": 1.0, "maximum": 1.0, "repeats": 2,
    }  # fmt: skip
    assert set(reasoning["ratios"]) == {"throughput", "latency", "client_cpu", "front_cpu"}
    assert reasoning["latency"] == {"p50": 0.5, "p90": 0.5, "p99": 0.5}
    assert reasoning["first"] is None and reasoning["gaps"] is None
    assert reasoning["client_cpu_us_per_token"] == pytest.approx(1e6 * 0.1 / 11)
    assert reasoning["front_cpu_ms_per_request"] == pytest.approx(100)


def test_a_server_whose_process_is_not_seen_has_no_figure_for_it() -> None:
    batches = {arm: [batch(arm, answers(5), front=None)] * 2 for arm in ("raw", "tools")}
    report = report_of(batches)
    assert all(arm.front_cpu_us_per_token is None for arm in report.cells[0].arms)
    assert "front_cpu" not in report.overall["tools"]
    assert not any("HTTP process" in line for line in report.answer)


def run(tokens: int = 40, seconds: float = 1.0, failed: int = 0, prompt: int | None = 9) -> Run:
    return Run(seconds, 4, failed, prompt, tokens, ("timeout",) if failed else ())


def test_recording_is_compared_run_by_run_and_other_work_is_named() -> None:
    same = cell_of(8, {CAPTURE: [run(), run()], WHOLE: [run(seconds=0.98), run(seconds=0.98)]})
    ratio = same.clients[1].ratio
    assert same.equal and ratio is not None and ratio.value == pytest.approx(0.98)
    assert "the target of 97 % is met" in same.clients[1].words
    for other in (run(tokens=39), run(prompt=10)):
        unlike = cell_of(8, {CAPTURE: [run(), run()], WHOLE: [run(), other]})
        assert not unlike.equal and WHOLE in unlike.differences[0]
        assert UNEQUAL in unlike.clients[1].words
    broken = cell_of(8, {CAPTURE: [run(), run(tokens=30, failed=1)], WHOLE: [run(), run()]})
    assert broken.clients[0].failed == 1 and broken.clients[0].faults == ("timeout",)
    report = RecordsReport("capture", FACTS, 0.97, {"repeats": 2}, (broken,), {}, False, 1, ())
    assert any("capture: 1 requests failed: timeout" in line for line in lines(report))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_family_has_a_script_of_the_length_that_was_asked_for(name: str) -> None:
    fmt, codec = FORMATS[name], codec_of(name)
    prompt = work.own_prompts()[0]
    for limit in (160, 320):
        ids = work.script_ids(fmt, codec, prompt, 3, limit)
        check_script(ids, codec.vocab_size or 0)
        assert limit - 12 <= len(ids) <= limit
        text = codec.decode_bytes(ids).decode()
        assert text.endswith((*fmt.end_tokens, fmt.call_end or fmt.end_tokens[0]))
        assert not fmt.thinks or fmt.closer in text
        assert fmt.tools is None or "get_weather" in text


def test_too_few_tokens_for_a_script_are_refused_with_a_number() -> None:
    with pytest.raises(ShardgateError) as told:
        work.script_ids(FORMATS["kimi_k2"], codec_of("kimi_k2"), work.own_prompts()[0], 0, 4)
    assert told.value.where == "--max-tokens" and "at least" in told.value.remedy


@given(st.integers(0, 40), st.integers(200, 500))
@settings(max_examples=25)
def test_a_script_is_the_same_each_time_and_others_differ(number: int, limit: int) -> None:
    fmt, codec, prompt = FORMATS["kimi_k2"], codec_of("kimi_k2"), work.own_prompts()[0]
    first = work.script_ids(fmt, codec, prompt, number, limit)
    assert first == work.script_ids(fmt, codec, prompt, number, limit)
    assert first != work.script_ids(fmt, codec, prompt, number + 1, limit)


def test_prompts_of_a_file_lose_their_sampling_and_get_a_tool(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    rows = [
        {"prompt": "One?", "sampling": {"temperature": 1, "max_tokens": 9}},
        {
            "messages": [{"role": "user", "content": "Two?"}],
            "tools": [{"type": "function", "function": {"name": "own", "parameters": {"type": "object"}}}],
        },
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    one, two = work.prompts_of(path)
    assert one.sampling == {} and one.tools == work.TOOLS
    assert [tool["function"]["name"] for tool in two.tools or ()] == ["own"]
    tasks = work.tasks_of([one, two], [(1,), (2,)], [None, None], max_tokens=9, count=5)
    assert [task.prompt_ids for task in tasks] == [(1,), (2,), (1,), (2,), (1,)]
    assert all(task.prompt.sampling["max_tokens"] == 9 for task in tasks)
    path.write_text('{"prompt": 3}\n', "utf-8")
    with pytest.raises(ShardgateError):
        work.prompts_of(path)


def shardgate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", "bench", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=os.environ, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give one server"),
        (("--base-url", "http://127.0.0.1:9", "--deployment", "tiny"), "give one server"),
        (("--base-url", "http://127.0.0.1:9", "--repeats", "3"), "odd"),
        (("--base-url", "http://127.0.0.1:9", "--concurrency", "1,x"), "whole numbers"),
        (("--base-url", "http://127.0.0.1:9", "--modes", "raw"), "two or more"),
        (("--base-url", "http://127.0.0.1:9", "--modes", "raw,fast"), "two or more"),
        (("--base-url", "http://127.0.0.1:9", "--requests", "2"), "can't keep 32 at once"),
        (("--base-url", "http://127.0.0.1:9", "--flags", "--x"), "runs already"),
        (("--base-url", "http://127.0.0.1:9", "-o", "/nowhere/at/all.json"), "no such folder"),
        (("--base-url", "http://127.0.0.1:9"), "127.0.0.1:9"),
        (("--base-url", "http://127.0.0.1:9", "--capture", "--modes", "raw,tools"), "compares none"),
        (("--deployment", "tiny-router"), "is a group"),
        (("--deployment", "no-such"), "no deployment"),
    ],
)
def test_wrong_use_and_no_server_are_told_without_a_traceback(arguments: tuple[str, ...], said: str) -> None:
    done = shardgate(*arguments)
    assert done.returncode == 2 and said in done.stderr
    assert "Traceback" not in done.stderr
