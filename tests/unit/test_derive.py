"""Deriving: which rows come out, in which order, under which certificate; what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

import contracts.scatter
from contracts import (
    CertificateError,
    CertificateMissing,
    ShardAltered,
    ShardgateError,
    audit,
    open_certified,
    verify,
    write_shard,
)
from contracts.accounting import Summary, row_set
from contracts.certificate import read_certificate
from contracts.certified_set import HoldsNoShards
from contracts.derive import DerivedFile, DeriveError, Operation, derived_certificate
from contracts.deriving import Derivation, derive
from contracts.selection import parsed_filter
from contracts.shard import seal
from fixtures.corruptions.rows import codec
from tests.bodies.certified import EACH, certified_set, ids, rows_in

ROOT = Path(__file__).resolve().parents[2]
SHARDS = 3


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certified_set(tmp_path_factory.mktemp("source"), SHARDS)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certified_set(tmp_path_factory.mktemp("other"), 2, first=10)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return open_certified(folder).to_table().to_pylist()


def test_rows_come_over_unchanged_and_the_certificate_tells_from_where(source: Path, tmp_path: Path) -> None:
    (found,) = derive([source], tmp_path, Derivation(condition="completion_tokens > 25"), checked_by="suite")
    wanted = [row for row in rows_of(source) if row["completion_tokens"] > 25]
    assert rows_of(tmp_path) == wanted and 0 < found.rows == len(wanted) < SHARDS * EACH
    certificate = read_certificate(tmp_path)
    predicate, origin = certificate.predicate, read_certificate(source)
    derivation = predicate["derivation"]
    assert [entry["sha256"] for entry in derivation["sources"]] == [origin.sha256]
    assert (tmp_path / derivation["sources"][0]["name"]).resolve() == origin.path.resolve()
    assert derivation["operations"][0] == {
        "name": "filter",
        "parameters": {"condition": "completion_tokens > 25"},
    }
    left = SHARDS * EACH - len(wanted)
    assert derivation["rows"] == {"sources": SHARDS * EACH, "kept": len(wanted), "leftOut": left}
    assert predicate["contract"] == origin.predicate["contract"] and predicate["checkedBy"] == "suite"
    assert predicate["verdicts"] == {"exact": len(wanted)}, "of its own rows"
    assert verify(tmp_path, sources=True, rows=True).ok


def test_a_derived_set_keeps_the_contract(source: Path, tmp_path: Path) -> None:
    """Its shards are shards like any other: with the source's tokenizer they pass the audit."""
    derive([source], tmp_path, Derivation(shuffle=True, seed=1, rows_per_shard=10))
    result = audit([tmp_path], codec=codec())
    assert (result.errors, result.rows) == (0, SHARDS * EACH)


def test_merged_and_shuffled_it_is_the_same_rows(source: Path, other: Path, tmp_path: Path) -> None:
    tables = [open_certified(folder).to_table() for folder in (source, other)]
    expected = row_set(tables[0]) + row_set(tables[1])
    derive([source, other], tmp_path / "a", Derivation())
    assert ids(open_certified(tmp_path / "a").to_table()) == ids(tables[0]) + ids(tables[1])
    derive([source, other], tmp_path / "b", Derivation(shuffle=True, seed=5))
    shuffled = open_certified(tmp_path / "b").to_table()
    assert row_set(shuffled) == expected and ids(shuffled) != ids(tables[0]) + ids(tables[1])
    assert read_certificate(tmp_path / "b").predicate["derivation"]["rowsDigest"] == expected.hex
    names = [
        entry["name"] for entry in read_certificate(tmp_path / "b").predicate["derivation"]["operations"]
    ]
    assert names == ["merge", "shuffle", "write"]


@pytest.mark.parametrize("bucket", [1, 20_000, 1 << 28])
def test_the_order_depends_on_the_seed_alone(
    source: Path, tmp_path: Path, bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contracts.scatter, "BUCKET_BYTES", bucket)
    orders = []
    for number, seed in enumerate((5, 5, 6)):
        folder = tmp_path / str(number)
        derive([source], folder, Derivation(shuffle=True, seed=seed, rows_per_group=number + 1))
        orders.append(ids(open_certified(folder).to_table()))
        assert not [path for path in folder.rglob("*") if path.name.startswith(".")], "nothing is left over"
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) and len(set(orders[0])) == SHARDS * EACH


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 3),
    fraction=st.one_of(st.none(), st.floats(0.1, 1)),
    share=st.floats(0.3, 0.7),
    by=st.sampled_from(["prompt", "conversation"]),
    shuffle=st.booleans(),
)
def test_no_prompt_is_in_two_parts_and_no_row_is_lost(
    source: Path,
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    fraction: float | None,
    share: float,
    by: Any,
    shuffle: bool,
) -> None:
    out = tmp_path_factory.mktemp("parts")
    split = {"train": share, "eval": 1 - share}
    what = Derivation(split=split, by=by, seed=seed, fraction=fraction, shuffle=shuffle, rows_per_shard=5)
    try:
        sets = derive([source], out, what)
    except DeriveError as error:
        assert "got no row" in error.what and fraction is not None, "only of few rows"
        return
    parts = {found.part: rows_of(out / found.part) for found in sets}
    columns = ["prompt_sha256"] + (["conversation_id"] if by == "conversation" else [])
    for column in columns:
        seen = [{row[column] for row in rows} for rows in parts.values()]
        assert not seen[0] & seen[1]
    names = [row["sample_id"] for rows in parts.values() for row in rows]
    assert len(set(names)) == len(names) == (SHARDS * EACH if fraction is None else len(names))
    if fraction is not None:
        assert len(names) == max(1, round(fraction * SHARDS * EACH))
    assert all(verify(out / part, rows=True).ok for part in parts)


