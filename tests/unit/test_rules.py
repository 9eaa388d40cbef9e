"""The rules against the corruption cases: each is caught by its rule, clean and odd rows pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts import audit, write_shard
from contracts.formats import FORMATS
from contracts.records import Profile, Severity
from contracts.rules import RULES
from contracts.run import AuditResult
from contracts.shard import Row
from fixtures.corruptions import OPERATORS, SETS, Operator
from fixtures.corruptions.rows import CLEAN, ODD, codec, rows_of

FAMILIES = sorted(
    fmt.name
    for fmt in FORMATS.values()
    # The rows are laid out with the tiny tokenizer, thinking and not, their calls' arguments as JSON.
    if fmt.thinks and fmt.forcing == "switch" and fmt.thinks_by_default
    if fmt.tools is None or fmt.tools.spelling != "strings"
    if all(codec().token_id(text) is not None for text in (*fmt.markers, *fmt.end_tokens))
)
FIRED_BY_FILES = {spec.id for spec in RULES.values() if spec.scope == "file"}
"""What `test_audit.py` shows, with files."""


def check(
    tmp_path: Path, rows: list[Row], profile: Profile = Profile.DRAFT, fmt: str = "kimi_k2"
) -> AuditResult:
    path = write_shard(tmp_path / "shard.parquet", rows, format_name=fmt)
    return audit([path], profile=profile, codec=codec())


@pytest.mark.parametrize("profile", list(Profile))
@pytest.mark.parametrize("fmt", FAMILIES)
def test_clean_rows_give_no_finding(tmp_path: Path, fmt: str, profile: Profile) -> None:
    rows = rows_of(CLEAN, fmt)
    result = check(tmp_path, rows, profile, fmt)
    assert result.findings == ()
    assert (result.rows, result.certified, result.quarantined) == (len(rows), len(rows), 0)
    assert result.verdicts == {"exact": len(rows)}


@pytest.mark.parametrize("profile", list(Profile))
@pytest.mark.parametrize("fmt", FAMILIES)
def test_odd_rows_are_not_held_back(tmp_path: Path, fmt: str, profile: Profile) -> None:
    result = check(tmp_path, rows_of((*CLEAN, *ODD), fmt), profile, fmt)
    assert [found for found in result.findings if found.severity is Severity.ERROR] == []
    assert result.quarantined == 0
    assert "text_exact" in result.verdicts and "lossy" in result.verdicts, "the odd rows are not odd"


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.name)
def test_each_corruption_is_caught_by_its_rule(tmp_path: Path, operator: Operator) -> None:
    result = check(tmp_path, operator(rows_of((*CLEAN, *ODD))))
    fired = {found.rule: found.severity for found in result.findings}
    assert operator.rule in fired, f"only {sorted(fired)} fired"
    if RULES[operator.rule].severity(Profile.DRAFT) is Severity.ERROR:
        assert fired[operator.rule] is Severity.ERROR and result.quarantined >= 1
    for found in result.findings:
        assert found.message and found.remedy


def test_every_error_rule_has_a_corruption() -> None:
    proven = {operator.rule for operator in (*OPERATORS.values(), *SETS.values())} | FIRED_BY_FILES
    rated = {"fields-contradicted"}  # an error in `sft` and `test` only, shown below
    only_without_schema = {"null-value", "constants-differ", "row-unreadable"}  # shown in test_audit.py
    of_texts = {spec.id for spec in RULES.values() if spec.strengths == ("text",)}  # in test_imports.py
    only_with_a_template = {"prompt-differs"}  # shown in test_prompt_rendering.py
    errors = {spec.id for spec in RULES.values() if spec.severity(Profile.DRAFT) is Severity.ERROR}
    of_repair = {"mended-on-assumption"}  # shown in test_repair.py
    shown = rated | only_without_schema | of_texts | only_with_a_template | of_repair
    assert errors - proven - shown == set()


def contradicted_rows() -> list[Row]:
    """A server booted without a reasoning parser, honestly recorded and judged."""
    from contracts.rules.fidelity import CLAIMS, judge_row
    from contracts.shard import seal

    row = rows_of(CLEAN)[0]
    joined = f"{row['reasoning_content']}</think>{row['content']}"
    for part in (row, row["messages"][-1]):
        part["reasoning_content"], part["content"] = None, joined
    again = judge_row(row, FORMATS["kimi_k2"], codec())
    row["claims"] = {name: getattr(again.claims, name) for name in CLAIMS}
    row["verdict"], row["losses"] = str(again.verdict), [loss.name for loss in again.losses]
    return [seal(row)]


@pytest.mark.parametrize("profile", list(Profile))
def test_contradicted_fields_are_an_error_where_fields_are_trained_on(
    tmp_path: Path, profile: Profile
) -> None:
    rows = contradicted_rows()
    assert rows[0]["verdict"] == "contradicted" and "reasoning-in-content" in rows[0]["losses"]
    result = check(tmp_path, rows, profile)
    found = next(found for found in result.findings if found.rule == "fields-contradicted")
    if profile in (Profile.SFT, Profile.TEST):
        assert found.severity is Severity.ERROR and result.quarantined == 1
    else:
        assert found.severity is Severity.RATE and "1 of 1 rows" in found.message
        assert result.quarantined == 0
        assert result.rates == {"fields-contradicted": 1, "reasoning-empty": 1, "marker-in-text": 1}


def test_scripted_rows_are_for_the_test_profile_alone(tmp_path: Path) -> None:
    rows = OPERATORS["grammar-forced"](rows_of(CLEAN))
    assert check(tmp_path, rows, Profile.TEST).findings == ()
    for profile in (Profile.DRAFT, Profile.RL, Profile.SFT):
        assert {found.rule for found in check(tmp_path, rows, profile).findings} == {"sampling-bent"}


def test_a_declared_turn_is_masked_as_its_own_row_generated_it(tmp_path: Path) -> None:
    from contracts.shard import seal

    parent, child = rows_of(CLEAN)[:2]
    start, length = len(parent["prompt_token_ids"]), len(parent["response_token_ids"])
    follow_up = codec().encode("<|im_user|>user<|im_middle|>And one more?<|im_end|>")
    tail = codec().encode("<|im_assistant|>assistant<|im_middle|><think>")
    child["prompt_token_ids"] = [
        *parent["prompt_token_ids"],
        *parent["response_token_ids"],
        *follow_up,
        *tail,
    ]
    child["prompt_tokens"] = len(child["prompt_token_ids"])
    child["messages"] = [
        *parent["messages"],
        {**parent["messages"][0], "content": "And one more?"},
        child["messages"][-1],
    ]
    child |= {"parent_sample_id": parent["sample_id"], "conversation_id": parent["conversation_id"]}
    whole = (child["prompt_tokens"], child["completion_tokens"])
    child["loss_mask"] = [{"start": s, "length": n} for s, n in ((start, length), whole)]
    assert check(tmp_path, [parent, seal(child)]).findings == ()
    child["loss_mask"][0]["start"] += 1
    assert "mask-turn" in {found.rule for found in check(tmp_path, [parent, seal(child)]).findings}


def test_a_rule_of_ones_own_takes_five_lines(tmp_path: Path) -> None:
    from contracts.rules.registry import BULK, RuleSpec, bulk

    try:

        @bulk(
            RuleSpec(
                "too-short", "the content is too short", "leave it out", column="content", kind="quality"
            )
        )
        def too_short(ctx: object) -> object:
            import polars as pl

            return pl.col("content").str.len_chars() >= 5

        findings = check(tmp_path, rows_of(CLEAN)).findings
    finally:
        del RULES["too-short"], BULK["too-short"]
    assert {(found.rule, found.severity) for found in findings} == {("too-short", Severity.WARNING)}
    assert "instant" in {rows_of(CLEAN)[found.row or 0]["conversation_id"] for found in findings}
