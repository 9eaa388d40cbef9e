"""The command line: exit codes, errors in four parts, JSON alone on standard output, quiet interruption.

Place in the flow: tests `harness.cli` in processes of its own; no server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from contracts.errors import ShardgateError
from harness.commands import shell
from harness.commands.probe import checked_url
from harness.commands.progress import Progress

ROOT = Path(__file__).resolve().parents[2]


def shardgate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=os.environ | environment,
    )


def test_the_installed_command_and_the_module_are_one() -> None:
    installed = Path(sys.executable).with_name("shardgate")
    done = subprocess.run([installed, "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout == shardgate("--version").stdout
    assert done.stdout.startswith("shardgate, version ")


@pytest.mark.parametrize("command", ["demo", "serve", "probe", "audit", "verify"])
def test_every_command_has_help_and_json(command: str) -> None:
    done = shardgate(command, "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("probe",),
        ("probe", "ftp://host"),
        ("probe", "http://"),
        ("audit",),
        ("audit", "pyproject.toml", "--profile", "nothing"),
        ("audit", "pyproject.toml", "--waive", "rule"),
        ("audit", "pyproject.toml", "--waive", "rule", "--reason", " "),
        ("audit", "no/such.parquet"),
        ("verify", "no/such/folder"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_two_and_no_traceback(arguments: tuple[str, ...]) -> None:
    done = shardgate(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "error" in done.stderr.lower() and "Traceback" not in done.stderr


def test_wrong_use_in_json_is_one_json_value() -> None:
    done = shardgate("verify", "no/such/folder", "--json")
    assert done.returncode == 2
    assert "no/such/folder" in json.loads(done.stdout)["error"]["what"]


def test_a_server_that_is_not_there_is_a_clear_error() -> None:
    done = shardgate("probe", "http://127.0.0.1:9")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "127.0.0.1:9" in done.stderr and "remedy:" in done.stderr


def test_what_is_no_parquet_is_a_finding_not_a_crash() -> None:
    done = shardgate("audit", "pyproject.toml", "--json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["certified"] == 0
    assert "error" in {finding["severity"] for finding in told["findings"]}
    assert set(told["findings"][0]) >= {"rule", "severity", "shard", "row", "message", "remedy"}


def _run(code: str) -> subprocess.CompletedProcess[str]:
    imports = (
        "import click\nfrom contracts.errors import ShardgateError\nfrom harness.commands import shell\n"
    )
    program = imports + code
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT
    )


def _command(body: str) -> str:
    return f"@click.command()\n@shell.json_option\ndef c(as_json):\n    {body}\n"


def test_an_error_is_told_in_its_four_parts_and_can_not_act_on_the_terminal() -> None:
    raised = "raise ShardgateError('no boot', 'log\\x1b[2J', 'first\\nsecond', 'look')"
    done = _run(_command(raised) + "shell.run(c, [], 'c')")
    assert done.returncode == 2
    assert done.stderr == (
        "error: no boot\n  where:  log\\x1b[2J\n  why:    first\n          second\n  remedy: look\n"
    )


def test_an_error_under_json_is_also_json() -> None:
    done = _run(_command("raise ShardgateError('no boot', remedy='look')") + "shell.run(c, ['--json'], 'c')")
    assert json.loads(done.stdout) == {"error": {"what": "no boot", "where": "", "why": "", "remedy": "look"}}
    assert done.returncode == 2


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    done = _run(_command("raise KeyError('ours')") + "shell.run(c, [], 'c')")
    assert done.returncode == 2, "1 would read as findings"
    assert "Traceback" in done.stderr and "ours" in done.stderr


@pytest.mark.parametrize("code", [0, 1])
def test_a_commands_result_is_the_exit_code(code: int) -> None:
    assert _run(_command(f"return {code}") + "shell.run(c, [], 'c')").returncode == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_clean_up_and_no_traceback(number: signal.Signals, code: int) -> None:
    body = (
        "import time\n    try:\n        print('up', flush=True)\n        time.sleep(60)\n"
        "    finally:\n        print('cleaned', flush=True)"
    )
    program = f"import click\nfrom harness.commands import shell\n{_command(body)}shell.run(c, [], 'c')"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert out == "cleaned\n" and "Traceback" not in err


def test_a_reader_that_leaves_is_no_error() -> None:
    body = "[click.echo('x' * 1000) for _ in range(10000)]"
    program = f"import click\nfrom harness.commands import shell\n{_command(body)}shell.run(c, [], 'c')"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""


class _Foreign(Exception):
    what, where, why, remedy = "odd", "here", "so", "mend it"


def test_errors_are_known_by_their_attributes() -> None:
    told = shell.explain(_Foreign())
    assert told is not None and (told.what, told.where, told.why, told.remedy) == (
        "odd",
        "here",
        "so",
        "mend it",
    )
    grouped = shell.explain(ExceptionGroup("tasks", [ShardgateError("inner")]))
    assert grouped is not None and grouped.what == "inner"
    assert shell.explain(KeyError("x")) is None


def test_a_missing_engine_names_the_extra() -> None:
    told = shell.explain(ModuleNotFoundError("no", name="sglang.srt"))
    assert told is not None and "`sglang`" in told.what and "cpu" in told.remedy
    assert shell.explain(ModuleNotFoundError("no", name="harness.gone")) is None


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("127.0.0.1:30000", "http://127.0.0.1:30000"),
        ("http://host:1/", "http://host:1"),
        ("https://host/v1/", "https://host"),
        ("http://[::1]:30000", "http://[::1]:30000"),
    ],
)
def test_a_url_is_taken_as_people_write_it(given: str, url: str) -> None:
    assert checked_url(given) == url


@pytest.mark.parametrize("given", ["", "ftp://host", "http://host:99999", "http://:80"])
def test_what_is_no_url_is_refused(given: str) -> None:
    with pytest.raises(click.BadParameter):
        checked_url(given)


def test_progress_in_a_pipe_is_plain_lines_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        progress("boot", {"message": "loading \x1b[31mweights", "done": 1, "total": 4})
        progress("boot", {"done": 4, "total": 4})
        progress("prompts")
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == 3
    assert "boot: 1/4, loading \\x1b[31mweights" in lines[0] and "left" in lines[0]
    assert lines[1].endswith("boot: 4/4") and lines[2].endswith("prompts")


def test_progress_tells_where_it_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ShardgateError), Progress() as progress:
        progress("boot")
        time.sleep(0)
        raise ShardgateError("died")
    assert "boot: stopped after" in capsys.readouterr().err
