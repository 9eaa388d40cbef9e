"""Which rows a replay chooses, what it says of the server, and how its record enters a certificate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import audit, open_certified, verify, write_shard
from contracts.certificate import faults, read_certificate
from contracts.certify import CertifyError
from contracts.errors import ShardgateError
from contracts.records import ServerFacts
from contracts.replayed import ReplayRefused, read_replay, write_replay
from contracts.segments import file_sha256
from contracts.shard import NONE, UNKNOWN
from fixtures.corruptions.rows import codec, rows_of
from harness.replay.choose import choose, neighbours, portions, read_rows
from harness.replay.identity import differences
from tests.bodies.certified import CASES, rows_in


def shards(folder: Path) -> Path:
    for number in range(2):
        write_shard(folder / "shards" / f"{number}.parquet", rows_in(number), format_name="kimi_k2")
    return folder


def record(folder: Path, **changes: Any) -> dict[str, Any]:
    """A record as `shardgate replay` writes it, over the shards in `folder`."""
    files = sorted((folder / "shards").glob("*.parquet"))
    total = 2 * len(CASES)
    return {
        "madeAt": "2026-11-30T10:00:00+00:00",
        "verdict": "consistent",
        "rows": {"set": total, "sampled": 5, "replayed": 4, "consistent": 4, "notReplayed": {"too-long": 1}},
        "seed": 0,
        "reference": {"from": "server", "rows": 64},
        "thresholds": {"excess": {"cut": 5.0, "middle": -0.1, "largest": 2.5, "rows": 64}},
        "server": {"target_model": "m", "weight_version": "1", "lora": None},
        "differences": [],
        "shards": [{"name": f"shards/{p.name}", "sha256": file_sha256(p), "rows": len(CASES)} for p in files],
        **changes,
    }


def certify(folder: Path, **more: Any) -> Any:
    return audit([folder], codec=codec(), certify=folder, checked_by="the suite", **more)


def written(folder: Path, **changes: Any) -> Path:
    write_replay(folder / "replay.json", record(folder, **changes))
    return folder / "replay.json"


def test_the_certificate_says_what_the_model_said(tmp_path: Path) -> None:
    folder = shards(tmp_path)
    path = written(folder)
    assert certify(folder, replay=read_replay(path)).certificate
    certificate = read_certificate(folder)
    held = certificate.predicate["replay"]
    assert held["rows"]["consistent"] == 4 and held["sha256"] == file_sha256(path)
    assert held["server"]["weight_version"] == "1"
    assert certificate.predicate["claims"]["model"] == {"true": 4, "null": 2 * len(CASES) - 4}
    assert "the model was asked about 4 of 16 rows" in certificate.predicate["statement"]
    assert verify(folder).ok and open_certified(folder).to_table().num_rows == 2 * len(CASES)
    # The same command again changes nothing; without the replay it is another certificate.
    before = certificate.raw
    assert certify(folder, replay=read_replay(path)).note == "certified before, unchanged"
    assert read_certificate(folder).raw == before
    with pytest.raises(CertifyError, match="`replay`"):
        certify(folder)


def test_a_certificate_without_a_replay_is_as_it_was(tmp_path: Path) -> None:
    folder = shards(tmp_path)
    certify(folder)
    certificate = read_certificate(folder)
    assert "replay" not in certificate.predicate and "model" not in certificate.predicate["claims"]
    assert faults(certificate.statement) == [] and verify(folder).ok


def test_a_replay_of_other_bytes_is_refused_and_nothing_is_certified(tmp_path: Path) -> None:
    folder = shards(tmp_path)
    path = written(folder)
    write_shard(folder / "shards" / "1.parquet", rows_in(7), format_name="kimi_k2")
    with pytest.raises(ReplayRefused, match=r"shards/1\.parquet is not audited, or was changed since"):
        certify(folder, replay=read_replay(path))
    assert not (folder / "certificate.json").exists() and not (folder / "quarantine").exists()


def test_a_replay_of_some_of_the_shards_is_refused(tmp_path: Path) -> None:
    folder = shards(tmp_path)
    whole = record(folder)
    path = written(folder, shards=whole["shards"][:1])
    with pytest.raises(ReplayRefused, match="it speaks of 1 shards, and 2 are audited"):
        certify(folder, replay=read_replay(path))


@pytest.mark.parametrize("verdict", ["rows-differ", "shifted", "another-model"])
def test_rows_that_the_model_disowns_are_not_certified_with_its_word(tmp_path: Path, verdict: str) -> None:
    folder = shards(tmp_path)
    path = written(folder, verdict=verdict)
    with pytest.raises(ReplayRefused, match=verdict):
        certify(folder, replay=read_replay(path))
    assert not (folder / "certificate.json").exists()


def test_a_record_that_was_changed_is_refused(tmp_path: Path) -> None:
    folder = shards(tmp_path)
    path = written(folder, verdict="another-model")
    path.write_text(path.read_text("utf-8").replace("another-model", "consistent"), "utf-8")
    with pytest.raises(ReplayRefused, match="its own digest"):
        read_replay(path)


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "fine"},
        {"rows": {"set": 1, "sampled": 1, "replayed": 1, "consistent": 2, "notReplayed": {}}},
        {"rows": {"set": 1}},
        {"thresholds": {"excess": {}}},
        {"shards": []},
        {"server": {"target_model": 3}},
    ],
)
def test_a_record_of_another_form_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = written(shards(tmp_path), **change)
    with pytest.raises(ReplayRefused):
        read_replay(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', "\udcff"])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "replay.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ReplayRefused, match="no record of a replay"):
        read_replay(path)
    with pytest.raises(ReplayRefused):
        read_replay(tmp_path / "nothing.json")


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 300))
def test_the_sample_is_spread_over_the_shards(sizes: list[int], count: int) -> None:
    shares = portions(sizes, count)
    full = sum(size > 0 for size in sizes)
    assert sum(shares) == min(sum(sizes), max(count, full))
    assert all(0 <= share <= size for share, size in zip(shares, sizes, strict=True))
    assert all(share for share, size in zip(shares, sizes, strict=True) if size)
    assert portions(sizes, None) == sizes


def names(paths: list[Path], count: int | None, seed: int = 0) -> set[str]:
    sample = choose(paths, count, seed)
    return {row["sample_id"] for row in read_rows(sample.shards, sample.places)}


def test_the_choice_is_the_contents_and_the_seeds(tmp_path: Path) -> None:
    rows = rows_in(0)
    write_shard(tmp_path / "a.parquet", rows, format_name="kimi_k2")
    write_shard(tmp_path / "b.parquet", rows[::-1], format_name="kimi_k2")
    first = names([tmp_path / "a.parquet"], 3)
    assert len(first) == 3
    assert first == names([tmp_path / "b.parquet"], 3) == names([tmp_path / "a.parquet"], 3)
    assert len({frozenset(names([tmp_path / "a.parquet"], 3, seed)) for seed in range(8)}) > 1
    assert names([tmp_path / "a.parquet"], None) == {row["sample_id"] for row in rows}


def test_rows_come_back_in_the_order_of_their_places(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.parquet", rows_in(0), format_name="kimi_k2")
    sample = choose([path], None, 0)
    found = read_rows(sample.shards, sample.places[::-1])
    assert [row["sample_id"] for row in found] == [row["sample_id"] for row in rows_in(0)][::-1]
    assert [place.row for place in neighbours(sample.shards, sample.places[0])] == [1]


def test_a_file_that_is_no_shard_is_told(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(ShardgateError, match="lacks the column"):
        choose([tmp_path / "x.parquet"], 1, 0)
    (tmp_path / "y.parquet").write_bytes(b"PAR1")
    with pytest.raises(ShardgateError, match="can't be read"):
        choose([tmp_path / "y.parquet"], 1, 0)


def test_another_server_is_named_by_what_differs(tmp_path: Path) -> None:
    provenance = {
        "target_model": {"/models/kimi": 8},
        "target_revision": {UNKNOWN: 8},
        "weight_version": {"1": 5, "2": 3},
        "quantization": {None: 8},
        "lora": {None: 8},
        "tokenizer_sha256": {"a" * 64: 8},
        "engine_version": {NONE: 8},
    }
    facts = ServerFacts("http://x", "/data/kimi", weight_version="1", quantization="fp8", revision="r1")
    told = {(one.name, one.recorded, one.server, one.rows) for one in differences(provenance, facts)}
    assert told == {("weight_version", "2", "1", 3), ("quantization", "none", "fp8", 8)}
    other = differences({"target_model": {"/models/kimi": 8}}, ServerFacts("http://x", "/models/qwen"))
    assert str(other[0]) == "target_model: 8 rows say /models/kimi, the server /models/qwen"


def test_the_record_is_plain_json(tmp_path: Path) -> None:
    path = written(shards(tmp_path))
    assert json.loads(path.read_text("ascii"))["version"] == 1
    with pytest.raises(ValueError):
        write_replay(tmp_path / "x.json", {"x": float("nan")})
    assert not (tmp_path / "x.json").exists()


def test_the_clean_rows_hold_what_a_replay_reads() -> None:
    assert all(row["content_sha256"] and row["sampling_params"] for row in rows_of(CASES))
