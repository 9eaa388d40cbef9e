"""The pytest plugin as another repository has it, from the base install: options, laziness, skips, failures.

Place in the flow: builds a small outside project and runs its tests; with a server by URL it is
`tests/server/test_plugin_by_url.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bodies import outside

NO_SERVER = "no server to test: give --sglang-url, --sglang-deployment or --sglang-model"
LAZY = (
    "torch", "sglang", "transformers", "tokenizers", "aiohttp", "polars", "pandera", "pyarrow", "numpy",
    "rich", "harness.client", "harness.server", "harness.pipeline", "harness.golden", "contracts.records",
)  # fmt: skip
NEEDS_SERVER = {"test_the_server_answers", "test_every_answer_is_proven"}
NEEDS_NONE = {"test_ours", "test_golden_prompts_are_there"}

OWN_MODEL = """
import pytest

@pytest.fixture(scope="session")
def shardgate_model():
    return "./nothing"
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return outside.base_python()


def test_nothing_is_imported_until_it_is_used(python: Path, tmp_path: Path) -> None:
    ran = outside.run(python, outside.project(tmp_path), "--collect-only", "-q")
    assert ran.done.returncode == 0, ran.done.stdout
    assert "test_every_answer_is_proven" in ran.done.stdout
    assert "harness.plugin" in ran.imported, "the plugin was there"
    assert ran.imported & set(LAZY) == set()


def test_its_help_tells_the_options(python: Path, tmp_path: Path) -> None:
    said = outside.run(python, outside.project(tmp_path), "--help").done.stdout
    group = said.split("shardgate: a real SGLang server under test:")[1].split("\n\n")[0]
    for name in ("url", "deployment", "deployments", "model", "gpus", "flags", "tokenizer"):
        assert f"--sglang-{name}" in group
        assert f"sglang_{name}" in said.split("configuration options")[1]


def test_without_a_server_it_skips_and_says_why(python: Path, tmp_path: Path) -> None:
    ran = outside.run(python, outside.project(tmp_path))
    assert ran.done.returncode == 0, ran.done.stdout
    assert ran.of("passed") == NEEDS_NONE
    assert ran.of("skipped") == NEEDS_SERVER
    assert all(NO_SERVER in ran.outcomes[name][1] for name in NEEDS_SERVER)


def test_under_ci_a_skip_is_a_failure(python: Path, tmp_path: Path) -> None:
    ran = outside.run(python, outside.project(tmp_path), ci=True)
    assert ran.done.returncode == 1
    assert ran.of("passed") == NEEDS_NONE
    assert ran.of("error") == NEEDS_SERVER and ran.of("skipped") == set()
    assert NO_SERVER in ran.done.stdout and "Traceback" not in ran.done.stdout


def test_a_dead_url_is_told_not_skipped(python: Path, tmp_path: Path) -> None:
    ran = outside.run(python, outside.project(tmp_path), "--sglang-url", "http://127.0.0.1:9")
    assert ran.done.returncode == 1
    assert ran.of("error") == NEEDS_SERVER
    assert "the server does not answer" in ran.done.stdout and "127.0.0.1:9" in ran.done.stdout
    assert "Traceback" not in ran.done.stdout and "site-packages" not in ran.done.stdout


def test_the_ini_file_names_a_server_until_the_command_line_does(python: Path, tmp_path: Path) -> None:
    folder = outside.project(tmp_path, ini='sglang_url = "http://127.0.0.1:9"\n')
    assert "127.0.0.1:9" in outside.run(python, folder).done.stdout
    named = outside.run(python, folder, "--sglang-model", "org/model").done.stdout
    assert "127.0.0.1:9" not in named
    assert "SGLang is not installed" in named and "shardgate[cpu]" in named


def test_the_model_can_be_named_in_code(python: Path, tmp_path: Path) -> None:
    ran = outside.run(python, outside.project(tmp_path, conftest=OWN_MODEL))
    assert ran.of("error") == NEEDS_SERVER
    # Refused for what it asks, before a boot: the base install has no SGLang.
    assert "SGLang is not installed" in ran.done.stdout or "model path is wrong" in ran.done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--sglang-deployment", "nosuch"), "there is no deployment 'nosuch'"),
        (("--sglang-gpus", "many", "--sglang-deployment", "tiny"), "'many' is no number of GPUs"),
    ],
)
def test_wrong_use_is_told(python: Path, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    ran = outside.run(python, outside.project(tmp_path), *arguments)
    assert ran.done.returncode != 0
    assert words in ran.done.stdout + ran.done.stderr
    assert "Traceback" not in ran.done.stdout + ran.done.stderr


def test_too_few_gpus_skip_with_their_number(python: Path, tmp_path: Path) -> None:
    arguments = ("--sglang-deployment", "kimi-k2.5", "--sglang-gpus", "0")
    ran = outside.run(python, outside.project(tmp_path), *arguments)
    assert ran.of("skipped") == NEEDS_SERVER
    assert "asks for 8 GPUs, 0 are there to use" in ran.done.stdout
