"""`audit` and `verify` as commands, over real shards: counts, exit codes, nothing written unless asked.

Place in the flow: tests the commands in processes of their own; the rows are those of `fixtures/corruptions`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from contracts import write_shard
from contracts.shard import seal
from contracts.tokens import tokenizer_sha256
from fixtures.corruptions import OPERATORS
from fixtures.corruptions.rows import CLEAN, rows_of, tokenizer_path

ROOT = Path(__file__).resolve().parents[2]


def shardgate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder with one clean shard of three rows."""
    write_shard(tmp_path / "shards" / "a.parquet", rows_of(CLEAN[:3]), format_name="kimi_k2")
    return tmp_path


def _spoil(folder: Path) -> None:
    bad = OPERATORS["usage-off-by-one"](rows_of(CLEAN[:2], first=10))
    write_shard(folder / "shards" / "b.parquet", bad, format_name="kimi_k2")


def _audit(folder: Path, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    done = shardgate("audit", folder, "--tokenizer", tokenizer_path(), "--json", *arguments)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_clean_shards_have_no_finding_and_nothing_is_written(shards: Path) -> None:
    before = sorted(shards.rglob("*"))
    code, told = _audit(shards)
    assert (code, told["rows"], told["certified"], told["quarantined"]) == (0, 3, 3, 0)
    assert [finding for finding in told["findings"] if finding["severity"] == "error"] == []
    assert sorted(shards.rglob("*")) == before


def test_a_bad_row_is_a_finding_with_its_place_and_remedy(shards: Path) -> None:
    _spoil(shards)
    code, told = _audit(shards)
    assert code == 1
    assert told["rows"] == told["certified"] + told["quarantined"] == 5
    errors = [finding for finding in told["findings"] if finding["severity"] == "error"]
    assert {finding["rule"] for finding in errors} >= {"token-count"}
    assert all(finding["shard"].endswith("b.parquet") and finding["remedy"] for finding in errors)


def test_the_table_says_what_the_json_says(shards: Path) -> None:
    _spoil(shards)
    done = shardgate("audit", shards, "--tokenizer", tokenizer_path())
    assert done.returncode == 1
    assert "token-count" in done.stdout and "5 rows:" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_without_a_tokenizer_that_is_told(shards: Path) -> None:
    done = shardgate("audit", shards, "--json")
    assert "tokenizer-missing" in {finding["rule"] for finding in json.loads(done.stdout)["findings"]}


def test_certify_then_verify_then_one_byte(shards: Path) -> None:
    code, told = _audit(shards, "--certify", shards)
    assert code == 0 and told["certificate"]
    done = shardgate("verify", shards, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["ok"] is True
    assert "holds" in shardgate("verify", shards).stdout

    shard = shards / "shards" / "a.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)
    done = shardgate("verify", shards, "--json")
    assert done.returncode == 1
    assert [problem["kind"] for problem in json.loads(done.stdout)["problems"]] == ["ShardAltered"]
    plain = shardgate("verify", shards)
    assert plain.returncode == 1 and "does not hold" in plain.stdout


def test_an_altered_certificate_does_not_hold(shards: Path) -> None:
    _audit(shards, "--certify", shards)
    file = shards / "certificate.json"
    file.write_text(file.read_text().replace('"rows": 3', '"rows": 4'))
    done = shardgate("verify", shards, "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["error"]["what"]
    assert "Traceback" not in done.stderr


def test_no_certificate_is_not_a_set_that_holds(shards: Path) -> None:
    done = shardgate("verify", shards)
    assert done.returncode == 2 and "remedy:" in done.stderr


def test_a_shard_is_not_a_certificate(shards: Path) -> None:
    done = shardgate("verify", shards / "shards" / "a.parquet")
    assert done.returncode == 2
    assert "a shard, not a certificate" in done.stderr and "certificate.json" in done.stderr


def test_an_empty_folder_is_wrong_use(tmp_path: Path) -> None:
    done = shardgate("audit", tmp_path, "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["what"] == "the folder holds no shards"


def test_a_folder_without_a_tokenizer_says_so(shards: Path, tmp_path: Path) -> None:
    done = shardgate("audit", shards, "--tokenizer", tmp_path)
    assert done.returncode == 2
    assert "holds no tokenizer" in done.stderr and "tokenizer.json" in done.stderr


def test_a_waiver_needs_a_rule_that_exists(shards: Path) -> None:
    done = shardgate("audit", shards, "--waive", "no-such-rule", "--reason", "because")
    assert done.returncode == 2
    assert "no-such-rule" in done.stderr and "Traceback" not in done.stderr


def test_a_waived_rule_is_told_and_no_longer_holds_rows_back(shards: Path) -> None:
    _spoil(shards)
    _, before = _audit(shards)
    rules = sorted({found["rule"] for found in before["findings"] if found["severity"] == "error"})
    waivers = [word for rule in rules for word in ("--waive", rule, "--reason", "counted by hand")]
    code, told = _audit(shards, *waivers)
    assert (code, told["quarantined"]) == (0, 0)
    assert told["waivers"] == dict.fromkeys(rules, "counted by hand")


def test_the_recorded_models_own_tokenizer_is_found_by_itself(tmp_path: Path) -> None:
    own = {"target_model": str(tokenizer_path()), "tokenizer_sha256": tokenizer_sha256(tokenizer_path())}
    rows = [seal({**row, **own}) for row in rows_of(CLEAN[:3])]
    write_shard(tmp_path / "a.parquet", rows, format_name="kimi_k2")
    told = json.loads(shardgate("audit", tmp_path, "--json").stdout)
    # The folder is the tokenizer's, its template is another than the rows name.
    assert told["certified"] == 3
    assert {finding["rule"] for finding in told["findings"]} == {
        "prompt-unrendered",
        "prompts-uncompared",
    }
    other = [seal({**row, "tokenizer_sha256": "0" * 64}) for row in rows]
    write_shard(tmp_path / "a.parquet", other, format_name="kimi_k2")
    told = json.loads(shardgate("audit", tmp_path, "--json").stdout)
    assert "tokenizer-missing" in {finding["rule"] for finding in told["findings"]}


def test_a_pipe_in_the_folder_is_a_finding_not_a_hang(shards: Path) -> None:
    os.mkfifo(shards / "shards" / "pipe.parquet")
    code, told = _audit(shards)
    assert (code, told["certified"]) == (1, 3)
    errors = {finding["rule"] for finding in told["findings"] if finding["severity"] == "error"}
    assert errors == {"shard-unreadable"}


def test_a_footer_that_is_no_text_is_a_finding_and_the_run_goes_on(shards: Path) -> None:
    whole = pq.read_table(shards / "shards" / "a.parquet")
    spoilt = {**whole.schema.metadata, b"shardgate.format": b"\xff junk"}
    pq.write_table(whole.replace_schema_metadata(spoilt), shards / "shards" / "b.parquet")
    code, told = _audit(shards)
    assert code == 1 and told["rows"] == told["certified"] + told["quarantined"]
    assert told["findings"] and all(finding["message"] for finding in told["findings"])


@pytest.mark.parametrize(
    "bent",
    [{"logit_bias": {"5": 100}}, {"regex": "a+"}, {"repetition_penalty": 1.2}, {"ignore_eos": True}],
    ids=str,
)
def test_a_request_that_bent_the_sampling_is_no_sample(tmp_path: Path, bent: dict[str, Any]) -> None:
    rows = rows_of(CLEAN[:1])
    asked = {**json.loads(rows[0]["sampling_params"]), **bent}
    write_shard(
        tmp_path / "a.parquet",
        [seal({**rows[0], "sampling_params": json.dumps(asked)})],
        format_name="kimi_k2",
    )
    code, told = _audit(tmp_path, "--profile", "draft")
    assert code == 1 and "sampling-bent" in {finding["rule"] for finding in told["findings"]}


def test_one_file_by_two_names_is_read_once(shards: Path) -> None:
    file = shards / "shards" / "a.parquet"
    other = shards / "shards" / ".." / "shards" / "a.parquet"
    done = shardgate("audit", file, other, "--tokenizer", tokenizer_path(), "--json")
    assert json.loads(done.stdout)["rows"] == 3
