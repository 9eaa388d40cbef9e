"""An audit's reports: what is told, how much of it, that machines can read it and that no text in it acts.

Place in the flow: tests `harness.report` over real audits; no server. The SARIF schema in `tests/schemas` is
the OASIS standard's, as npm's `@microsoft/jest-sarif` 1.0.0-beta.0 (MIT) carries it.
"""

from __future__ import annotations

import io
import json
import re
import unicodedata
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import Failure, JUnitXml, Skipped

from contracts import write_shard
from contracts.records import Finding, Severity
from contracts.rules import RULES
from contracts.run import AuditResult, audit
from contracts.shard import seal
from contracts.tokens import load_codec
from fixtures.corruptions import OPERATORS
from fixtures.corruptions.rows import CLEAN, rows_of, tokenizer_path
from harness.report import audit_summary as summary
from harness.report.annotations import commands_stopped, markdown, plain, workflow_commands
from harness.report.audit_html import render_audit
from harness.report.audit_terminal import print_audit
from harness.report.junit import junit_xml
from harness.report.sarif import RESULTS, sarif_log, sarif_text

SCHEMA = Path(__file__).resolve().parents[1] / "schemas" / "sarif-2.1.0-rtm.5.json"
EVIL = "\x1b[2J\x07\u202egnp\u2066\x9b31m\r\n::error::owned\n##[error]owned ]]>&<script>`|`![x](https://x.example)"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """A clean shard, one with a wrong count and one whose finish reason is what a model might write."""
    folder = tmp_path_factory.mktemp("shards")
    write_shard(folder / "a.parquet", rows_of(CLEAN), format_name="kimi_k2")
    bad = OPERATORS["usage-off-by-one"](rows_of(CLEAN[:2], first=100))
    write_shard(folder / "b.parquet", bad, format_name="kimi_k2")
    rows = [seal({**rows_of(CLEAN[:1], first=200)[0], "finish_reason": EVIL, "sample_id": f"id {EVIL}"})]
    write_shard(folder / "c 100%, é.parquet", rows, format_name="kimi_k2")
    return audit([folder], codec=load_codec(tokenizer_path()))


def many(result: AuditResult, count: int) -> AuditResult:
    """The result with `count` more findings of each of two rules, in as many shards as rows."""
    more = [
        Finding(rule, Severity.ERROR, f"part-{row % 300:05d}.parquet", row, "content", f"seen {row}", "mend")
        for rule in ("content-digest", "mask-span")
        for row in range(count)
    ]
    shards = tuple(replace(result.shards[0], shard=f"part-{n:05d}.parquet") for n in range(300))
    return replace(result, findings=(*result.findings, *more), shards=shards, rows=count)


def printed(result: AuditResult) -> str:
    stream = io.StringIO()
    print_audit(result, stream)
    return stream.getvalue()


