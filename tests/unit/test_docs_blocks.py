"""The docs' scripts and manifests parse, their options exist, and each option is told.

Place in the flow: none; reads docs/ and runs nothing that they say.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.plugin import _OPTIONS
from harness.server import load_deployments

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    (page.name, number, language, text)
    for page in DOCS
    for number, (language, text) in enumerate(FENCE.findall(page.read_text(encoding="utf-8")))
]
GPU = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
PLUGIN = (ROOT / "docs" / "pytest-plugin.md").read_text(encoding="utf-8")


def of(*languages: str) -> list[Any]:
    return [
        pytest.param(text, id=f"{page}-{number}")
        for page, number, language, text in BLOCKS
        if language in languages
    ]


@pytest.mark.parametrize("text", of("bash", "sh"))
def test_bash_parses(text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and not done.stderr, done.stderr
    for inner in re.findall(r"bash -c '\n(.*?)\n'", text, re.DOTALL):
        assert subprocess.run(["bash", "-n"], input=inner, text=True, timeout=30).returncode == 0


@pytest.mark.parametrize("text", of("yaml"))
def test_yaml_parses(text: str) -> None:
    for document in yaml.safe_load_all(text):
        assert {"apiVersion", "kind", "metadata"} <= set(document)
        if document["kind"] == "Service":
            continue
        pod = document["spec"]["template"]["spec"] if document["kind"] == "Job" else document["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
            assert container["resources"]["limits"]["nvidia.com/gpu"] == 8


@pytest.mark.parametrize("text", of("python"))
def test_python_compiles(text: str) -> None:
    compile(text, "docs", "exec")


def suite_options() -> set[str]:
    """The options of this suite and of the plugin, as pytest itself tells them."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--help"], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    said = done.stdout.split("[pytest] configuration options")[0]
    return set(re.findall(r"(?<![\w-])(--[a-z][\w-]*)", said))


def test_the_options_are_there_and_told() -> None:
    known = suite_options()
    short = ("deployment", "deployments", "model", "gpus", "extra-flags", "base-url", "tokenizer")
    for option in (f"--{name}" for name in (*short, "three-boots")):
        assert option in known
        assert f"`{option}" in GPU
    for name in _OPTIONS:
        option = "--" + name.replace("_", "-")
        assert option in known
        assert f"`{option} " in PLUGIN and f"`{name}`" in PLUGIN


def test_each_pytest_line_uses_options_that_exist() -> None:
    known = suite_options()
    lines = [
        line
        for *_, language, text in BLOCKS
        if language == "bash"
        for line in text.replace("\\\n", " ").splitlines()
        if "-m pytest" in line
    ]
    assert len(lines) >= 4
    for line in lines:
        options = {word.split("=")[0] for word in shlex.split(line) if word.startswith("--")}
        assert options <= known | {"--junitxml", "--ntasks", "--kill-on-bad-exit"}, options - known


def test_the_deployments_they_name_are_there() -> None:
    named = set(re.findall(r"--deployment (?!NAME)([\w.-]+)|serve ([\w.-]+)", GPU))
    assert {name for pair in named for name in pair if name} <= set(load_deployments())
