"""The bank of counterexamples: each minimised loss is replayed through SGLang's parsers, by its version."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from contracts.errors import ShardgateError
from contracts.formats import format_named
from contracts.losses import LOSSES, worst
from contracts.records import Loss, SegmentKind
from harness import bank
from harness.cli import cli
from harness.paths import fixtures_dir
from harness.report.bank import difference
from tests.conftest import need

CASES = bank.load_bank()


@pytest.mark.parametrize("name", CASES)
def test_the_case_comes_out_as_recorded(name: str) -> None:
    need("sglang")  # replays through SGLang's own parsers
    (outcome,) = bank.replay([name])
    if outcome.changed:
        pytest.fail(difference(outcome), pytrace=False)


@pytest.mark.parametrize("name", CASES)
def test_the_record_is_one_that_can_be(name: str) -> None:
    _, case = CASES[name]
    assert format_named(case.get("format", "kimi_k2")) is not None
    assert not set(case["losses"]) - set(LOSSES)
    losses = [Loss(loss, SegmentKind.CONTENT, 0, 0) for loss in case["losses"]]
    assert case["verdict"] == worst(losses)
    assert case["version"]


def test_every_fault_names_what_holds_it() -> None:
    root = fixtures_dir().parent
    text = (bank.bank_folder() / "faults.toml").read_text(encoding="utf-8")
    for fault in tomllib.loads(text)["fault"]:
        assert fault["what"] and fault["then"] and fault["package"]
        assert (root / fault["held_by"]).is_file(), fault["held_by"]


BANK = """# A comment at the top.

[[case]]  # told first
name = "right"
text = "r</think>C<|im_end|>"  # as it should be
version = "0.5.0"
verdict = "exact"
losses = []
report = "somewhere#1"

# What follows is wrong on purpose.
[[case]]
report = "somewhere#2"
name = "wrong: 'quoted'"
text = '''
<think>r</think>C<|im_end|>'''
verdict = "exact"
losses = [
    "ids-missing",  # never so
]

[[case]]
name = "new"
text = "<think>r</think>C<|im_end|>"
report = "somewhere#3"

# The end.
"""
ACCEPTED = """# A comment at the top.

[[case]]  # told first
name = "right"
text = "r</think>C<|im_end|>"  # as it should be
version = "0.5.0"
verdict = "exact"
losses = []
report = "somewhere#1"

# What follows is wrong on purpose.
[[case]]
report = "somewhere#2"
name = "wrong: 'quoted'"
text = '''
<think>r</think>C<|im_end|>'''
version = "{version}"
verdict = "lossy"
losses = ["opener-undetermined"]

[[case]]
name = "new"
text = "<think>r</think>C<|im_end|>"
version = "{version}"
verdict = "lossy"
losses = ["opener-undetermined"]
report = "somewhere#3"

# The end.
"""


@pytest.fixture
def own_bank(tmp_path: Path) -> Path:
    need("sglang")
    (tmp_path / "own.toml").write_text(BANK, encoding="utf-8")
    return tmp_path


def _run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["bank", *arguments], standalone_mode=False)
    assert done.exception is None or isinstance(done.exception, Exception)
    if done.exception is not None:
        raise done.exception
    return done.return_value, done.output


def test_a_changed_case_is_told_with_the_command_that_accepts_it(own_bank: Path) -> None:
    code, told = _run("--folder", str(own_bank))
    assert code == 1
    assert "- recorded  exact: ids-missing  (SGLang ?)" in told
    assert "+ measured  lossy: opener-undetermined" in told
    assert "- recorded  never recorded" in told
    assert "shardgate bank --accept 'wrong: '\"'\"'quoted'\"'\"''" in told
    assert told.endswith("2 changed\n") and "3 cases replayed" in told


def test_json_has_every_outcome(own_bank: Path) -> None:
    code, told = _run("--folder", str(own_bank), "--json")
    outcomes = json.loads(told)
    assert code == 1 and [outcome["changed"] for outcome in outcomes] == [False, True, True]
    assert outcomes[1]["losses"] == ["opener-undetermined"]


def test_accepting_touches_the_record_alone(own_bank: Path) -> None:
    from importlib.metadata import version

    code, told = _run("--folder", str(own_bank), "--accept", "wrong: 'quoted'", "new", "right")
    assert code == 0 and told.endswith("2 cases accepted\n")
    text = (own_bank / "own.toml").read_text(encoding="utf-8")
    assert text == ACCEPTED.replace("{version}", version("sglang"))
    assert _run("--folder", str(own_bank))[0] == 0


def test_all_accepts_all(own_bank: Path) -> None:
    assert _run("--folder", str(own_bank), "--accept", "--all")[0] == 0
    code, told = _run("--folder", str(own_bank), "right", "new")
    assert code == 0 and told.startswith("2 cases replayed") and told.endswith("none changed\n")


@pytest.mark.parametrize("arguments", [["--accept"], ["--all"], ["--accept", "--all", "x"]])
def test_accepting_needs_names_or_all(arguments: list[str]) -> None:
    import click

    with pytest.raises(click.UsageError):
        _run(*arguments)


@pytest.mark.parametrize(
    "text",
    [
        "[[case]]\ntext = 'x'",
        "[[case]]\nname = 'a'",
        "[[case]]\nname = 'a'\ntext = 'x'\nids = [1]",
        "[[case]]\nname = 'a'\ntext = 'x'\nspeling = 1",
        "[[case]]\nname = 'a'\ntext = 'x'\n[[case]]\nname = 'a'\ntext = 'x'",
        "[[case",
        "",
    ],
)
def test_a_bank_that_is_none_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ShardgateError) as told:
        bank.load_bank(tmp_path)
    assert told.value.why or told.value.what


def test_a_name_that_is_not_there_is_told() -> None:
    with pytest.raises(ShardgateError, match="no case 'nope'"):
        bank.replay(["nope"])