def acting(text: str) -> set[str]:
    """The characters that a terminal or a browser acts on or hides."""
    return {char for char in text if char != "\n" and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl")}


# On the terminal


def test_the_verdict_comes_first_and_what_to_do_last(result: AuditResult) -> None:
    lines = printed(result).splitlines()
    assert lines[0].startswith("FAILED: ") and "errors" in lines[0]
    assert "next:" in lines[-2] + lines[-1] and "--certify" in " ".join(lines[-3:])
    text = " ".join(" ".join(lines).split())
    line = next(line for line in summary.rule_lines(result) if line.rule == "token-count")
    assert re.search(rf"error token-count +{line.findings} +{line.rows} ", text)
    assert line.meaning in text and line.remedy in text and "row 0, sample kimi_k2-0100" in text
    assert f"{result.rows} rows: {result.certified} certified, {result.quarantined} quarantined" in text


def test_a_clean_set_holds_and_says_that_it_is_not_certified_yet(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.parquet", rows_of(CLEAN[:3]), format_name="kimi_k2")
    codec = load_codec(tokenizer_path())
    assert printed(audit([tmp_path], codec=codec)).startswith("HOLDS: 3 rows in 1 shard keep the contract")
    certified = audit([tmp_path], codec=codec, certify=tmp_path / "out")
    assert printed(certified).startswith("CERTIFIED: ") and "shardgate verify" in printed(certified)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_any_width_does_and_no_text_acts(
    result: AuditResult, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = printed(result)
    assert max(len(line) for line in text.splitlines()) <= columns
    assert acting(text) == set()
    assert not any(line.strip().startswith("owned") for line in text.splitlines())


def test_thousands_of_findings_stay_readable(result: AuditResult) -> None:
    text = printed(many(result, 20_000))
    assert len(text.splitlines()) < 200
    assert "20,000" in text and "19,997 more in 300 shards" in text and "more shards" in text


# Which findings are shown where not all can be


def test_no_rule_crowds_out_another() -> None:
    crowd = [Finding("mask-span", Severity.ERROR, "a", row, None, "", "") for row in range(1000)]
    rare = [Finding("bos-twice", Severity.WARNING, "b", row, None, "", "") for row in range(3)]
    shown = list(summary.fair([*crowd, *rare], 100))
    assert len(shown) == 100 and [found for found in shown if found.rule == "bos-twice"] == rare


@given(st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=60), st.integers(1, 40))
def test_as_many_as_fit_are_shown_in_their_order(rules: list[str], limit: int) -> None:
    findings = [Finding(rule, Severity.ERROR, "s", row, None, "", "") for row, rule in enumerate(rules)]
    shown = list(summary.fair(findings, limit))
    assert len(shown) == min(limit, len(findings))
    assert [found.row for found in shown] == sorted(found.row for found in shown if found.row is not None)


@pytest.mark.parametrize(
    ("part", "whole", "told"),
    [(0, 9, "0 %"), (9, 9, "100 %"), (1, 10**6, "< 0.01 %"), (999_999, 10**6, "> 99.9 %"), (None, 9, "")],
)
def test_a_share_never_rounds_to_all_or_none(part: int | None, whole: int, told: str) -> None:
    assert summary.share(part, whole) == told


# For machines


def test_junit_has_a_case_for_each_rule_and_each_shard(result: AuditResult) -> None:
    text = junit_xml(result)
    ElementTree.fromstring(text)  # well-formed, whatever the rows held
    rules, shards = JUnitXml.fromstring(text)
    assert {case.name for case in rules} == set(RULES)
    broken = {found.rule for found in result.findings if found.severity is Severity.ERROR}
    failed = {case.name for case in rules if any(isinstance(told, Failure) for told in case.result)}
    assert failed == broken and rules.failures == len(broken)
    assert [bool(case.result) for case in shards] == [shard.quarantined > 0 for shard in result.shards]
    (told,) = next(case for case in rules if case.name == "token-count").result
    assert "b.parquet, row 0" in told.text and "remedy: " in told.text


def test_junit_does_not_pass_a_rule_that_was_not_checked(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.parquet", rows_of(CLEAN[:1]), format_name="kimi_k2")
    rules, _ = JUnitXml.fromstring(junit_xml(audit([tmp_path])))
    skipped = {case.name for case in rules if any(isinstance(told, Skipped) for told in case.result)}
    needs = {rule for rule, spec in RULES.items() if spec.needs_tokenizer}
    assert needs and needs <= skipped


def test_sarif_keeps_the_standards_schema(result: AuditResult) -> None:
    log = json.loads(sarif_text(result, "1.0"))
    jsonschema.Draft4Validator(json.loads(SCHEMA.read_text())).validate(log)
    (run,) = log["runs"]
    assert len(run["results"]) == len(result.findings)
    for told, found in zip(run["results"], result.findings, strict=True):
        assert run["tool"]["driver"]["rules"][told["ruleIndex"]]["id"] == told["ruleId"] == found.rule
        assert found.remedy in told["message"]["text"]
    rows = [
        told["locations"][0]["physicalLocation"].get("region")
        for told in run["results"]
        if "locations" in told
    ]
    assert {"startLine": 1} in rows


def test_sarif_names_files_below_the_folder_relatively_and_tells_what_it_left_out(
    result: AuditResult,
) -> None:
    root = Path(result.shards[0].shard).parent
    (run,) = sarif_log(result, "1.0", root)["runs"]
    uris = {
        told["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for told in run["results"]
        if "locations" in told
    }
    assert uris == {"b.parquet", "c%20100%25%2C%20%C3%A9.parquet"}
    log = sarif_log(many(result, 20_000), "1.0", root)
    jsonschema.Draft4Validator(json.loads(SCHEMA.read_text())).validate(log)
    (run,) = log["runs"]
    assert len(run["results"]) == RESULTS
    assert run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"].endswith("lists all")
    assert {found.rule for found in result.findings} <= {told["ruleId"] for told in run["results"]}


def test_a_finding_keeps_its_fingerprint_when_rows_move(result: AuditResult) -> None:
    def prints(findings: tuple[Finding, ...]) -> set[str]:
        (run,) = sarif_log(replace(result, findings=findings), "1.0", Path("/"))["runs"]
        return {told["partialFingerprints"]["shardgateFinding/v1"] for told in run["results"]}

    named = tuple(found for found in result.findings if found.sample_id)
    moved = tuple(replace(found, row=(found.row or 0) + 7) for found in named)
    assert named and prints(named) == prints(moved)


# On GitHub


def test_annotations_are_one_line_each_and_bounded(result: AuditResult) -> None:
    lines = workflow_commands(many(result, 500))
    assert 0 < len(lines) <= 30
    for line in lines:
        assert re.match(r"::(error|warning|notice) (file=[^:,]+,)?title=[^:,]+%3A [^:,]+( findings?)::", line)
        assert acting(line) == set() and "\n" not in line
    assert any("%0Aremedy: " in line for line in lines)


def test_what_a_model_wrote_gives_the_runner_no_command(result: AuditResult) -> None:
    stream = io.StringIO()
    with commands_stopped(stream, True):
        print_audit(result, stream)
    lines = [line for line in stream.getvalue().splitlines() if line.strip()]
    token = lines[0].removeprefix("::stop-commands::")
    assert len(token) > 30 and lines[-1] == f"::{token}::"
    assert token not in "".join(lines[1:-1])


def test_the_job_summary_holds_no_markup_of_a_models(result: AuditResult) -> None:
    text = markdown(result)
    assert "<script" not in text and "](" not in text and "https://" not in text
    assert acting(text) == set()
    widths = [len(line.split("|")) for line in text.splitlines() if line.startswith("| error")]
    assert widths and set(widths) == {8}


@given(st.text(max_size=60))
def test_plain_markdown_has_only_letters_and_entities(text: str) -> None:
    assert re.fullmatch(r"(?:[^\W_]|[ ]|[^\x00-\x7f]|&#\d+;)*", plain(text))


# The page


def test_the_page_stays_small_and_says_what_it_left_out(result: AuditResult) -> None:
    page = render_audit(many(result, 50_000))
    assert len(page) < 400_000
    assert "49,994 more" in page and "shards with fewer findings" in page and "200 more shards" in page


def test_the_page_shows_lengths_and_finish_reasons_as_text_too(result: AuditResult) -> None:
    page = render_audit(result)
    for told in ("Response length", "Reasoning length", "Content length", "Finish reasons", "stop"):
        assert told in page
    assert page.count('role="img" aria-label=') >= 5 and "<title>" in page
    bins = result.stats["lengths"]["response"]["bins"]
    assert sum(rows for _, _, rows in bins) == result.rows
