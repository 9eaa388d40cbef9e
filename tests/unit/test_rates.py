"""Rates over a set: caps, the smallest set that has rates, and drift from a stored set."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from contracts import audit, write_shard
from contracts.given import Given, GivenError, Rates, load_rates, write_rates
from contracts.records import Profile, Severity
from contracts.rules.rates import check_rates, z_score
from contracts.run import AuditResult, fingerprint
from contracts.shard import Row, seal
from contracts.thresholds import Thresholds
from fixtures.corruptions.rows import CLEAN, ODD, codec, rows_of


def many(tmp_path: Path, cuts: int, rows: int = 120, **options: object) -> AuditResult:
    """Audit a set in which some rows were cut by length."""
    cut, whole = rows_of(ODD)[1], rows_of(CLEAN)[0]
    out: list[Row] = []
    for number in range(rows):
        row = copy.deepcopy(cut if number < cuts else whole)
        row |= {"sample_id": f"row-{number}", "sample_index": number, "request_id": f"request-{number}"}
        out.append(seal(row))
    path = write_shard(tmp_path / "a.parquet", out, format_name="kimi_k2")
    return audit([path], codec=codec(), **options)  # type: ignore[arg-type]


def rules(result: AuditResult) -> set[str]:
    return {found.rule for found in result.findings}


def test_a_cap_is_told_when_more_rows_break_the_rule(tmp_path: Path) -> None:
    over = next(f for f in many(tmp_path, 60).findings if f.rule == "rate-over-cap")
    assert (
        over.message.startswith("cut-by-length: 60 of 120 rows (50 %)") and over.severity is Severity.WARNING
    )
    assert "rate-over-cap" not in rules(many(tmp_path, 5))
    assert "rate-over-cap" not in rules(
        many(tmp_path, 60, thresholds=Thresholds(caps={"cut-by-length": 0.5}))
    )
    assert "rate-over-cap" in rules(many(tmp_path, 60, thresholds=Thresholds(caps={"exact": 0.1})))


def test_a_small_set_has_no_rates(tmp_path: Path) -> None:
    assert "rate-over-cap" not in rules(many(tmp_path, 20, rows=40))
    assert "rate-over-cap" in rules(many(tmp_path, 20, rows=40, thresholds=Thresholds(rate_min_rows=40)))


def test_a_set_of_fewer_rows_than_it_should_is_told(tmp_path: Path) -> None:
    assert "few-rows" in rules(many(tmp_path, 0, rows=9, thresholds=Thresholds(min_rows=10)))
    assert "few-rows" not in rules(many(tmp_path, 0, rows=10, thresholds=Thresholds(min_rows=10)))


def test_a_cap_made_an_error_blocks_the_set(tmp_path: Path) -> None:
    strict = Thresholds(severities={Profile.DRAFT: {"rate-over-cap": Severity.ERROR}})
    assert many(tmp_path, 60, thresholds=strict).certified == 0


def test_rates_are_stored_and_a_later_set_is_held_against_them(tmp_path: Path) -> None:
    first = many(tmp_path, 5)
    assert first.measured is not None and first.measured.rows == 120
    assert first.measured.counts["cut-by-length"] == 5 and first.measured.counts["repetition-loop"] == 0
    stored = load_rates(write_rates(tmp_path / "rates.json", first.measured))
    assert stored.counts == first.measured.counts
    given = Given(stored_rates=stored)
    assert "rate-drift" not in rules(many(tmp_path, 6, given=given))
    told = [f.message for f in many(tmp_path, 60, given=given).findings if f.rule == "rate-drift"]
    assert [text.partition(":")[0] for text in told] == ["cut-by-length"]
    assert fingerprint(given=given) != fingerprint()


def test_drift_needs_more_than_chance_and_more_than_a_trifle() -> None:
    def drift(count: int, rows: int, then: int, of: int) -> bool:
        hits = check_rates(Rates(rows, {"aborted": count}), Thresholds(caps={}), Rates(of, {"aborted": then}))
        return bool(hits)

    assert drift(300, 1000, 200, 1000)
    assert not drift(230, 1000, 200, 1000), "three points more, but chance does that"
    assert not drift(1_010_000, 10_000_000, 1_000_000, 10_000_000), "a tenth of a point, however sure"
    assert not drift(30, 50, 1, 50), "too few rows"
    assert not check_rates(Rates(1000, {"a": 900}), Thresholds(caps={}), Rates(1000, {"b": 1})), (
        "not measured then"
    )
    assert z_score(0, 10, 0, 10) == 0 and z_score(10, 10, 10, 10) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"shardgate_rates":1,"rows":-1,"counts":{}}',
        '{"shardgate_rates":1,"rows":1,"counts":{"a":2}}',
    ],
)
def test_a_file_that_holds_no_rates_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "rates.json").write_text(text)
    with pytest.raises(GivenError, match="no rates"):
        load_rates(tmp_path / "rates.json")
    with pytest.raises(GivenError, match="can't be read"):
        load_rates(tmp_path / "none.json")