def test_a_conversation_stays_together_across_prompts(tmp_path: Path) -> None:
    """Turn 2's prompt holds turn 1's answer: training on one and testing on the other would leak."""
    rows = [seal({**row, "conversation_id": f"talk {place // 2}"}) for place, row in enumerate(rows_in(0))]
    write_shard(tmp_path / "shards" / "a.parquet", rows, format_name="kimi_k2")
    audit([tmp_path], codec=codec(), certify=tmp_path)
    split = {"train": 0.5, "eval": 0.5}
    derive([tmp_path], tmp_path / "parts", Derivation(split=split))
    sides = [{row["conversation_id"] for row in rows_of(tmp_path / "parts" / part)} for part in split]
    assert not sides[0] & sides[1] and len(sides[0] | sides[1]) == EACH // 2


def test_a_subsample_is_a_part_in_order(source: Path, tmp_path: Path) -> None:
    whole = ids(open_certified(source).to_table())
    derive([source], tmp_path / "a", Derivation(rows=7, seed=2))
    drawn = ids(open_certified(tmp_path / "a").to_table())
    assert len(drawn) == 7 and drawn == [name for name in whole if name in set(drawn)]
    derive([source], tmp_path / "b", Derivation(rows=7, seed=3))
    assert ids(open_certified(tmp_path / "b").to_table()) != drawn


@pytest.mark.parametrize(
    "condition",
    [
        "finish_reason = 'stop' AND completion_tokens BETWEEN 10 AND 40",
        "claims->'captured' AND content LIKE '%56%'",
        "tools IS NULL OR LENGTH(tools) > 3",
        "ARRAY_LENGTH(losses) = 0 AND verdict IN ('exact', 'text_exact')",
    ],
)
def test_conditions(source: Path, tmp_path: Path, condition: str) -> None:
    derive([source], tmp_path, Derivation(condition=condition))
    assert open_certified(tmp_path).count_rows() > 0


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "completion_tokens",
        "nothing = 1",
        "1 = 1; DROP TABLE x",
        "__import__('os').system('true')",
        "MAX(completion_tokens) = completion_tokens",
        "COUNT(*) > 3",
        "ROW_NUMBER() OVER (ORDER BY content) < 3",
        "completion_tokens > (SELECT 1)",
        "sample_id IN (SELECT sample_id FROM read_csv('/etc/passwd'))",
        "(" * 300,
    ],
)
def test_what_is_no_condition_on_a_row_is_refused(condition: str) -> None:
    with pytest.raises(DeriveError, match="no condition"):
        parsed_filter(condition)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (Derivation(condition="completion_tokens > 100000"), "no row is left"),
        (Derivation(rows=10_000), "can't be taken"),
        (Derivation(fraction=0.0), "can't be taken"),
        (Derivation(rows=1, fraction=0.5), "both asked for"),
        (Derivation(split={"a": 0.5, "b": 0.6}), "sum to 1"),
        (Derivation(split={"../a": 1.0}), "named"),
        (Derivation(split={"shards": 1.0}), "named"),
        (Derivation(split={"a": 0.999, "b": 0.001}), "got no row"),
        (Derivation(rows_per_shard=0), "at least one"),
        (Derivation(seed=-1), "seed"),
    ],
)
def test_what_can_not_be_done_is_refused_and_certifies_nothing(
    source: Path, tmp_path: Path, what: Derivation, told: str
) -> None:
    with pytest.raises(DeriveError, match=told):
        derive([source], tmp_path / "out", what)
    assert not list((tmp_path / "out").rglob("*.json"))


def test_only_certified_sets_are_sources(source: Path, tmp_path: Path) -> None:
    write_shard(tmp_path / "plain" / "a.parquet", rows_in(0), format_name="kimi_k2")
    with pytest.raises(CertificateMissing):
        derive([tmp_path / "plain"], tmp_path / "out", Derivation())
    folder = certified_set(tmp_path / "set", 1)
    shard = folder / "shards" / "0.parquet"
    data = bytearray(shard.read_bytes())
    data[40] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ShardAltered):
        derive([folder], tmp_path / "out", Derivation())
    with pytest.raises(DeriveError, match="more than one source"):
        derive([source, source], tmp_path / "out", Derivation())
    assert not (tmp_path / "out" / "certificate.json").exists()


