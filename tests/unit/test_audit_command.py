"""`shardgate audit` as it is typed: progress, reports, what else it takes, GitHub, and wrong use told.

Place in the flow: tests the command in processes of their own; the rows are those of `fixtures/corruptions`.
"""

from __future__ import annotations

import hashlib
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from contracts import write_shard
from contracts.shard import seal
from fixtures.corruptions import OPERATORS
from fixtures.corruptions.rows import CLEAN, TEMPLATES, rows_of, tokenizer_path

ROOT = Path(__file__).resolve().parents[2]
RULE = """
import polars as pl
from contracts.rules.registry import RuleSpec, bulk

@bulk(RuleSpec("no-spiders", "the answer speaks of legs", "ask for something else", column="content"))
def no_spiders(ctx):
    return ~pl.col("content").str.contains("legs")
"""


def audit(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    outside = {key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")}
    return subprocess.run(
        [sys.executable, "-m", "harness", "audit", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**outside, **environment},
    )


def rules_of(done: subprocess.CompletedProcess[str]) -> set[str]:
    assert done.stdout, done.stderr
    return {finding["rule"] for finding in json.loads(done.stdout)["findings"]}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A clean shard and one with a wrong count."""
    write_shard(tmp_path / "shards" / "a.parquet", rows_of(CLEAN[:3]), format_name="kimi_k2")
    bad = OPERATORS["usage-off-by-one"](rows_of(CLEAN[:2], first=10))
    write_shard(tmp_path / "shards" / "b.parquet", bad, format_name="kimi_k2")
    return tmp_path


# Wrong use


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["shard"], ["the shards are not there", "did you mean", "shards"]),
        (["nowhere/a.parquet"], ["the shards are not there", "holds no `nowhere`"]),
        (["shards", "--tokenizer", "shardz"], ["the tokenizer is not there", "did you mean"]),
        (["shards", "--tokenizer", "shards/a.parquet"], ["tokenizer", "a.parquet"]),
        (["shards", "--waive", "mask-span"], ["each waiver needs a reason", "--reason"]),
        (["shards", "--waive", "mask-span", "--reason", " "], ["each waiver needs a reason"]),
        (["shards", *["--waive", "mask-span", "--reason", "x"] * 2], ["waived twice"]),
        (["shards", "--waive", "shard-empty", "--reason", "x"], ["can't be waived"]),
        (["shards", "--html", "shards"], ["the HTML report could not be written", "it is a folder"]),
        (["shards", "--html", "shards/a.parquet/r.html"], ["is not a folder"]),
        (["shards", "--html", "r", "--sarif", "./r"], ["two reports would be one file"]),
        (["shards", "--sign-key", "key.pem"], ["nothing to sign", "--certify"]),
        (["shards", "--encode", "none", "--certify", "out"], ["can't certify"]),
        (["shards", "--thresholds", "none.toml"], ["the thresholds can't be read"]),
        (["shards", "--rules", "none.py"], ["the rules can't be read"]),
        (["shards", "--stats-in", "none.json"], ["the stored rates can't be read"]),
        (["shards", "--render-prompts"], ["no chat template"]),
    ],
    ids=lambda value: " ".join(value)[:50],
)
def test_wrong_use_is_told_before_any_row_is_read(
    shards: Path, arguments: list[str], told: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "audit", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=shards,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2, done.stdout
    for word in told:
        assert word in done.stderr
    assert "remedy:" in done.stderr and "Traceback" not in done.stderr
    assert json.loads(done.stdout)["error"]["remedy"]
    assert "audit, rows" not in done.stderr
    assert sorted(path.name for path in shards.iterdir()) == ["shards"]


# Progress


def test_progress_tells_rows_and_unreadable_files_at_once(shards: Path) -> None:
    (shards / "shards" / "c.parquet").write_bytes(b"PAR1 no such thing PAR1")
    lines = audit(shards, "--tokenizer", tokenizer_path()).stderr.splitlines()
    unreadable = next(at for at, line in enumerate(lines) if "can't be read" in line and "c.parquet" in line)
    rows = [at for at, line in enumerate(lines) if "audit, rows" in line]
    assert rows and unreadable < rows[0]
    assert "5/5" in lines[rows[-1]] and "2 of 2 shards" in lines[rows[-1]] and "rows/s" in lines[rows[-1]]


def test_a_terminal_gets_a_live_line_and_a_pipe_does_not(shards: Path) -> None:
    control, terminal = pty.openpty()
    command = [sys.executable, "-m", "harness", "audit", str(shards), "--tokenizer", str(tokenizer_path())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, cwd=ROOT) as process:
        os.close(terminal)
        seen = b""
        while True:
            try:
                block = os.read(control, 65536)
            except OSError:  # the other end is closed
                break
            if not block:
                break
            seen += block
        assert process.stdout is not None
        shown = process.stdout.read()
    os.close(control)
    assert b"\x1b[" in seen and b"audit, rows" in seen and b"5/5" in seen
    assert b"\x1b" not in shown and shown.startswith(b"FAILED: ")


# Reports


def test_all_reports_of_one_audit(shards: Path) -> None:
    out = shards / "out"
    done = audit(
        *(shards, "--tokenizer", tokenizer_path(), "--json"),
        *("--html", out / "r.html", "--junit", out / "r.xml", "--sarif", out / "r.sarif"),
    )
    told = json.loads(done.stdout)
    assert done.returncode == 1
    page = (out / "r.html").read_text()
    assert "FAILED" in page and "token-count" in page and "Tokens of example rows" not in page
    suites = ElementTree.parse(out / "r.xml").getroot()
    assert {suite.get("name") for suite in suites} == {"rules", "shards"}
    sarif = json.loads((out / "r.sarif").read_text())
    assert len(sarif["runs"][0]["results"]) == len(told["findings"])
    assert sorted(path.name for path in out.iterdir()) == ["r.html", "r.sarif", "r.xml"]


def test_the_page_shows_the_tokens_of_rows_whose_fields_do_not_give_them_back(tmp_path: Path) -> None:
    rows = OPERATORS["content-edited"](rows_of(CLEAN[:2]))
    write_shard(tmp_path / "a.parquet", rows, format_name="kimi_k2")
    audit(tmp_path, "--tokenizer", tokenizer_path(), "--html", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "Tokens of example rows" in page and "content-altered" in page
    assert page.count('<tr class="gone">') and page.count('<tr class="same">')


# Where GitHub runs it


def test_github_gets_annotations_and_a_summary(shards: Path) -> None:
    summary = shards / "summary.md"
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    done = audit(shards, "--tokenizer", tokenizer_path(), **github)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("::stop-commands::")
    given = [line for line in lines if line.startswith("::error ")]
    assert given and any("title=token-count%3A" in line for line in given)
    assert "### shardgate audit: FAILED" in summary.read_text()

    done = audit(shards, "--tokenizer", tokenizer_path(), "--json", **github)
    assert "token-count" in rules_of(done) and "\n::error " in f"\n{done.stderr}"


def test_elsewhere_nothing_of_github_is_printed(shards: Path) -> None:
    done = audit(shards, "--tokenizer", tokenizer_path())
    assert "::" not in done.stdout


# What else it takes


def test_own_rules_and_thresholds_are_used_by_every_process(shards: Path) -> None:
    (shards / "mine.py").write_text(RULE)
    one = audit(shards, "--rules", shards / "mine.py", "--json", "--processes", "1")
    two = audit(shards, "--rules", shards / "mine.py", "--json", "--processes", "2")
    assert "no-spiders" in rules_of(one)
    assert json.loads(one.stdout) == json.loads(two.stdout)
    (shards / "mine.toml").write_text("min_loss_tokens = 100000\n")
    assert "few-loss-tokens" not in rules_of(one)
    assert "few-loss-tokens" in rules_of(audit(shards, "--thresholds", shards / "mine.toml", "--json"))


def test_one_sets_rates_are_held_against_anothers(shards: Path) -> None:
    rates = shards / "rates.json"
    done = audit(shards, "--tokenizer", tokenizer_path(), "--json", "--stats-out", rates)
    measured = json.loads(rates.read_text())
    assert measured["rows"] == 5 == json.loads(done.stdout)["measured"]["rows"]
    again = audit(shards, "--tokenizer", tokenizer_path(), "--json", "--stats-in", rates)
    assert rules_of(again) == rules_of(done)


def test_an_eval_prompt_in_the_set_is_found(shards: Path) -> None:
    (shards / "eval.jsonl").write_text(json.dumps({"prompt": CLEAN[0].user}) + "\n")
    done = audit(shards, "--tokenizer", tokenizer_path(), "--json", "--eval-set", shards / "eval.jsonl")
    assert any("eval" in rule for rule in rules_of(done))


def test_the_certificate_is_signed_when_a_key_is_given(shards: Path) -> None:
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    (shards / "shards" / "b.parquet").unlink()
    key = Ed25519PrivateKey.generate()
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (shards / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    (shards / "key.pub").write_bytes(key.public_key().public_bytes(pem, public))
    done = audit(
        *(shards, "--tokenizer", tokenizer_path()),
        *("--certify", shards, "--sign-key", shards / "key.pem"),
    )
    assert done.returncode == 0 and done.stdout.startswith("CERTIFIED: "), done.stderr
    verify = [sys.executable, "-m", "harness", "verify", str(shards), "--public-key", str(shards / "key.pub")]
    assert subprocess.run(verify, cwd=ROOT, timeout=120).returncode == 0


def test_prompts_are_rendered_again_where_the_folder_has_a_template(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tokenizer_path(), folder)
    shutil.copy(TEMPLATES / "kimi_k25.jinja", folder / "chat_template.jinja")
    recorded = hashlib.sha256((folder / "chat_template.jinja").read_bytes()).hexdigest()
    rows = [seal({**row, "chat_template_sha256": recorded}) for row in rows_of(CLEAN)]
    good = write_shard(tmp_path / "good.parquet", rows, format_name="kimi_k2")
    assert audit(good, "--tokenizer", folder).returncode == 0
    lost = [*rows[0]["prompt_token_ids"][1:]]
    rows[0] = seal({**rows[0], "prompt_token_ids": lost, "prompt_tokens": len(lost)})
    bad = write_shard(tmp_path / "bad.parquet", rows, format_name="kimi_k2")
    told = audit(bad, "--tokenizer", folder)
    assert told.returncode == 1 and "prompt-differs" in told.stdout
    assert audit(bad, "--tokenizer", folder, "--no-render-prompts").returncode == 0
