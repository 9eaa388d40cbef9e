"""Thresholds: the file that a user reads, what may be laid over it, and that the fingerprint covers it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from contracts import audit, write_shard
from contracts.records import Profile, Severity
from contracts.rules import RULES
from contracts.run import fingerprint
from contracts.thresholds import DEFAULTS, Thresholds, ThresholdsError, load_thresholds
from fixtures.corruptions.rows import CLEAN, codec, rows_of


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_value_of_the_file_is_told_in_a_comment() -> None:
    lines = DEFAULTS.read_text(encoding="utf-8").splitlines()
    for before, line in pairwise(lines):
        if "=" in line and not line.startswith(("#", " ")):
            assert before.startswith("#") or "=" in before, f"{line!r} has no comment"


def test_a_file_is_laid_over_the_defaults(tmp_path: Path) -> None:
    text = (
        "loop_tokens = 200\ncreated_after = 2025-01-01\n"
        "[caps]\ncut-by-length = 0.5\n[severity.sft]\naborted = 'error'\n"
    )
    given = load_thresholds(written(tmp_path, text))
    assert (given.loop_tokens, given.created_after, given.caps["cut-by-length"]) == (200, "2025-01-01", 0.5)
    assert given.severities == {Profile.SFT: {"aborted": Severity.ERROR}}
    assert given.caps["lossy"] == Thresholds().caps["lossy"], "a cap that was not named stays"
    assert given.finish_reasons == Thresholds().finish_reasons


def test_the_whole_default_file_is_a_users_file_too() -> None:
    assert load_thresholds(DEFAULTS) == Thresholds()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("loop_token = 3", "loop_token"),
        ("loop_tokens = 'many'", "whole number"),
        ("loop_tokens = 2.5", "whole number"),
        ("loop_tokens = true", "whole number"),
        ("draft_coverage = 1.5", "out of range"),
        ("max_length = -1", "out of range"),
        ("finish_reasons = 'stop'", "list of texts"),
        ("created_after = 'yesterday'", "no day"),
        ("caps = 3", "table"),
        ("[caps]\nlossy = nan", "out of range"),
        ("[severity.drat]\naborted = 'error'", "drat"),
        ("[severity.draft]\naborted = 'fatal'", "fatal"),
        ("severity = 'error'", "severity"),
        ("= 3", "TOML"),
    ],
)
def test_what_is_wrong_is_told_with_the_file_and_what_to_do(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ThresholdsError) as caught:
        load_thresholds(written(tmp_path, text))
    error = caught.value
    assert told in f"{error.what} {error.why}" and error.where == str(tmp_path / "my.toml") and error.remedy


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ThresholdsError, match="can't be read"):
        load_thresholds(tmp_path / "no.toml")


@pytest.mark.parametrize(
    "text",
    [
        "min_loss_tokens = 3",
        "finish_reasons = ['stop']",
        "created_after = '2024-02-02'",
        "draft_coverage = 0.8",
        "[caps]\nrepetition-loop = 0.5",
        "[severity.draft]\naborted = 'error'",
    ],
)
def test_a_changed_value_changes_the_fingerprint(tmp_path: Path, text: str) -> None:
    assert fingerprint(load_thresholds(written(tmp_path, text))) != fingerprint()
    assert fingerprint(load_thresholds(written(tmp_path, ""))) == fingerprint()


def audited(tmp_path: Path, text: str) -> set[tuple[str, Severity]]:
    rows = rows_of(CLEAN)
    path = write_shard(tmp_path / "a.parquet", rows, format_name="kimi_k2")
    thresholds = load_thresholds(written(tmp_path, text))
    return {(f.rule, f.severity) for f in audit([path], codec=codec(), thresholds=thresholds).findings}


def test_a_quality_rule_takes_the_severity_that_the_profile_gives_it(tmp_path: Path) -> None:
    few = "min_loss_tokens = 10000\n"
    assert audited(tmp_path, few) == {("few-loss-tokens", Severity.WARNING)}
    assert audited(tmp_path, f"{few}[severity.draft]\nfew-loss-tokens = 'error'\n") == {
        ("few-loss-tokens", Severity.ERROR)
    }
    assert audited(tmp_path, f"{few}[severity.draft]\nfew-loss-tokens = 'off'\n") == set()
    assert audited(tmp_path, f"{few}[severity.rl]\nfew-loss-tokens = 'off'\n") == {
        ("few-loss-tokens", Severity.WARNING)
    }


@pytest.mark.parametrize("word", ["off", "rate", "warning"])
def test_a_fidelity_rule_can_only_be_waived(tmp_path: Path, word: str) -> None:
    with pytest.raises(ThresholdsError, match="can't be made") as caught:
        audited(tmp_path, f"[severity.draft]\ntext-differs = '{word}'\n")
    assert "--waive text-differs" in caught.value.remedy
    with pytest.raises(ThresholdsError, match="no rule is named"):
        audited(tmp_path, "[severity.draft]\ntext-difers = 'error'\n")
    with pytest.raises(ThresholdsError, match="no rate is named `lenght`"):
        audited(tmp_path, "[caps]\nlenght = 0.5\n")


def test_a_fidelity_rule_can_be_made_stricter(tmp_path: Path) -> None:
    assert RULES["fields-contradicted"].severity(Profile.DRAFT) is Severity.RATE
    assert audited(tmp_path, "[severity.draft]\nfields-contradicted = 'error'\n") == set()
