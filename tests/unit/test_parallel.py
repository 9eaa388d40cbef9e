"""One process a shard: the same findings in the same order, killed workers told, no row group too big."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts import audit, write_shard
from contracts.batches import read_batches
from contracts.parallel import WorkerError
from contracts.rules import RULES
from contracts.rules.registry import ROW_CHECKS, RuleSpec, row_check
from contracts.run import AuditError
from contracts.shard import Row, arrow_schema
from fixtures.corruptions import OPERATORS
from fixtures.corruptions.rows import CLEAN, ODD, codec, rows_of


def spoiled(*operators: str) -> list[Row]:
    rows = rows_of((*CLEAN, *ODD))
    for name in operators:
        rows = OPERATORS[name](rows)
    return rows


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Good, spoiled and broken ones, and rows that are there twice over shards."""
    parts = {
        "c": rows_of(CLEAN),
        "a": spoiled("usage-off-by-one", "content-edited"),
        "b": spoiled("mask-all-ones", "roles-swapped"),
    }
    paths = [
        write_shard(tmp_path / f"{name}.parquet", rows, format_name="kimi_k2") for name, rows in parts.items()
    ]
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(paths[0].read_bytes()[:900])
    return [paths[0], broken, *paths[1:], tmp_path / "missing.parquet"]


def test_the_findings_do_not_depend_on_the_number_of_processes(shards: list[Path]) -> None:
    told: list[tuple[str, int]] = []
    alone = audit(shards, codec=codec(), processes=1)
    many = audit(shards, codec=codec(), processes=3, on_progress=lambda name, rows: told.append((name, rows)))
    assert {"sample-id-twice", "token-count", "mask-bounds", "shard-unreadable"} & {
        found.rule for found in alone.findings
    }
    assert alone.findings == many.findings and alone == many
    assert sum(rows for _, rows in told) == sum(s.rows for s in alone.shards)


def test_a_worker_that_is_killed_is_an_error_that_names_the_shard(tmp_path: Path) -> None:
    paths = [write_shard(tmp_path / f"{n}.parquet", rows_of(CLEAN), format_name="kimi_k2") for n in range(6)]

    def kill_all(name: str, rows: int) -> None:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                ours = b"contracts.parallel" in stat.with_name("cmdline").read_bytes()
                if parent == os.getpid() and ours:
                    os.kill(int(stat.parent.name), signal.SIGKILL)

    with pytest.raises(WorkerError, match="killed by SIGKILL") as caught:
        audit(paths, codec=codec(), processes=2, on_progress=kill_all)
    assert "fewer processes" in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.fixture
def own_rule() -> Iterator[str]:
    """A rule declared by a script itself, the old way: no worker knows it."""

    @row_check(RuleSpec("no-fifty-six", "the content says 56", "nothing", column="content", kind="quality"))
    def no_fifty_six(row, ctx):  # type: ignore[no-untyped-def]
        if "56" in (row["content"] or ""):
            yield "no-fifty-six", None, "56"

    yield "no-fifty-six"
    ROW_CHECKS.remove(no_fifty_six)
    del RULES["no-fifty-six"]


def test_a_rule_of_a_users_script_sees_every_row_however_many_processes(
    shards: list[Path], own_rule: str
) -> None:
    result = audit([shards[0], shards[2]], codec=codec(), processes=2)
    assert [f.row for f in result.findings if f.rule == own_rule and f.shard == str(shards[0])]


def test_fast_and_slow_find_the_same_of_every_corruption(tmp_path: Path) -> None:
    for name in ("content-edited", "usage-off-by-one", "roles-swapped", "mask-shifted-by-one"):
        path = write_shard(tmp_path / f"{name}.parquet", spoiled(name), format_name="kimi_k2")
        assert audit([path], codec=codec()) == audit([path], codec=codec(), fast=False)


def test_an_audit_that_does_not_encode_every_row_does_not_certify(shards: list[Path], tmp_path: Path) -> None:
    assert audit(shards[:1], codec=codec(), encode="none").errors == 0
    with pytest.raises(AuditError, match="encodes every row"):
        audit(shards[:1], codec=codec(), encode="sample", certify=tmp_path / "out")


def test_a_wrong_split_is_seen_when_all_rows_are_encoded(tmp_path: Path) -> None:
    """The other split has the same bytes: only encoding tells it."""
    rows = [row for row in rows_of((*CLEAN, *ODD)) if row["verdict"] == "text_exact"]
    lying = [
        {**row, "verdict": "exact", "losses": [], "claims": {**row["claims"], "tokens": True}} for row in rows
    ]
    path = write_shard(tmp_path / "a.parquet", lying, format_name="kimi_k2")
    assert "judgement-differs" in {found.rule for found in audit([path], codec=codec()).findings}
    assert "judgement-differs" not in {
        found.rule for found in audit([path], codec=codec(), encode="none").findings
    }


@pytest.mark.parametrize(("group", "most"), [(3, 8), (1000, 8), (7, 1)])
def test_batches_are_bounded_whatever_the_row_groups(tmp_path: Path, group: int, most: int) -> None:
    table = pa.Table.from_pylist(rows_of((*CLEAN, *ODD)) * 5, schema=arrow_schema())
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=group)
    with pq.ParquetFile(tmp_path / "a.parquet") as parquet:
        batches = list(read_batches(parquet, max_rows=most))
    assert max(batch.num_rows for batch in batches) <= max(2 * most, 2)
    assert pa.concat_tables(batches)["sample_id"].to_pylist() == table["sample_id"].to_pylist()
