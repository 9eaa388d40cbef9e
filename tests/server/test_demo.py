"""The main job, end to end, as a stranger runs it: `shardgate demo` into a folder of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from contracts import ShardAltered, audit, load_codec, open_certified, verify
from tests.conftest import need

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("sglang")
    folder = tmp_path_factory.mktemp("runs") / "demo"
    command = [sys.executable, "-m", "harness", "demo", "--run-folder", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["certificate"]
    return folder


def test_the_run_folder_is_whole(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert names >= {"run.json", "shards", "quarantine", "certificate.json", "report.html", "without-parser"}
    assert ".partial" not in (run / "audit.html").read_text("utf-8")
    assert list(run.glob("*.log"))
    assert not list(run.parent.glob("demo.*")), "no half-made folder is left"


def test_every_outcome_is_the_one_that_its_prompt_expects(run: Path) -> None:
    report = json.loads((run / "run.json").read_text())
    assert len({result["prompt"] for result in report["results"] if result["scripted"]}) >= 12
    assert any(not result["scripted"] for result in report["results"])
    assert all(result["expected"] for result in report["results"])
    modes = {(r["server"], r["mode"], r["transport"]) for r in report["results"]}
    assert {("parsers", mode, "chat") for mode in ("raw", "reasoning", "tools")} <= modes
    assert ("parsers", "raw", "generate") in modes


def test_the_seeds_case_is_called_out(run: Path) -> None:
    report = json.loads((run / "run.json").read_text())
    assert "--reasoning-parser" in report["recommendation"]["headline"]
    hidden = [r for r in report["results"] if r["server"] == "no parsers" and r["verdict"] == "contradicted"]
    named = [r for r in hidden if any(loss["name"] == "reasoning-in-content" for loss in r["losses"])]
    # The rest thought nothing, or called a tool: markup in content, by another name.
    assert len(named) > len(hidden) / 2


def test_the_certified_rows_open_and_no_others(run: Path) -> None:
    certified = open_certified(run).to_table()
    lines = json.loads((run / "run.json").read_text())["shards"]
    own = [line for line in lines if "without-parser" not in line["shard"]]
    assert certified.num_rows == sum(line["certified"] for line in own) > 0
    assert all(line["rows"] == line["certified"] + line["quarantined"] for line in lines)
    assert "contradicted" not in certified.column("verdict").to_pylist()
    assert verify(run).ok


def test_every_prompt_of_the_server_is_a_rendering_of_its_template(run: Path) -> None:
    """With tools too, whose declarations the server writes out in its own way."""
    report = json.loads((run / "run.json").read_text())
    fired = {rule for line in report["shards"] for rule in line["rules_fired"]}
    assert not {rule for rule in fired if rule.startswith("prompt-")}
    rates = json.loads((run / "certificate.json").read_text())["predicate"]["rates"]
    assert "prompt-unrendered" not in rates


def test_one_byte_changed_does_not_open(run: Path) -> None:
    shard = next(path for path in sorted(run.glob("*/*.parquet")) if path.parent.name == "certified")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    try:
        with pytest.raises(ShardAltered):
            open_certified(run).to_table()
        assert not verify(run).ok
    finally:
        shard.write_bytes(whole)


def test_scripted_rows_pass_no_training_profile(run: Path) -> None:
    from harness.models import demo_model

    shards = sorted((run / "shards").glob("*.parquet"))
    result = audit(shards, profile="draft", codec=load_codec(demo_model()))
    scripted = sum(
        '"scripted"' in (text or "")
        for shard in shards
        for text in pq.read_table(shard)["constraint"].to_pylist()
    )
    assert scripted and result.quarantined >= scripted