def test_sources_of_two_contracts_are_refused(source: Path, tmp_path: Path) -> None:
    write_shard(tmp_path / "shards" / "a.parquet", rows_in(20), format_name="kimi_k2")
    audit([tmp_path], codec=codec(), certify=tmp_path, profile="sft")
    with pytest.raises(DeriveError, match="different contracts") as told:
        derive([source, tmp_path], tmp_path / "out", Derivation())
    assert "profile" in told.value.why


def test_doing_it_again_changes_nothing_and_something_else_is_refused(source: Path, tmp_path: Path) -> None:
    what = Derivation(split={"a": 0.5, "b": 0.5}, shuffle=True)
    derive([source], tmp_path, what)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert [found.note for found in derive([source], tmp_path, what)] == ["derived before, unchanged"] * 2
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with pytest.raises(DeriveError, match="another certificate"):
        derive([source], tmp_path, Derivation(split={"a": 0.5, "b": 0.5}, shuffle=True, seed=1))
    (tmp_path / "a" / "shards" / "00000.parquet").write_bytes(b"x")
    with pytest.raises(DeriveError, match="another certificate"):
        derive([source], tmp_path, what)


def test_files_of_others_are_not_written_over(source: Path, tmp_path: Path) -> None:
    mine = write_shard(tmp_path / "shards" / "00000.parquet", rows_in(0), format_name="kimi_k2")
    before = mine.read_bytes()
    with pytest.raises(DeriveError, match="did not write"):
        derive([source], tmp_path, Derivation())
    assert mine.read_bytes() == before


def test_a_source_that_changed_is_told(tmp_path: Path) -> None:
    folder = certified_set(tmp_path / "set", 1)
    derive([folder], tmp_path / "out", Derivation())
    assert verify(tmp_path / "out", sources=True).ok
    shard = folder / "shards" / "0.parquet"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert verify(tmp_path / "out").ok, "the derived set itself holds"
    kinds = [problem["kind"] for problem in verify(tmp_path / "out", sources=True).problems]
    assert set(kinds) == {"ShardAltered", "SourceAltered"}
    (folder / "certificate.json").write_text("{}")
    assert [p["kind"] for p in verify(tmp_path / "out", sources=True).problems] == ["SourceAltered"]
    (folder / "certificate.json").unlink()
    assert [p["kind"] for p in verify(tmp_path / "out", sources=True).problems] == ["SourceMissing"]


def test_an_export_is_certified_and_gated_but_not_opened(source: Path, tmp_path: Path) -> None:
    """What trainers read that never call the loader: `verify` is their gate."""
    certified, summary = open_certified(source), Summary()
    file = tmp_path / "data" / "train.jsonl"
    file.parent.mkdir()
    with file.open("w") as handle:
        for table in certified.read(certified.groups):
            summary.add(table)
            handle.writelines(f"{json.dumps(name)}\n" for name in ids(table))
    rows = SHARDS * EACH
    done = Operation("export", {"to": "specforge"})
    with pytest.raises(DeriveError, match="add up"):
        derived_certificate(tmp_path, [certified.certificate], [DerivedFile(file, rows - 1)], [done], summary)
    certificate = derived_certificate(
        tmp_path, [certified.certificate], [DerivedFile(file, rows)], [done], summary
    )
    assert certificate.holds == "export" and [shard.name for shard in certificate.shards] == [
        "data/train.jsonl"
    ]
    assert verify(tmp_path, sources=True, rows=True).ok
    with pytest.raises(HoldsNoShards):
        open_certified(tmp_path)
    (file.parent / "more.jsonl").write_text("{}\n")
    assert [p["kind"] for p in verify(tmp_path).problems] == ["ShardUncertified"]
    (file.parent / "more.jsonl").unlink()
    file.write_text(file.read_text() + "{}\n")
    assert [p["kind"] for p in verify(tmp_path).problems] == ["ShardAltered"]
    with pytest.raises(CertificateError):
        derive([tmp_path], tmp_path / "out", Derivation())
    assert issubclass(DeriveError, ShardgateError)


def test_the_command(source: Path, tmp_path: Path) -> None:
    def shardgate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "harness", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=ROOT,
        )

    out = tmp_path / "out"
    split = ("--split", "train=0.75", "--split", "eval=0.25", "--by", "prompt")
    done = shardgate("derive", source, "--out", out, *split, "--shuffle", "--seed", "3", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [found["part"] for found in told] == ["train", "eval"]
    assert sum(found["rows"] for found in told) == SHARDS * EACH
    assert shardgate("verify", out / "train", "--sources", "--rows").returncode == 0
    assert shardgate("derive", source, "--out", out / "x", "--filter", "nothing").returncode == 2
    assert shardgate("derive", source, "--out", out / "x", "--split", "a").returncode == 2
    assert shardgate("derive", tmp_path, "--out", out / "x").returncode == 2
    shard = out / "eval" / "shards" / "00000.parquet"
    shard.write_bytes(shard.read_bytes() + b"x")
    assert shardgate("derive", out / "eval", "--out", out / "x").returncode == 1
    assert pq.read_schema(out / "train" / "shards" / "00000.parquet").metadata is not None
