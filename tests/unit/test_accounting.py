"""Rows by digest: a row lost, doubled or changed shows, no order does; certified and quarantined add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from contracts import CertificateAltered, audit, verify
from contracts.accounting import MODULUS, RowSet, Summary, file_rows, row_digests, row_set
from contracts.certificate import read_certificate, seal_of
from contracts.shard import arrow_schema
from fixtures.corruptions.rows import CLEAN, codec, rows_of
from tests.bodies.certified import certified_set, write_grouped

TABLE = pa.Table.from_pylist(rows_of(CLEAN), schema=arrow_schema())

VALUES = {
    "text": (pa.string(), st.text(max_size=5)),
    "bytes": (pa.binary(), st.binary(max_size=5)),
    "word": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", ""])),
    "number": (pa.int32(), st.integers(-3, 3)),
    "share": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "truth": (pa.bool_(), st.booleans()),
    "ids": (pa.list_(pa.int32()), st.lists(st.one_of(st.none(), st.integers(-3, 3)), max_size=3)),
    "nested": (
        pa.list_(pa.struct([("a", pa.string()), ("b", pa.list_(pa.string()))])),
        st.lists(
            st.one_of(
                st.none(),
                st.fixed_dictionaries(
                    {
                        "a": st.one_of(st.none(), st.text(max_size=2)),
                        "b": st.lists(st.text(max_size=2), max_size=2),
                    }
                ),
            ),
            max_size=3,
        ),
    ),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
ROWS = st.lists(
    st.fixed_dictionaries({name: st.one_of(st.none(), value) for name, (_, value) in VALUES.items()}),
    max_size=6,
)


def as_key(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


@settings(deadline=None)
@given(rows=ROWS)
def test_rows_have_one_digest_exactly_where_they_are_equal(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    digests = [digest.tobytes() for digest in row_digests(table)]
    assert len(digests) == len(rows)
    for one, first in zip(rows, digests, strict=True):
        for other, second in zip(rows, digests, strict=True):
            assert (as_key(one) == as_key(other)) == (first == second), (one, other)


@settings(deadline=None)
@given(rows=ROWS, data=st.data())
def test_neither_order_nor_cuts_nor_chunks_matter(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    cut = data.draw(st.integers(0, len(rows)))
    other = pa.Table.from_pylist(data.draw(st.permutations(rows)), schema=SCHEMA)
    parts = table.slice(0, cut), table.slice(cut)
    assert row_set(other) == row_set(table) == row_set(parts[0]) + row_set(parts[1])
    assert row_set(pa.concat_tables(parts)) == row_set(table)
    assert (
        row_set(table).total == sum(int.from_bytes(d.tobytes(), "big") for d in row_digests(table)) % MODULUS
    )


@pytest.mark.parametrize("name", TABLE.column_names)
def test_every_column_counts(name: str) -> None:
    """Another row's value in one column alone, where it is another one, gives another digest."""
    column = TABLE[name].combine_chunks()
    turned = column.take(pa.array([*range(1, len(column)), 0]))
    changed = TABLE.set_column(TABLE.schema.get_field_index(name), TABLE.schema.field(name), turned)
    for row, (before, after) in enumerate(zip(row_digests(TABLE), row_digests(changed), strict=True)):
        same = column[row].as_py() == turned[row].as_py()
        assert same == (before.tobytes() == after.tobytes()), (name, row)


def test_the_digest_of_a_row_is_what_it_always_was() -> None:
    """Certificates of other days are compared with it: a change of the digest breaks them all."""
    table = pa.table({"a": pa.array(["x", None]), "b": pa.array([[1], []], pa.list_(pa.int32()))})
    assert row_set(table).hex == "7fa42fcd84f8a540f4d820cc6d32e4f0ecad7f1ae4ae5c494a5c9b9b52a1519a"


def test_rows_are_accounted_for_by_digest(tmp_path: Path) -> None:
    folder = certified_set(tmp_path, bad=True)
    sources = read_certificate(folder).predicate["sources"]
    assert [source["accounted"]["by"] for source in sources] == ["file", "file", "rows"]
    told = sources[2]["accounted"]
    before = file_rows(folder / "shards" / "2.parquet")
    good, bad = file_rows(folder / told["shard"]), file_rows(folder / told["quarantine"])
    assert (before.hex, good.hex, bad.hex) == (told["input"], told["certified"], told["quarantined"])
    assert good + bad == before and bad.rows == 1
    assert verify(folder, rows=True, sources=True).ok


def test_a_shard_of_bad_rows_only_is_accounted_for_too(tmp_path: Path) -> None:
    rows = rows_of(CLEAN[:2], first=50)
    for row in rows:
        row["completion_tokens"] += 1
    write_grouped(tmp_path / "shards" / "a.parquet", rows_of(CLEAN[2:]), 2)
    write_grouped(tmp_path / "shards" / "b.parquet", rows, 1)
    (tmp_path / "shards" / "c.parquet").write_bytes(b"PAR1 no shard PAR1")
    audit([tmp_path], codec=codec(), certify=tmp_path)
    sources = read_certificate(tmp_path).predicate["sources"]
    assert [source["accounted"]["by"] for source in sources] == ["file", "rows", "file"]
    assert sources[1]["accounted"]["shard"] is None
    assert sources[1]["accounted"]["certified"] == RowSet().hex
    assert (tmp_path / "quarantine" / "c.parquet").read_bytes() == b"PAR1 no shard PAR1"
    assert verify(tmp_path, rows=True, sources=True).ok


def test_sums_that_do_not_add_up_are_refused_though_sealed_again(tmp_path: Path) -> None:
    file = certified_set(tmp_path, bad=True) / "certificate.json"
    whole = json.loads(file.read_text())
    told = whole["predicate"]["sources"][2]["accounted"]
    told["certified"] = told["certified"][::-1]
    whole["predicate"]["sha256"] = seal_of(whole)
    file.write_text(json.dumps(whole))
    with pytest.raises(CertificateAltered, match="do not add up"):
        verify(tmp_path)


def test_another_row_in_the_quarantine_is_seen_though_sealed_again(tmp_path: Path) -> None:
    """Whoever can seal a certificate again still has to find rows whose digests add up."""
    from contracts.segments import file_sha256

    folder = certified_set(tmp_path, bad=True)
    kept = folder / "quarantine" / "2.parquet"
    pq.write_table(pq.read_table(folder / "shards" / "0.parquet").slice(0, 1), kept)
    whole = json.loads((folder / "certificate.json").read_text())
    whole["predicate"]["quarantine"][0]["sha256"] = file_sha256(kept)
    whole["predicate"]["sha256"] = seal_of(whole)
    (folder / "certificate.json").write_text(json.dumps(whole))
    assert verify(folder).ok
    assert "RowsDiffer" in {problem["kind"] for problem in verify(folder, rows=True).problems}


def test_a_summary_of_parts_is_that_of_the_whole() -> None:
    whole, merged = Summary(), Summary()
    whole.add(TABLE)
    for first in range(0, TABLE.num_rows, 3):
        part = Summary()
        part.add(TABLE.slice(first, 3))
        merged.merge(part)
    assert merged == whole and whole.predicate()["verdicts"] == {"exact": len(CLEAN)}
    assert whole.predicate()["claims"]["captured"] == {"true": len(CLEAN)}
