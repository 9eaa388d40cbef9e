"""The contracts as pandera models: what the audit says of a row, pandera says too, by its own errors."""

from __future__ import annotations

import json
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pyarrow
import pytest
from pandera.errors import SchemaError, SchemaErrors, SchemaWarning

from contracts import audit, write_shard
from contracts.contract import columns_model, contract_for
from contracts.errors import ShardgateError
from contracts.formats import FORMATS
from contracts.records import Profile, Severity
from contracts.rules import RULES
from contracts.rules.rates import checked_rules
from contracts.schema import shard_schema
from contracts.shard import Row, arrow_schema
from contracts.thresholds import Thresholds
from fixtures.corruptions import OPERATORS, Operator
from fixtures.corruptions.rows import CLEAN, ODD, codec, rows_of

KIMI = contract_for("kimi_k2", "token", codec=codec())
GOOD = rows_of((*CLEAN, *ODD))
ONE_A_RULE: dict[str, Operator] = {
    operator.rule: operator
    for operator in OPERATORS.values()
    if operator.fits(GOOD)
    and RULES[operator.rule].scope == "row"
    and "token" in RULES[operator.rule].strengths
}


def frame(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(pyarrow.Table.from_pylist(rows, schema=arrow_schema())))


def failures(rows: list[Row], model: Any = KIMI) -> dict[str, set[int]]:
    """Return rule → rows, as pandera's failure cases and warnings tell them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SchemaWarning)
            model.validate(frame(rows), lazy=True)
    except SchemaErrors as error:
        out: dict[str, set[int]] = {}
        for case in error.failure_cases.to_dicts():
            out.setdefault(case["check"].partition(":")[0], set()).add(case["index"])
        return out
    return {}


@pytest.mark.parametrize("odd", [False, True])
def test_good_rows_pass_and_come_back(odd: bool) -> None:
    rows = rows_of((*CLEAN, *ODD) if odd else CLEAN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if odd else "error", SchemaWarning)
        assert KIMI.validate(frame(rows)).equals(frame(rows))


@pytest.mark.parametrize("operator", ONE_A_RULE.values(), ids=lambda operator: operator.name)
def test_pandera_says_of_the_rows_what_the_audit_says(tmp_path: Path, operator: Operator) -> None:
    rows = operator(GOOD)
    path = write_shard(tmp_path / "a.parquet", rows, format_name="kimi_k2")
    told: dict[str, set[int]] = {}
    for found in audit([path], codec=codec()).findings:
        if RULES[found.rule].scope == "row" and found.severity is Severity.ERROR and found.row is not None:
            told.setdefault(found.rule, set()).add(found.row)
    assert failures(rows) == told


def test_the_rules_are_the_audits_own() -> None:
    """One list: what an audit checks of the rows, less the rates, for each family and strength."""
    for strength in ("token", "text"):
        for family in FORMATS:
            for profile in Profile:
                given = contract_for(family, strength, profile=profile, codec=codec()).facts()["rules"]
                checked = checked_rules(profile, strength, Thresholds(), with_tokenizer=True)
                rates = {rule for rule in checked if RULES[rule].severity(profile) is Severity.RATE}
                assert set(given) == set(checked) - rates
    assert shard_schema("text").columns.keys() == columns_model("text").to_schema().columns.keys()


def test_a_model_says_what_it_is_made_for() -> None:
    facts = contract_for("qwen3", "text", profile="sft").facts()
    assert facts["format"] == "qwen3" and facts["template_switch"] == "enable_thinking"
    assert (facts["strength"], facts["profile"]) == ("text", "sft")
    assert set(FORMATS["qwen3"].reasoning_parsers) == set(facts["reasoning_parsers"])
    assert "text-differs" not in facts["rules"], "it needs the ids"
    assert issubclass(contract_for("qwen3", "text"), columns_model("text"))
    with pytest.raises(ShardgateError, match="no contract"):
        contract_for("qwen9")


def test_the_error_is_panderas_own_and_names_rule_and_sample() -> None:
    rows = OPERATORS["target-content-changed"](rows_of(CLEAN))
    with pytest.raises(SchemaError) as caught:
        KIMI.validate(frame(rows))
    assert "target-differs" in str(caught.value) and "kimi_k2-0000" in str(caught.value)
    assert RULES["target-differs"].remedy in str(caught.value)


def test_a_quality_rule_is_a_warning_of_pandera_and_an_error_where_it_is_made_one() -> None:
    rows = OPERATORS["required-argument-lost"](rows_of(CLEAN))
    with pytest.warns(SchemaWarning, match="arguments-off-schema"), pytest.raises(SchemaError):
        KIMI.validate(frame(rows))
    strict = Thresholds(severities={Profile.DRAFT: {"arguments-off-schema": Severity.ERROR}})
    assert "arguments-off-schema" in failures(rows, contract_for("kimi_k2", codec=codec(), thresholds=strict))


def test_a_column_of_another_type_or_place_is_panderas_error() -> None:
    good = frame(rows_of(CLEAN))
    for bad in (
        good.drop("verdict"),
        good.with_columns(more=1),
        good.select(reversed(good.columns)),
        good.with_columns(pl.col("turn_index").cast(pl.Int64)),
    ):
        with pytest.raises(SchemaError):
            KIMI.validate(bad)


# The traps of pandera that the models keep clear of.


def test_trap_a_lazy_frame_is_checked_by_its_values() -> None:
    rows = OPERATORS["target-content-changed"](rows_of(CLEAN))
    plain = pa.DataFrameSchema({"turn_index": pa.Column(pl.Int32, pa.Check.lt(0))})
    plain.validate(frame(rows).lazy().select("turn_index")).collect()  # passes: pandera looks at types only
    with pytest.raises(SchemaError):
        KIMI.validate(frame(rows).lazy())
    assert isinstance(KIMI.validate(frame(rows_of(CLEAN)).lazy()), pl.LazyFrame)


def test_trap_a_check_that_is_null_does_not_pass() -> None:
    rows = rows_of(CLEAN)
    rows[1]["loss_mask"] = [{"start": None, "length": None}]
    assert {rule for rule, where in failures(rows).items() if 1 in where} >= {"mask-span", "mask-bounds"}


def test_trap_failing_rows_are_not_copied_into_the_error() -> None:
    row = rows_of(CLEAN)[0]
    rows = [{**row, "response_token_ids": row["response_token_ids"] * 20}] * 60
    bad = frame(rows)
    tracemalloc.start()
    found = failures(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found["token-count"]) == 60 and bad.height == 60
    assert peak < 50e6, "the rows themselves were written into the failure cases"
    with pytest.raises(SchemaErrors) as caught:
        KIMI.validate(bad, lazy=True)
    told = caught.value.failure_cases["failure_case"].to_list()
    assert set(told) == {"kimi_k2-0000"} and json.dumps(told)
