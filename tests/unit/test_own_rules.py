"""A user's own rules from a file: loaded, covered by the fingerprint, and taken out again when they fail."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts import audit, write_shard
from contracts.drafts import load_draft_vocabulary
from contracts.evals import load_eval_set
from contracts.given import Given
from contracts.rules import RULES, load_rules, own_rules, unload_rules
from contracts.rules.own import RulesError
from contracts.rules.registry import BULK, ROW_CHECKS, SET_CHECKS
from contracts.run import fingerprint
from contracts.shard import seal
from contracts.thresholds import Thresholds
from fixtures.corruptions.rows import CLEAN, codec, rows_of, tokenizer_path

FIVE_LINES = """import polars as pl
from contracts.rules.registry import RuleSpec, bulk

@bulk(RuleSpec("short", "content too short", "generate again", column="content", kind="quality"))
def short(ctx):
    return pl.col("content").str.len_bytes() >= 8
"""


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    for own in own_rules():
        unload_rules(own)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my_rules.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_of_five_lines_is_a_rule(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.parquet", rows_of(CLEAN), format_name="kimi_k2")
    before = fingerprint()
    own = load_rules(written(tmp_path, FIVE_LINES))
    assert own.rules == ("short",) and load_rules(own.path) == own, "the same file is loaded once"
    assert {found.rule for found in audit([path], codec=codec()).findings} == {"short"}
    changed = fingerprint()
    unload_rules(own)
    assert fingerprint() == before != changed and audit([path], codec=codec()).findings == ()


def test_the_fingerprint_covers_the_code_of_the_rule(tmp_path: Path) -> None:
    unload_rules(load_rules(written(tmp_path, FIVE_LINES)))
    load_rules(written(tmp_path, FIVE_LINES))
    first = fingerprint()
    unload_rules(own_rules()[0])
    load_rules(written(tmp_path, FIVE_LINES.replace(">= 8", ">= 9")))
    assert fingerprint() != first


@pytest.mark.parametrize(
    ("text", "told", "line"),
    [
        ("import polars as pl\n\nx = (", "SyntaxError", ", line 3"),
        ("x = 1\nimport no_such_module", "no_such_module", ", line 2"),
        ("x = 1", "declares no rule", ""),
        (f"{FIVE_LINES}\nraise SystemError('no')", "no", ", line 8"),
        (FIVE_LINES.replace('"short"', '"text-differs"'), "declared twice", ", line 4"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_nothing_stays(
    tmp_path: Path, text: str, told: str, line: str
) -> None:
    before = (dict(RULES), dict(BULK), list(ROW_CHECKS), list(SET_CHECKS))
    with pytest.raises(RulesError) as caught:
        load_rules(written(tmp_path, text))
    assert told in f"{caught.value.what} {caught.value.why}"
    assert caught.value.where == f"{tmp_path / 'my_rules.py'}{line}" and caught.value.remedy
    assert (dict(RULES), dict(BULK), list(ROW_CHECKS), list(SET_CHECKS)) == before and own_rules() == ()


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match="can't be read"):
        load_rules(tmp_path / "none.py")


def test_processes_of_their_own_have_the_rule_and_what_was_given(tmp_path: Path) -> None:
    """Own rules, eval set, draft vocabulary and thresholds reach a process that checks a shard."""
    load_rules(written(tmp_path, FIVE_LINES))
    rows = rows_of(CLEAN)
    paths = [
        write_shard(tmp_path / f"{n}.parquet", part, format_name="kimi_k2")
        for n, part in enumerate((rows[:4], rows[4:], [{**rows[0], "sample_id": "again"}]))
    ]
    (tmp_path / "eval.txt").write_text(f"{rows[0]['messages'][-2]['content']}\n")
    (tmp_path / "ids.json").write_text("[1, 2, 3]")
    given = Given(load_eval_set(tmp_path / "eval.txt"), load_draft_vocabulary(tmp_path / "ids.json"))
    strict = Thresholds(min_loss_tokens=12, rate_min_rows=5, caps={"short": 0.1})
    one, two = (
        audit(paths, codec=codec(), given=given, thresholds=strict, processes=number) for number in (1, 2)
    )
    fired = {"short", "eval-overlap", "draft-coverage", "few-loss-tokens", "rate-over-cap", "row-twice"}
    assert two.findings == one.findings and {found.rule for found in one.findings} >= fired
    assert two.fingerprint == one.fingerprint and two.measured == one.measured


HEAD = """
import polars as pl
from contracts.rules.registry import RuleSpec, bulk, row_check
SPEC = RuleSpec("mine", "m", "r", column="content")
print("NOISE")
"""


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise SystemExit(0)", "SystemExit"),
        ("@bulk(SPEC)\ndef mine(ctx):\n    raise SystemExit(0)", "SystemExit"),
        ("@bulk(SPEC)\ndef mine(ctx):\n    return 5", "it returned int, not an expression"),
        ("@bulk(SPEC)\ndef mine(ctx):\n    return pl.col('nope') > 1", "nope"),
        ("@bulk(SPEC)\ndef mine(ctx):\n    return pl.lit('x')", "gives String, not Boolean"),
        ("@bulk(SPEC)\ndef mine(ctx):\n    return 1 / 0", "ZeroDivisionError"),
        ("@row_check(SPEC)\ndef mine(row, ctx):\n    raise SystemExit(0)", "ends the process"),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_rule_that_fails_ends_the_audit_and_never_passes(
    tmp_path: Path, body: str, why: str, processes: int
) -> None:
    """A gate that a user's own code ends with success, or whose report it writes into, is no gate."""
    own = tmp_path / "mine.py"
    own.write_text(HEAD + body)
    for name in ("a", "b"):
        rows = [{**row, "sample_id": f"{name}-{row['sample_id']}"} for row in rows_of(CLEAN)]
        write_shard(tmp_path / f"{name}.parquet", [seal(row) for row in rows], format_name="kimi_k2")
    command = [sys.executable, "-m", "harness", "audit", str(tmp_path), "--json", "--rules", str(own)]
    command += ["--processes", str(processes), "--tokenizer", str(tokenizer_path())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert why in json.dumps(json.loads(done.stdout), ensure_ascii=False)
