"""A certified set in a trainer's hands: ranks and workers share it disjointly, over verified bytes only."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import contracts.segments
from contracts import ShardAltered, ShardgateError, ShardMissing, open_certified
from contracts.certified_set import CertifiedSet, NotEnoughGroups, permutation
from tests.bodies.certified import EACH, certified_set, ids
from tests.conftest import need

ROOT = Path(__file__).resolve().parents[2]
SHARDS, SIZE = 3, 2
GROUPS = SHARDS * EACH // SIZE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certified_set(tmp_path_factory.mktemp("set"), SHARDS, size=SIZE)


@pytest.fixture
def certified(folder: Path) -> CertifiedSet:
    return open_certified(folder, check=False)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The lengths of what this process hashes from a shard, in order."""
    lengths: list[int] = []

    class Counting:
        @staticmethod
        def sha256(data: bytes = b"") -> Any:
            lengths.append(len(data))
            return hashlib.sha256(data)

    monkeypatch.setattr(contracts.segments, "hashlib", Counting)
    yield lengths


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("world_size", [1, 2, 5, GROUPS])
def test_ranks_share_the_row_groups_disjointly(
    certified: CertifiedSet, world_size: int, seed: int | None
) -> None:
    shares = [certified.share(rank, world_size, seed=seed) for rank in range(world_size)]
    together = [group for share in shares for group in share]
    assert len(together) == len(set(together)) == GROUPS == len(certified.groups)
    assert set(together) == set(certified.groups)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_more_ranks_than_row_groups_are_refused(certified: CertifiedSet) -> None:
    with pytest.raises(NotEnoughGroups, match="row groups") as told:
        certified.share(0, GROUPS + 1)
    assert "--rows-per-group" in told.value.remedy
    with pytest.raises(ValueError, match="numbered"):
        certified.share(2, 2)


def test_each_rank_hashes_its_own_row_groups_once(certified: CertifiedSet, hashed: list[int]) -> None:
    """Over all ranks every row group is hashed once, and a footer by each rank that needs it."""
    footers = {shard.digest.segments[-1].length for shard in certified.certificate.shards}
    wanted = sorted(
        segment.length for shard in certified.certificate.shards for segment in shard.digest.segments[:-1]
    )
    found = []
    for rank in range(4):
        hashed.clear()
        share = certified.share(rank, 4)
        tables = list(certified.read(share, ["sample_id", "response_token_ids"]))
        assert [table.num_rows for table in tables] == [group.rows for group in share]
        assert len([length for length in hashed if length in footers]) == len({g.shard for g in share})
        found += [length for length in hashed if length not in footers]
    assert sorted(found) == wanted


