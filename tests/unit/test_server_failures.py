"""Boot failures are told apart by the log's own words; each excerpt says where it was recorded."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import pytest

from harness.paths import fixtures_dir
from harness.server import SGLangServer, together
from harness.server.failures import BootFailed, CannotBoot, ServerDied, ServerError, describe_exit
from harness.server.signs import READY_LINE, clean_lines, find_sign, from_log, signs, telling_lines
from harness.server.waiting import DeathWatch, died, log_error

FOLDER = fixtures_dir() / "boot-failures"
CASES: list[dict[str, Any]] = tomllib.loads((FOLDER / "cases.toml").read_text("utf-8"))["case"]
BY_SIGN = {case["sign"]: case["log"] for case in reversed(CASES)}
UNKNOWN_PARSER, DAMAGED, PORT = (
    BY_SIGN[name] for name in ("unknown-choice", "checkpoint-damaged", "port-taken")
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['sign']}-{case['detail']}")
def test_the_log_names_the_failure(case: dict[str, Any]) -> None:
    error = from_log(BootFailed, "the server died", "log x", case["log"], "unknown")
    assert error.sign == case["sign"]
    assert case["detail"] in error.why
    assert "\n" not in error.why
    assert error.remedy


def test_every_sign_has_a_case_and_every_case_its_origin() -> None:
    assert {case["sign"] for case in CASES} == {sign.name for sign in signs()}
    for case in CASES:
        assert case["version"] and {"seen", "source", "issue"} & case.keys(), case["sign"]


def test_only_a_taken_port_leaves_the_server_hanging() -> None:
    assert [sign.name for sign in signs() if sign.hangs] == ["port-taken"]
    for case in CASES:
        hangs = find_sign(clean_lines(case["log"]), only_hanging=True) is not None
        assert hangs == (case["sign"] == "port-taken"), case["sign"]


def test_a_healthy_log_shows_no_failure() -> None:
    healthy = DAMAGED.split("[2026-11-29 18:48:32]")[0]
    assert find_sign(clean_lines(healthy)) is None


def test_what_follows_from_a_failure_does_not_hide_it() -> None:
    """One rank runs out of memory, the others lose it: the log has both, the others' lines first."""
    text = "\n".join((BY_SIGN["nccl"], BY_SIGN["child-died"], BY_SIGN["gpu-memory-weights"]))
    assert from_log(BootFailed, "x", "", text, "").sign == "gpu-memory-weights"


def test_a_prompt_in_the_log_is_no_failure() -> None:
    text = "[t] Receive: obj=GenerateReqInput(text='why CUDA out of memory. and [Errno 98]?')\nkept"
    assert clean_lines(text) == ["kept"]


def test_a_long_log_is_searched_fast() -> None:
    """Patterns that try every place of a long line would take minutes here."""
    line = "[t] Model architectures supported: " + "NoSuchModelForCausalLM, " * 5000
    assert find_sign(clean_lines("\n".join([line] * 300))) is None


def test_a_dead_server_is_not_explained_by_its_start(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"{BY_SIGN['peer-access']}\n[t] {READY_LINE}!\n{BY_SIGN['gpu-fault']}\n")
    assert log_error(log, ServerDied, "it died", "unknown").sign == "gpu-fault"
    assert log_error(log, BootFailed, "it died", "unknown").sign == "peer-access"


def test_a_kill_without_a_word_is_told_as_one(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("[t] Load weight begin. avail mem=21.26 GB\n")
    error = died(log, BootFailed, " while booting", -9, kills_before=None)
    assert "SIGKILL" in error.what and "host memory" in error.why and "dmesg" in error.remedy


def test_the_kernels_count_of_kills_is_evidence(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(BY_SIGN["rank-killed"])
    assert "the kernel killed 1 " in log_error(log, BootFailed, "it died", "unknown", kills=1).why
    log.write_text(DAMAGED)
    assert log_error(log, BootFailed, "it died", "unknown", kills=1).sign == "checkpoint-damaged"


def test_sglangs_own_end_is_not_told_as_a_kill_from_outside(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(DAMAGED)
    error = died(log, BootFailed, " while booting", -9, kills_before=None)
    assert "one of its processes failed" in error.what and "SIGKILL" not in str(error)


def test_an_unknown_ending_is_told_with_the_logs_end() -> None:
    text = "\n".join(f"line {n}" for n in range(20))
    error = from_log(BootFailed, "the server died", "log x", text, "the log does not say why")
    assert error.why == "the log does not say why"
    assert error.log_lines == tuple(f"line {n}" for n in range(15, 20))


def test_an_error_that_nobody_has_recorded_is_told_in_its_own_words() -> None:
    text = "Traceback (most recent call last):\n  File x\npkg.mod.NewError: the frob is not set\n[t] bye\n"
    error = from_log(BootFailed, "the server died", "log x", text, "the log does not say why")
    assert error.sign == ""
    assert "pkg.mod.NewError: the frob is not set" in error.why


def test_usage_text_and_argument_dumps_are_left_out() -> None:
    lines = telling_lines(UNKNOWN_PARSER)
    assert lines == (UNKNOWN_PARSER.splitlines()[-1],)
    assert clean_lines("[t] server_args={'api_key': 'secret'}\nkept") == ["kept"]


def test_long_lines_are_cut() -> None:
    (line,) = telling_lines("ValueError: " + "x" * 5000)
    assert len(line) < 500 and line.endswith("…")


def test_the_message_has_what_where_why_and_what_to_do() -> None:
    error = ServerError("it broke", where="here", why="so", remedy="mend it", log_lines=["a", "b"])
    assert str(error).splitlines() == [
        "it broke",
        "  where: here",
        "  why: so",
        "  what to do: mend it",
        "  the log says:",
        "    a",
        "    b",
    ]
    assert str(ServerError("it broke")) == "it broke"


def test_every_sign_has_its_own_name_and_a_remedy() -> None:
    assert all(sign.why and sign.remedy for sign in signs())
    assert len({sign.name for sign in signs()}) == len(signs())


@pytest.mark.parametrize(
    ("code", "words"), [(2, "exit code 2"), (-9, "signal SIGKILL"), (-250, "signal 250")]
)
def test_exits_are_described(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_a_ready_server_that_lost_a_process_is_dying_at_once(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"[t] Subprocess scheduler_0 (pid=1) crashed with exit code -9.\n[t] {READY_LINE}!\n")
    watch = DeathWatch(log)
    assert not watch.is_dying(), "what was logged before is over"
    with log.open("a") as handle:
        handle.write("[t] INFO: 127.0.0.1 - GET /health\n[t] Subprocess detok")
    assert not watch.is_dying()
    with log.open("a") as handle:
        handle.write("enizer (pid=4712) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n")
    assert watch.is_dying() and watch.is_dying()


def test_two_servers_of_one_port_are_refused_before_any_boot(tmp_path: Path) -> None:
    async def boot() -> None:
        model = str(tmp_path)
        async with together(SGLangServer(model, port=30999), SGLangServer(model, port=30999)):
            raise AssertionError("both were booted")

    with pytest.raises(CannotBoot, match="two servers are given port 30999"):
        asyncio.run(boot())
