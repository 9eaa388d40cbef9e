"""The base install: the wheel alone, without torch and sglang, probes, audits and verifies.

Place in the flow: runs the installed command in `.venv-base`, which `.ci/base-env` makes from the wheel and
`requirements/base.txt`; a probe of a real server from there is `tests/server/test_probe_from_base.py`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("demo", "serve", "probe", "audit", "verify")


@pytest.fixture(scope="module")
def base() -> Path:
    done = subprocess.run([ROOT / ".ci" / "base-env"], capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    # From a folder of its own: beside the sources, Python would import those instead of the wheel's.
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/")


@pytest.mark.parametrize("package", ["torch", "sglang", "pandas"])
def test_it_has_no_engine(base: Path, package: str) -> None:
    done = _run(base / "bin" / "python", "-c", f"import {package}")
    assert done.returncode == 1
    assert f"No module named '{package}'" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_help_there(base: Path, command: str) -> None:
    done = _run(base / "bin" / "shardgate", command, "--help")
    assert done.returncode == 0, done.stderr
    assert f"shardgate {command}" in done.stdout


def test_it_is_the_wheel_that_runs_there(base: Path) -> None:
    done = _run(
        base / "bin" / "python",
        "-c",
        "import contracts, harness; print(contracts.__file__, harness.__file__)",
    )
    assert done.returncode == 0, done.stderr
    for file in done.stdout.split():
        assert Path(file).is_relative_to(base), file


def test_the_wheel_carries_all_modules_fixtures_and_templates(base: Path) -> None:
    packages = next((base / "lib").glob("python3*/site-packages"))
    for package in ("contracts", "harness"):
        assert not {path for path in _sources(package) if not (packages / path).is_file()}
    for path in _sources("fixtures"):
        assert (packages / "harness" / "_fixtures" / path.relative_to("fixtures")).is_file()


def _sources(folder: str) -> set[Path]:
    """What git would carry: byte code lies beside the sources once something has imported them."""
    files = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()}
    return {path for path in files if "__pycache__" not in path.parts}


def test_booting_there_says_which_extra_is_missing(base: Path) -> None:
    done = _run(base / "bin" / "shardgate", "serve", "org/model")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "sglang" in done.stderr.lower() and "remedy:" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [("audit", "/no/such.parquet"), ("verify", "/"), ("probe", "http://127.0.0.1:9")],
    ids=lambda a: a[0],
)
def test_what_it_can_not_do_is_told_without_a_traceback(base: Path, arguments: tuple[str, ...]) -> None:
    done = _run(base / "bin" / "shardgate", *arguments)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr and "No module named" not in done.stderr
    assert arguments[-1].removeprefix("http://") in done.stderr
