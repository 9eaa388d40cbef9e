"""A small project of somebody else that uses the plugin, and a run of its tests from the base install.

Place in the flow: called by `tests/unit` and `tests/server`. Imports the standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]

PYPROJECT = """
[project]
name = "outside"
version = "0"

[tool.pytest.ini_options]
addopts = "-ra --strict-markers --strict-config"
"""

# `--base-url` is what pytest-base-url and pytest-playwright call their option: both plugins must fit beside.
CONFTEST = """
import json, pathlib, sys

def pytest_addoption(parser):
    parser.addoption("--base-url", default="http://localhost:8000", help="the web application under test")

def pytest_unconfigure(config):
    pathlib.Path("imported.json").write_text(json.dumps(sorted(sys.modules)))
"""

TESTS = """
import json
import urllib.request


def test_ours(pytestconfig):
    assert pytestconfig.getoption("--base-url") == "http://localhost:8000"


def test_golden_prompts_are_there(golden_prompts):
    assert len({golden.name for golden in golden_prompts}) >= 12


def test_the_server_answers(sglang_server):
    with urllib.request.urlopen(sglang_server.base_url + "/v1/models") as reply:
        assert json.load(reply)["data"]


def test_every_answer_is_proven(probe):
    assert probe.results
    assert not [one for one in probe.results if one.fault or one.verdict == "unproven"]
    assert probe.recommendation.headline
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run ended: the process, each test's outcome with its message, the suite's properties, modules."""

    done: subprocess.CompletedProcess[str]
    outcomes: dict[str, tuple[str, str]]
    properties: dict[str, str]
    imported: frozenset[str]

    def of(self, outcome: str) -> set[str]:
        return {name for name, (found, _) in self.outcomes.items() if found == outcome}


def base_python() -> Path:
    """The base install's Python: neither torch nor sglang."""
    done = subprocess.run([ROOT / ".ci" / "base-env"], capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip()) / "bin" / "python"


def project(folder: Path, *, ini: str = "", conftest: str = "") -> Path:
    """Write the project into a folder."""
    (folder / "pyproject.toml").write_text(PYPROJECT + ini)
    (folder / "conftest.py").write_text(CONFTEST + conftest)
    (folder / "test_fields.py").write_text(TESTS)
    return folder


def run(python: Path | str, folder: Path, *arguments: str, ci: bool = False, timeout: float = 300) -> Ran:
    """Run pytest there, as its owner would: nothing of this run's own environment reaches it."""
    ours = ("PYTEST_", "CI", "PYTHONPATH", "HYPOTHESIS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    if ci:
        environment["CI"] = "1"
    file = folder / "junit.xml"
    file.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", f"--junitxml={file}", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, cwd=folder, env=environment, check=False
    )
    modules = folder / "imported.json"
    imported = frozenset(json.loads(modules.read_text())) if modules.is_file() else frozenset()
    outcomes, properties = junit(file) if file.is_file() else ({}, {})
    return Ran(done, outcomes, properties, imported)


def junit(file: Path) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """Each test's outcome and message, and the suite's properties, out of a JUnit file."""
    root = ElementTree.parse(file).getroot()
    outcomes = {}
    for case in root.iter("testcase"):
        told = next((one for one in case if one.tag in ("failure", "error", "skipped")), None)
        message = "" if told is None else f"{told.get('message')}\n{told.text}"
        outcomes[str(case.get("name"))] = ("passed" if told is None else told.tag, message)
    properties = {str(one.get("name")): str(one.get("value")) for one in root.iter("property")}
    return outcomes, properties
