"""The audit over files: broken ones are findings, the run goes on, and the answer is the same each time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts import audit, open_certified, write_shard
from contracts.records import Finding, Severity
from contracts.rules import RULES
from contracts.run import AuditError, AuditResult, expand
from contracts.scan import MAX_FAULTS_SHOWN
from contracts.shard import METADATA_PREFIX, arrow_schema
from fixtures.corruptions import OPERATORS
from fixtures.corruptions.rows import CLEAN, ODD, codec, rows_of


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return write_shard(tmp_path / "good.parquet", rows_of(CLEAN), format_name="kimi_k2")


def check(*paths: Path) -> AuditResult:
    return audit(paths, codec=codec())


def only(result: AuditResult, path: Path) -> list[Finding]:
    return [found for found in result.findings if found.shard == str(path)]


def rewrite(shard: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    out = shard.with_name("changed.parquet")
    pq.write_table(change(pq.read_table(shard)), out)
    return out


def as_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def make(shard: Path) -> Path:
        out = shard.with_name("broken.parquet")
        out.write_bytes(change(shard.read_bytes()))
        return out

    return make


def folder(shard: Path) -> Path:
    out = shard.with_name("folder.parquet")
    out.mkdir()
    return out


def broken_page(data: bytes) -> bytes:
    """Overwrite the pages of the first half, footer left whole."""
    half = len(data) // 2
    return data[:200] + bytes(half - 200) + data[half:]


BROKEN: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "missing": ("shard-missing", lambda shard: shard.with_name("nothing.parquet")),
    "folder": ("shard-unreadable", folder),
    "zero-bytes": ("shard-unreadable", as_bytes(lambda data: b"")),
    "truncated": ("shard-unreadable", as_bytes(lambda data: data[: len(data) // 2])),
    "footer-cut": ("shard-unreadable", as_bytes(lambda data: data[:-5])),
    "wrong-magic": ("shard-unreadable", as_bytes(lambda data: b"PK\x03\x04" + data[4:-4] + b"PK\x05\x06")),
    "text": ("shard-unreadable", as_bytes(lambda data: b'{"input_ids": [1, 2]}\n')),
    "bad-page": ("shard-unreadable", as_bytes(broken_page)),
    "no-rows": ("shard-empty", lambda shard: rewrite(shard, lambda table: table.slice(0, 0))),
    "column-gone": (
        "schema-mismatch",
        lambda shard: rewrite(shard, lambda table: table.drop_columns(["tools"])),
    ),
    "column-more": (
        "schema-mismatch",
        lambda shard: rewrite(shard, lambda t: t.append_column("x", pa.array([1] * t.num_rows))),
    ),
    "columns-in-another-order": (
        "schema-mismatch",
        lambda shard: rewrite(shard, lambda table: table.select(table.column_names[::-1])),
    ),
    "ids-as-int64": (
        "schema-mismatch",
        lambda shard: rewrite(
            shard,
            lambda t: t.set_column(
                t.column_names.index("response_token_ids"),
                "response_token_ids",
                t["response_token_ids"].cast(pa.list_(pa.int64())),
            ),
        ),
    ),
    "arguments-as-struct": (
        "schema-mismatch",
        lambda shard: rewrite(
            shard,
            lambda t: t.set_column(
                t.column_names.index("tools"), "tools", pa.array([{"city": "Oslo"}] * t.num_rows)
            ),
        ),
    ),
    "written-by-polars": ("schema-mismatch", lambda shard: _by_polars(shard)),
    "metadata-gone": (
        "metadata-missing",
        lambda shard: rewrite(shard, lambda table: table.replace_schema_metadata(None)),
    ),
    "format-unknown": ("format-unknown", lambda shard: _metadata(shard, "format", "llama9")),
    "strength-text": ("metadata-missing", lambda shard: _metadata(shard, "strength", "text")),
    "constants-no-json": ("metadata-missing", lambda shard: _metadata(shard, "constants", "[")),
    "another-tokenizer": (
        "tokenizer-mismatch",
        lambda shard: _metadata(shard, "constants", json.dumps({"tokenizer_sha256": "a" * 64})),
    ),
}


def _by_polars(shard: Path) -> Path:
    out = shard.with_name("polars.parquet")
    pl.read_parquet(shard).write_parquet(out)
    return out


def _metadata(shard: Path, key: str, value: str) -> Path:
    def change(table: pa.Table) -> pa.Table:
        metadata = {**table.schema.metadata, f"{METADATA_PREFIX}{key}".encode(): value.encode()}
        return table.replace_schema_metadata(metadata)

    return rewrite(shard, change)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_a_finding_and_the_run_goes_on(shard: Path, name: str) -> None:
    rule, make = BROKEN[name]
    broken = make(shard)
    result = check(broken, shard)
    found = next(found for found in only(result, broken) if found.rule == rule)
    assert found.severity is Severity.ERROR and found.row is None and found.remedy
    fate, good = result.shards
    assert fate.certified == 0 and fate.quarantined == fate.rows and fate.refused
    assert good.certified == len(CLEAN)
    assert result.rows == result.certified + result.quarantined


def test_every_file_rule_fires_somewhere() -> None:
    elsewhere = {"tokenizer-missing", "marker-not-token", "names-changed", "statistics-false"}
    shown = {rule for rule, _ in BROKEN.values()} | elsewhere
    assert {spec.id for spec in RULES.values() if spec.scope == "file"} == shown


def test_broken_files_are_kept_and_quarantined(shard: Path, tmp_path: Path) -> None:
    broken = [
        make(shard) for name, (_, make) in BROKEN.items() if name in ("truncated", "column-gone", "missing")
    ]
    out = tmp_path / "out"
    result = audit([shard, *broken], codec=codec(), certify=out)
    assert result.certificate is not None
    assert open_certified(out).count_rows() == len(CLEAN)
    assert (out / "quarantine" / "changed.parquet").read_bytes() == (
        tmp_path / "changed.parquet"
    ).read_bytes()
    told = (out / "quarantine" / "broken.findings.jsonl").read_text()
    assert json.loads(told.splitlines()[0])["rule"] == "shard-unreadable"


def test_without_a_tokenizer_nothing_is_certified(shard: Path, tmp_path: Path) -> None:
    result = audit([shard], certify=tmp_path / "out")
    assert [found.rule for found in result.findings] == ["tokenizer-missing"]
    assert result.findings[0].severity is Severity.ERROR and "--tokenizer" in result.findings[0].remedy
    assert (result.certified, result.quarantined, result.certificate) == (0, len(CLEAN), None)
    assert "--tokenizer" in result.note and not (tmp_path / "out").exists()


def test_without_a_tokenizer_what_can_be_seen_is_seen(tmp_path: Path) -> None:
    rows = OPERATORS["mask-shifted-by-one"](OPERATORS["roles-swapped"](rows_of(CLEAN)))
    result = audit([write_shard(tmp_path / "a.parquet", rows, format_name="kimi_k2")])
    assert {"mask-span", "role-order", "tokenizer-missing"} <= {found.rule for found in result.findings}


def test_a_tokenizer_of_another_family_is_told(tmp_path: Path, shard: Path) -> None:
    from tokenizers import Tokenizer, models

    from contracts.tokens import load_codec

    other = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    other.save(str(tmp_path / "tokenizer.json"))
    result = audit([shard], codec=load_codec(tmp_path / "tokenizer.json"))
    assert {"marker-not-token", "tokenizer-mismatch", "token-range"} <= {
        found.rule for found in result.findings
    }
    assert result.certified == 0


def test_nulls_are_told_by_row_and_column(shard: Path) -> None:
    """A file that allows null where the contract does not: told for the file, and for each row."""

    def change(table: pa.Table) -> pa.Table:
        values = table["source_dataset"].to_pylist()
        values[3] = None
        at = table.column_names.index("source_dataset")
        return table.set_column(at, pa.field("source_dataset", pa.string()), pa.array(values))

    found = check(rewrite(shard, change)).findings
    assert "schema-mismatch" in {f.rule for f in found if f.row is None}
    told = [f for f in found if f.rule == "null-value"]
    assert [(f.row, "source_dataset" in f.message) for f in told] == [(3, True)]


def test_a_row_of_another_run_is_told_against_the_metadata(shard: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        values = table["engine_version"].to_pylist()
        values[2] = "0.4.0"
        at = table.column_names.index("engine_version")
        column = pa.array(values).dictionary_encode()
        return table.set_column(at, table.schema.field("engine_version"), column)

    found = {(f.rule, f.row) for f in check(rewrite(shard, change)).findings}
    assert ("constants-differ", 2) in found and ("provenance-not-constant", 2) in found


def test_two_runs_are_not_one_set(tmp_path: Path, shard: Path) -> None:
    other = [
        {**row, "target_revision": "1" * 40, "sample_id": f"x{n}", "sample_index": 7}
        for n, row in enumerate(rows_of(CLEAN))
    ]
    second = write_shard(tmp_path / "z.parquet", other, format_name="kimi_k2")
    result = check(shard, second)
    told = [found for found in result.findings if found.rule == "provenance-not-constant"]
    assert {found.shard for found in told} == {str(second)} and len(told) == len(CLEAN)


def test_the_answer_is_the_same_each_time_and_in_order(tmp_path: Path) -> None:
    rows = rows_of((*CLEAN, *ODD))
    for operator in ("usage-off-by-one", "mask-all-ones", "content-edited"):
        rows = OPERATORS[operator](rows)
    paths = [
        write_shard(tmp_path / f"{name}.parquet", part, format_name="kimi_k2")
        for name, part in (("b", rows[:9]), ("a", rows[9:]))
    ]
    first, second = check(*paths), check(*paths)
    assert first == second
    places = [(f.shard, f.row) for f in first.findings if f.row is not None]
    assert places == sorted(places, key=lambda place: ([str(p) for p in paths].index(place[0]), place[1]))


def test_json_has_what_scripts_read(shard: Path) -> None:
    value = json.loads(json.dumps(check(shard.with_name("no.parquet"), shard).to_json()))
    assert {"rows", "certified", "quarantined", "findings"} <= set(value)
    assert {"rule", "severity", "shard", "row", "message", "remedy"} <= set(value["findings"][0])
    assert value["findings"][0]["severity"] == "error"


def test_folders_stand_for_their_shards(shard: Path) -> None:
    (shard.parent / "notes.txt").write_text("no shard")
    assert expand([shard.parent, shard]) == [shard]
    (shard.parent / "run" / "shards").mkdir(parents=True)
    inner = write_shard(
        shard.parent / "run" / "shards" / "x.parquet", rows_of(CLEAN[:1]), format_name="kimi_k2"
    )
    assert expand([shard.parent / "run"]) == [inner]


def test_progress_is_told_by_shard_and_rows(shard: Path) -> None:
    told: list[tuple[str, int]] = []
    audit([shard], codec=codec(), on_progress=lambda name, rows: told.append((name, rows)))
    assert sum(rows for _, rows in told) == len(CLEAN) and {name for name, _ in told} == {str(shard)}


@pytest.mark.parametrize(
    "waivers", [{"no-such-rule": "why"}, {"token-count": " "}, {"shard-unreadable": "why"}]
)
def test_a_waiver_that_can_not_be(shard: Path, waivers: dict[str, str]) -> None:
    with pytest.raises(AuditError):
        audit([shard], codec=codec(), waivers=waivers)


def test_no_shard_at_all_is_a_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="no shard"):
        audit([])


def test_many_faults_are_told_short(shard: Path) -> None:
    bare = rewrite(shard, lambda table: table.select(["sample_id"]))
    told = next(found for found in check(bare).findings if found.rule == "schema-mismatch")
    assert f"and {len(arrow_schema()) - 1 - MAX_FAULTS_SHOWN} more" in told.message


def test_pandera_still_has_the_traps_that_the_audit_keeps_clear_of() -> None:
    """If one of these stops to hold, the way around it can go."""
    import pandera.polars as pandera
    from pandera.errors import SchemaError

    model = pandera.DataFrameSchema({"x": pandera.Column(pl.Int64, pandera.Check.gt(0), nullable=True)})
    bad, null = pl.DataFrame({"x": [1, -1]}), pl.DataFrame({"x": [1, None]})
    with pytest.raises(SchemaError):
        model.validate(bad)
    model.validate(bad.lazy())  # a LazyFrame is not looked into
    model.validate(null)  # a null check result passes
    from contracts.schema import broken_rules

    assert broken_rules(pl.DataFrame({"token-count": [True, None]})) == {"token-count"}
    assert broken_rules(pl.DataFrame({"token-count": [True, False], "end-token": [True, True]})) == {
        "token-count"
    }
