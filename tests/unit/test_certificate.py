"""Certificate and loader: what opens, what is refused, and with which word."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from contracts import (
    CertificateAltered,
    CertificateError,
    CertificateMissing,
    ShardAltered,
    ShardMissing,
    ShardUncertified,
    audit,
    open_certified,
    verify,
    write_shard,
)
from contracts.certificate import faults, read_certificate, seal_of
from contracts.certify import CertifyError
from contracts.run import AuditResult
from contracts.shard import Row
from fixtures.corruptions import OPERATORS
from fixtures.corruptions.rows import codec, rows_of
from tests.bodies.certified import CASES

ROOT = Path(__file__).resolve().parents[2]


def certify(folder: Path, *shards: Path) -> AuditResult:
    return audit(shards or [folder], codec=codec(), certify=folder, checked_by="the suite")


def two_shards(folder: Path) -> tuple[list[Row], list[Row]]:
    """A clean shard, and one with a bad row in its middle."""
    clean, other = rows_of(CASES[:3]), rows_of(CASES[3:])
    spoiled = OPERATORS["usage-off-by-one"](rows_of(CASES[:1], first=20))
    spoiled[-1]["sample_index"] = 1
    other = [*rows_of(CASES[5:7], first=30), spoiled[-1], *rows_of(CASES[7:], first=40)]
    write_shard(folder / "shards" / "a.parquet", clean, format_name="kimi_k2")
    write_shard(folder / "shards" / "b.parquet", other, format_name="kimi_k2")
    return clean, other


@pytest.fixture
def certified(tmp_path: Path) -> Path:
    two_shards(tmp_path)
    certify(tmp_path)
    return tmp_path


def test_rows_are_accounted_for_and_read_back_in_order(tmp_path: Path) -> None:
    clean, other = two_shards(tmp_path)
    original = (tmp_path / "shards" / "b.parquet").read_bytes()
    result = certify(tmp_path)
    assert (result.rows, result.certified, result.quarantined) == (
        len(clean) + len(other),
        len(clean) + len(other) - 1,
        1,
    )
    assert result.certificate == str(tmp_path / "certificate.json")
    names = [row["sample_id"] for row in (*clean, *other) if row["sample_id"] != other[2]["sample_id"]]
    dataset = open_certified(tmp_path)
    table = dataset.to_table()
    assert table["sample_id"].to_pylist() == names
    expected = [row["response_token_ids"] for row in (*clean, *other) if row["sample_id"] in names]
    assert table["response_token_ids"].to_pylist() == expected
    assert dataset.to_table(columns=["verdict"])["verdict"].to_pylist() == ["exact"] * len(names)
    assert (tmp_path / "shards" / "b.parquet").read_bytes() == original, "the original is kept"
    assert not (tmp_path / "certified" / "a.parquet").exists(), "a clean shard is certified where it lies"
    bad = pq.read_table(tmp_path / "quarantine" / "b.parquet").to_pylist()
    assert [row["sample_id"] for row in bad] == [other[2]["sample_id"]]
    assert bad[0]["completion_tokens"] == other[2]["completion_tokens"], "as it was"
    lines = (tmp_path / "quarantine" / "b.findings.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    assert "token-count" in {finding["rule"] for finding in told}
    assert {(finding["row"], finding["quarantine_row"]) for finding in told} == {(2, 0)}


def test_the_certificate_is_an_in_toto_statement(certified: Path) -> None:
    whole = json.loads((certified / "certificate.json").read_text())
    assert whole["_type"] == "https://in-toto.io/Statement/v1"
    assert [subject["name"] for subject in whole["subject"]] == ["shards/a.parquet", "certified/b.parquet"]
    assert faults(whole) == []
    predicate = whole["predicate"]
    assert predicate["counts"] == {"rows": 7, "certified": 6, "quarantined": 1}
    assert sum(source["rows"] for source in predicate["sources"]) == 7
    assert predicate["verdicts"] == {"exact": 7}
    assert predicate["claims"]["captured"] == {"true": 7}
    assert predicate["provenance"]["reasoning_parser"] == ["kimi_k2"]
    assert predicate["contract"]["profile"] == "draft" and predicate["checkedBy"] == "the suite"
    for shard in predicate["shards"]:
        ends = [s["offset"] + s["length"] for s in shard["segments"]]
        starts = [s["offset"] for s in shard["segments"]]
        assert starts == [0, *ends[:-1]] and ends[-1] == shard["size"], "segments cover every byte"


def test_the_folder_can_be_moved(certified: Path) -> None:
    moved = certified.with_name("elsewhere")
    shutil.move(certified, moved)
    assert verify(moved).ok and open_certified(moved / "certificate.json").count_rows() == 6


def test_no_certificate(tmp_path: Path) -> None:
    two_shards(tmp_path)
    with pytest.raises(CertificateMissing, match="no certificate"):
        open_certified(tmp_path)
    with pytest.raises(CertificateMissing):
        open_certified(tmp_path / "shards" / "a.parquet" / "nothing")


@pytest.mark.parametrize("damage", ["cut", "text", "counts", "subject", "extra"])
def test_a_certificate_that_was_changed(certified: Path, damage: str) -> None:
    file = certified / "certificate.json"
    whole = json.loads(file.read_text())
    if damage == "cut":
        file.write_text(file.read_text()[:-20])
    elif damage == "text":
        file.write_text("")
    elif damage == "counts":
        whole["predicate"]["counts"]["quarantined"] = 0
    elif damage == "subject":
        whole["subject"][0]["digest"]["sha256"] = "0" * 64
    else:
        whole["predicate"]["more"] = 1
        whole["predicate"]["sha256"] = seal_of(whole)
    if damage not in ("cut", "text"):
        file.write_text(json.dumps(whole))
    with pytest.raises(CertificateAltered, match="altered"):
        open_certified(certified)


@pytest.mark.parametrize("name", ["rows", "certified", "quarantined"])
def test_counts_that_contradict_the_shards_do_not_hold_though_sealed_again(
    certified: Path, name: str
) -> None:
    file = certified / "certificate.json"
    whole = json.loads(file.read_text())
    whole["predicate"]["counts"][name] += 1
    whole["predicate"]["sha256"] = seal_of(whole)
    file.write_text(json.dumps(whole))
    with pytest.raises(CertificateAltered, match="altered"):
        verify(certified)


@pytest.mark.parametrize("place", [0, 4, 0.25, 0.5, 0.9, -9, -1])
def test_one_byte_changed_and_the_set_does_not_open(certified: Path, place: float) -> None:
    shard = certified / "shards" / "a.parquet"
    data = bytearray(shard.read_bytes())
    at = int(place * len(data)) if isinstance(place, float) else place
    data[at] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ShardAltered, match=r"a\.parquet"):
        open_certified(certified)
    result = verify(certified)
    assert not result.ok and [problem["kind"] for problem in result.problems] == ["ShardAltered"]
    assert "segment" in result.problems[0]["message"]


def test_an_altered_byte_is_met_while_reading_when_not_looked_for_before(certified: Path) -> None:
    dataset = open_certified(certified, check=False)
    assert dataset.count_rows() == 6
    shard = certified / "shards" / "a.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 4] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ShardAltered, match=r"a\.parquet"):
        open_certified(certified, check=False).to_table()


def test_what_was_verified_is_what_is_read(certified: Path) -> None:
    """A shard swapped for another after opening is not read as if it were the certified one."""
    dataset = open_certified(certified)
    shutil.copy(certified / "certified" / "b.parquet", certified / "shards" / "a.parquet")
    with pytest.raises((ShardAltered, OSError)):
        dataset.to_table()


def test_a_shard_gone(certified: Path) -> None:
    (certified / "certified" / "b.parquet").unlink()
    with pytest.raises(ShardMissing, match="missing"):
        open_certified(certified)


@pytest.mark.parametrize("place", ["shards", "certified", "."])
def test_a_shard_added(certified: Path, place: str) -> None:
    shutil.copy(certified / "shards" / "a.parquet", certified / place / "z.parquet")
    with pytest.raises(ShardUncertified, match=r"z\.parquet"):
        open_certified(certified)


def test_each_refusal_is_its_own_kind_with_a_remedy(certified: Path) -> None:
    kinds = {CertificateMissing, CertificateAltered, ShardMissing, ShardAltered, ShardUncertified}
    assert all(issubclass(kind, CertificateError) for kind in kinds)
    (certified / "shards" / "a.parquet").unlink()
    shutil.copy(certified / "certified" / "b.parquet", certified / "certified" / "c.parquet")
    problems = verify(certified).problems
    assert {problem["kind"] for problem in problems} == {"ShardMissing", "ShardUncertified"}
    assert all(problem["remedy"] for problem in problems)


def test_certifying_twice_changes_nothing(certified: Path) -> None:
    before = {path: path.read_bytes() for path in certified.rglob("*") if path.is_file()}
    result = certify(certified)
    assert result.certificate is not None and "before" in result.note
    assert {path: path.read_bytes() for path in certified.rglob("*") if path.is_file()} == before


def test_another_certificate_is_not_overwritten(certified: Path) -> None:
    (certified / "more").mkdir()
    other = write_shard(certified / "more" / "c.parquet", rows_of(CASES), format_name="kimi_k2")
    before = (certified / "certificate.json").read_bytes()
    with pytest.raises(CertifyError, match="another certificate"):
        audit([other], codec=codec(), certify=certified)
    assert (certified / "certificate.json").read_bytes() == before


def test_a_shard_that_was_not_audited_stops_the_certificate(tmp_path: Path) -> None:
    two_shards(tmp_path)
    with pytest.raises(CertifyError, match="not audited"):
        certify(tmp_path, tmp_path / "shards" / "a.parquet")
    assert not (tmp_path / "certificate.json").exists()


def test_shards_elsewhere_are_certified_where_they_lie(tmp_path: Path) -> None:
    two_shards(tmp_path / "data")
    result = certify(tmp_path / "out", tmp_path / "data" / "shards" / "a.parquet")
    assert result.certified == 3 and open_certified(tmp_path / "out").count_rows() == 3
    shutil.copy(tmp_path / "data" / "shards" / "a.parquet", tmp_path / "data" / "shards" / "new.parquet")
    with pytest.raises(ShardUncertified):
        open_certified(tmp_path / "out")


def test_nothing_good_no_certificate(tmp_path: Path) -> None:
    rows = OPERATORS["usage-off-by-one"](rows_of(CASES[:1]))
    write_shard(tmp_path / "shards" / "a.parquet", rows, format_name="kimi_k2")
    result = certify(tmp_path)
    assert result.certificate is None and "nothing was certified" in result.note
    assert (result.certified, result.quarantined) == (0, 1)
    assert not (tmp_path / "certificate.json").exists()
    assert pq.read_table(tmp_path / "quarantine" / "a.parquet").num_rows == 1


def test_what_an_interrupted_run_left_is_replaced(certified: Path) -> None:
    whole = open_certified(certified).to_table()
    (certified / "certificate.json").unlink()
    shutil.move(certified / "certified" / "b.parquet", certified / "certified" / "old.parquet")
    (certified / "certified" / ".b.parquet.123.tmp").write_bytes(b"half")
    certify(certified)
    assert open_certified(certified).to_table().equals(whole)
    assert not (certified / "certified" / "old.parquet").exists()


def test_killed_at_any_file_the_state_is_the_old_one(tmp_path: Path) -> None:
    """The process dies at its n-th rename; until the last one there is no certificate, and a rerun heals."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "left = [int(sys.argv[2])]\n"
        "def replace(self, target, real=Path.replace):\n"
        "    left[0] -= 1\n"
        "    if left[0] < 0: os._exit(9)\n"
        "    return real(self, target)\n"
        "Path.replace = replace\n"
        "from contracts import audit; from fixtures.corruptions.rows import codec\n"
        "audit([sys.argv[1]], codec=codec(), certify=sys.argv[1])\n"
    )
    two_shards(tmp_path)
    ended = []
    for renames in range(6):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path), str(renames)], cwd=ROOT, check=False
        )
        ended.append(done.returncode)
        assert (tmp_path / "certificate.json").exists() == (done.returncode == 0)
        if done.returncode == 0:
            break
        with pytest.raises(CertificateMissing):
            open_certified(tmp_path)
    assert ended[-1] == 0 and ended[0] == 9, ended
    assert open_certified(tmp_path).count_rows() == 6


def test_the_waiver_is_in_the_certificate(tmp_path: Path) -> None:
    two_shards(tmp_path)
    waivers = {"token-count": "the engine of that day counted the BOS"}
    result = audit([tmp_path], codec=codec(), certify=tmp_path, waivers=waivers)
    assert result.quarantined == 0 and result.waived == {"token-count": 1}
    predicate = read_certificate(tmp_path).predicate
    assert predicate["waivers"] == [{"rule": "token-count", "reason": waivers["token-count"], "findings": 1}]