def test_the_gate_hashes_first_and_a_rank_of_many_does_not(
    folder: Path, hashed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_certified(folder)
    assert sum(hashed) == 0 and len(hashed) == SHARDS, "each file, whole, in pieces"
    hashed.clear()
    monkeypatch.setenv("WORLD_SIZE", "8")
    open_certified(folder)
    assert hashed == []
    open_certified(folder, check=True)
    assert len(hashed) == SHARDS


def test_what_changed_after_opening_is_refused_by_its_reader_alone(tmp_path: Path) -> None:
    folder = certified_set(tmp_path, SHARDS, size=SIZE)
    certified = open_certified(folder)
    altered = certified.groups[0]
    flip(folder / "shards" / "0.parquet", 40)
    with pytest.raises(ShardAltered, match=r"0\.parquet"):
        list(certified.read([altered]))
    others = [group for group in certified.groups if group != altered]
    assert sum(table.num_rows for table in certified.read(others)) == SHARDS * EACH - SIZE


@pytest.mark.parametrize("damage", ["cut", "gone", "swapped", "grown"])
def test_a_file_changed_under_the_reader_is_refused(tmp_path: Path, damage: str) -> None:
    folder = certified_set(tmp_path, 2, size=SIZE)
    certified = open_certified(folder)
    reading = certified.read(certified.groups)
    next(reading)
    shard, other = folder / "shards" / "0.parquet", folder / "shards" / "1.parquet"
    whole = shard.read_bytes()
    if damage == "cut":
        shard.write_bytes(whole[: len(whole) // 3])  # the same file, truncated in place
    elif damage == "gone":
        other.unlink()
    elif damage == "swapped":
        other.write_bytes(whole)
    else:
        other.write_bytes(other.read_bytes() + b"PAR1")
        # What was certified is still there, and it alone is read.
        assert sum(table.num_rows for table in reading) == 2 * EACH - SIZE
        return
    with pytest.raises((ShardAltered, ShardMissing)):
        list(reading)


def test_a_permutation_is_the_same_everywhere() -> None:
    assert permutation(8, 7, 0) == [6, 3, 4, 0, 2, 7, 5, 1]
    assert sorted(permutation(1000, 1)) == list(range(1000))
    assert permutation(1000, 1) != permutation(1000, 2)


def samples(data: Any, workers: int = 0) -> list[dict[str, Any]]:
    from torch.utils.data import DataLoader

    return list(DataLoader(data, batch_size=None, num_workers=workers))


def test_torch_ranks_and_workers_give_each_row_once(certified: CertifiedSet) -> None:
    need("torch")
    from torch.utils.data import IterableDataset

    everything = ids(certified.to_table())
    assert [row["sample_id"] for row in samples(certified.torch())] == everything
    found = []
    for rank in range(2):
        data = certified.torch(rank, 2, seed=3, columns=["sample_id"])
        assert isinstance(data, IterableDataset)
        rows = [row["sample_id"] for row in samples(data, workers=2 * rank)]
        assert len(rows) == len(data)
        found += rows
    assert sorted(found) == sorted(everything) and found != everything


def test_torch_epochs_differ_and_come_again(certified: CertifiedSet) -> None:
    need("torch")
    data = certified.torch(seed=3, columns=["sample_id"])
    epochs = []
    for epoch in (0, 1, 0):
        data.set_epoch(epoch)
        epochs.append([row["sample_id"] for row in data])
    assert epochs[0] == epochs[2] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1])
    again = pickle.loads(pickle.dumps(data))
    assert [row["sample_id"] for row in again] == epochs[0], "workers may be spawned"


def test_even_ranks_give_as_many_rows_each(tmp_path: Path) -> None:
    need("torch")
    certified = open_certified(certified_set(tmp_path, 3, size=3))  # groups of 3, 3 and 2 rows
    plain = [len(certified.torch(rank, 2)) for rank in range(2)]
    assert sum(plain) == 3 * EACH and plain[0] != plain[1]
    for workers in (0, 2):
        rows = [samples(certified.torch(rank, 2, even=True), workers) for rank in range(2)]
        assert [len(found) for found in rows] == [min(plain)] * 2
        names = [row["sample_id"] for found in rows for row in found]
        assert len(set(names)) == len(names)


def test_torch_gives_ids_and_mask_as_trainers_take_them(certified: CertifiedSet) -> None:
    need("torch")
    import torch

    table = certified.to_table().to_pylist()
    for row, sample in zip(table, certified.torch(form="training"), strict=True):
        assert sample["sample_id"] == row["sample_id"]
        assert sample["input_ids"].dtype == torch.int64
        assert sample["input_ids"].tolist() == row["prompt_token_ids"] + row["response_token_ids"]
        expected = [0] * len(row["prompt_token_ids"]) + [1] * len(row["response_token_ids"])
        assert sample["loss_mask"].tolist() == expected
    plain = next(iter(certified.torch()))
    assert plain["response_token_ids"].tolist() == table[0]["response_token_ids"]
    assert plain["messages"] == table[0]["messages"] and plain["verdict"] == "exact"
    with pytest.raises(ValueError, match="form"):
        certified.torch(form="nothing")  # type: ignore[arg-type]


def test_torch_refuses_an_altered_row_group(tmp_path: Path) -> None:
    need("torch")
    folder = certified_set(tmp_path, 2, size=SIZE)
    data = open_certified(folder, check=False).torch()
    flip(folder / "shards" / "1.parquet", 40)
    with pytest.raises(ShardAltered, match=r"1\.parquet"):
        list(data)


def test_hugging_face_gives_the_same_rows(tmp_path: Path) -> None:
    """With the `datasets` of the trainers' own environment."""
    folder = certified_set(tmp_path, SHARDS, size=SIZE)
    table = open_certified(folder).to_table()
    made = subprocess.run([ROOT / ".ci" / "trainers-env"], capture_output=True, text=True, timeout=540)
    assert made.returncode == 0, made.stderr
    done = subprocess.run(
        [Path(made.stdout.strip()) / "bin" / "python", ROOT / "tests" / "bodies" / "huggingface.py", folder],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kind"] == "Dataset" and told["columns"] == table.column_names
    assert told["response"] == table["response_token_ids"].to_pylist()
    assert told["messages"] == table["messages"][0].as_py()
    assert told["ids"] == ids(table)
    assert told["shards"] == GROUPS, "nodes and workers share it by row group"
    assert sorted(name for half in told["halves"] for name in half) == sorted(ids(table))
    assert all(told["halves"])
    assert told["refused"], "an altered row group is not given out"


def test_nothing_heavy_is_imported_before_it_is_asked_for(folder: Path) -> None:
    code = (
        "import sys; from contracts import open_certified\n"
        "rows = open_certified(sys.argv[1]).to_table().num_rows\n"
        "assert not {'torch', 'datasets', 'polars', 'transformers'} & set(sys.modules)\n"
        "sys.modules['torch'] = sys.modules['datasets'] = None\n"
        "from contracts import ShardgateError\n"
        "for make in ('torch', 'huggingface'):\n"
        "    try: getattr(open_certified(sys.argv[1]), make)()\n"
        "    except ShardgateError as error: print(error.what)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["torch is not installed", "datasets is not installed"]


def test_an_opened_set_is_a_pyarrow_dataset_too(certified: CertifiedSet) -> None:
    import pyarrow.dataset as ds

    assert isinstance(certified.dataset, ds.Dataset)
    assert certified.count_rows() == SHARDS * EACH and certified.schema.names[0] == "sample_id"
    assert pickle.loads(pickle.dumps(certified)).count_rows() == SHARDS * EACH
    with pytest.raises(AttributeError):
        certified.nothing_of_the_kind  # noqa: B018
    assert issubclass(NotEnoughGroups, ShardgateError)
