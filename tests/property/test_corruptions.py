"""Any change of a row is caught: hypothesis changes values that no list of corruptions foresees."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from contracts import audit, write_shard
from contracts.digests import NAME_COLUMNS
from contracts.records import Finding, Severity
from contracts.run import AuditResult
from contracts.shard import Row, arrow_schema, seal, shard_metadata, write_table
from fixtures.corruptions import OPERATORS
from fixtures.corruptions.rows import CLEAN, ODD, codec, rows_of

GOOD = rows_of((*CLEAN, *ODD))
FITTING = [name for name, operator in OPERATORS.items() if operator.fits(GOOD)]
METADATA = shard_metadata(GOOD, format_name="kimi_k2")
SETTINGS = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)


def check(tmp_path: Path, rows: list[Row]) -> AuditResult:
    """Audit rows as somebody would have written them who kept the metadata of the clean shard."""
    table = pa.Table.from_pylist(rows, schema=arrow_schema())
    write_table(tmp_path / "a.parquet", table.replace_schema_metadata(METADATA))
    return audit([tmp_path / "a.parquet"], codec=codec())


def errors(result: AuditResult) -> list[Finding]:
    return [found for found in result.findings if found.severity is Severity.ERROR]


def test_the_rows_are_good_to_begin_with(tmp_path: Path) -> None:
    assert errors(check(tmp_path, GOOD)) == []


def changed(data: st.DataObject, value: Any, kind: pa.DataType) -> Any:
    """Draw another value of a column's type: an edit of the one that is there, or a fresh one."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return data.draw(st.sampled_from([True, False, None]))
    if pa.types.is_integer(kind):
        return data.draw(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 3000))
    if pa.types.is_floating(kind):
        return data.draw(st.floats(width=32, allow_nan=False))
    if pa.types.is_string(kind):
        return _edited_text(data, value)
    if pa.types.is_fixed_size_binary(kind):
        at = data.draw(st.integers(0, 31))
        return value[:at] + bytes([value[at] ^ data.draw(st.integers(1, 255))]) + value[at + 1 :]
    if pa.types.is_struct(kind):
        part = kind.field(data.draw(st.integers(0, kind.num_fields - 1)))
        return {**value, part.name: changed(data, value[part.name], part.type)}
    assert pa.types.is_list(kind), kind
    return _edited_list(data, value, kind)


def _edited_text(data: st.DataObject, value: str | None) -> str | None:
    if value and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(value) - 1))
        return value[:at] + data.draw(st.sampled_from(["", "x", " ", "0", "</think>"])) + value[at + 1 :]
    return data.draw(st.none() | st.text(st.characters(codec="utf-8"), max_size=8))


def _edited_list(data: st.DataObject, value: list[Any] | None, kind: pa.ListType) -> list[Any] | None:
    items = list(value or ())
    edit = data.draw(st.sampled_from(["change", "drop", "double", "swap", "null", "empty"]))
    if not items or edit in ("null", "empty"):
        return [] if edit == "empty" else None
    at = data.draw(st.integers(0, len(items) - 1))
    if edit == "change":
        items[at] = changed(data, items[at], kind.value_type)
    elif edit == "drop":
        del items[at]
    elif edit == "double":
        items.insert(at, copy.deepcopy(items[at]))
    else:
        other = data.draw(st.integers(0, len(items) - 1))
        items[at], items[other] = items[other], items[at]
    return items


COLUMNS = [field for field in arrow_schema() if field.name not in NAME_COLUMNS]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.name))
@settings(SETTINGS, max_examples=8)
@given(data=st.data())
def test_any_value_changed_is_caught(tmp_path: Path, column: pa.Field, data: st.DataObject) -> None:
    rows = copy.deepcopy(GOOD)
    at = data.draw(st.integers(0, len(rows) - 1))
    value = changed(data, rows[at][column.name], column.type)
    assume(value != rows[at][column.name])
    assume(value is not None or column.nullable)  # Arrow does not write a null there
    rows[at][column.name] = value
    assume(_writable(rows[at]))
    found = errors(check(tmp_path, rows))
    assert [f for f in found if f.row in (at, None)], (
        f"{column.name} of {rows[at]['conversation_id']}: {value!r}"
    )


@SETTINGS
@given(data=st.data())
def test_a_row_under_another_name_is_told(tmp_path: Path, data: st.DataObject) -> None:
    """Nothing in a row depends on its names: a change of them is told for the shard, no more."""
    rows = copy.deepcopy(GOOD)
    row = data.draw(st.sampled_from(rows))
    name = data.draw(st.sampled_from(sorted(NAME_COLUMNS[:-1])))
    value = changed(data, row[name], arrow_schema().field(name).type)
    assume(value != row[name] and (value is not None or arrow_schema().field(name).nullable))
    row[name] = value
    assert "names-changed" in {found.rule for found in check(tmp_path, rows).findings}


def _writable(row: Row) -> bool:
    """Say whether Arrow takes the row: it does not check nulls inside lists, a reader would crash on them."""
    inner = (row["messages"], row["response_token_ids"], row["prompt_token_ids"], row["losses"])
    if any(item is None for part in inner for item in part or ()):
        return False
    return all(m["role"] is not None and m["content"] is not None for m in row["messages"])


Change = Callable[[st.DataObject, Row], None]


def flip_an_id(data: st.DataObject, row: Row) -> None:
    ids = row["response_token_ids"]
    at = data.draw(st.integers(0, len(ids) - 1))
    ids[at] = data.draw(st.integers(0, 3071).filter(lambda new: new != ids[at]))


def drop_ids(data: st.DataObject, row: Row) -> None:
    ids = row["response_token_ids"]
    at = data.draw(st.integers(0, len(ids) - 2))
    del ids[at : at + data.draw(st.integers(1, len(ids) - 1 - at))]
    row["completion_tokens"] = len(ids)


def double_an_id(data: st.DataObject, row: Row) -> None:
    ids = row["response_token_ids"]
    at = data.draw(st.integers(0, len(ids) - 1))
    ids.insert(at, ids[at])
    row["completion_tokens"] = len(ids)


def edit_a_field(data: st.DataObject, row: Row) -> None:
    name = data.draw(st.sampled_from([n for n in ("reasoning_content", "content") if row[n]]))
    text = row[name]
    at = data.draw(st.integers(0, len(text) - 1))
    new = text[:at] + data.draw(st.text(st.characters(codec="utf-8"), max_size=3)) + text[at + 1 :]
    assume(new != text)
    row[name] = row["messages"][-1][name] = new


def swap_fields(data: st.DataObject, row: Row) -> None:
    assume(row["reasoning_content"] != row["content"])
    for part in (row, row["messages"][-1]):
        part["reasoning_content"], part["content"] = part["content"], part["reasoning_content"]
    row["messages"][-1]["content"] = row["messages"][-1]["content"] or ""


def edit_an_argument(data: st.DataObject, row: Row) -> None:
    assume(row["tool_calls"])
    calls = json.loads(row["tool_calls"])
    function = calls[data.draw(st.integers(0, len(calls) - 1))]["function"]
    name = data.draw(st.sampled_from(["name", "arguments"]))
    text = function[name]
    at = data.draw(st.integers(0, len(text) - 1))
    function[name] = text[:at] + data.draw(st.sampled_from(["", "z", "1"])) + text[at + 1 :]
    row["tool_calls"] = row["messages"][-1]["tool_calls"] = json.dumps(calls, ensure_ascii=False)
    assume(function[name] != text)


def tell_another_end(data: st.DataObject, row: Row) -> None:
    reason = data.draw(st.sampled_from(["stop", "length", "tool_calls", "abort"]))
    matched = data.draw(st.sampled_from([None, "42", '"x"', row["matched_stop"]]))
    # Which of the two it was, tool mode does not tell by the ids.
    assume({reason, row["finish_reason"]} not in ({"length", "abort"}, {"stop", "tool_calls"}))
    assume(reason != row["finish_reason"])
    row["finish_reason"], row["matched_stop"] = reason, matched


def move_the_mask(data: st.DataObject, row: Row) -> None:
    start, length = row["prompt_tokens"], row["completion_tokens"]
    span = data.draw(st.tuples(st.integers(-2, start + length), st.integers(-2, start + length)))
    assume(span != (start, length))
    row["loss_mask"] = [{"start": span[0], "length": span[1]}]


def claim_another_verdict(data: st.DataObject, row: Row) -> None:
    verdicts = ["exact", "text_exact", "normalized", "lossy", "contradicted", "unproven"]
    row["verdict"] = data.draw(st.sampled_from([v for v in verdicts if v != row["verdict"]]))


def claim_another_claim(data: st.DataObject, row: Row) -> None:
    name = data.draw(st.sampled_from(["captured", "text", "rebuilt", "tokens"]))
    row["claims"][name] = data.draw(
        st.sampled_from([v for v in (True, False, None) if v is not row["claims"][name]])
    )


def tell_another_mode(data: st.DataObject, row: Row) -> None:
    row["thinking_mode"] = "instant" if row["thinking_mode"] == "thinking" else "thinking"


BLIND = (
    flip_an_id,
    drop_ids,
    double_an_id,
    edit_a_field,
    swap_fields,
    edit_an_argument,
    tell_another_end,
    move_the_mask,
    claim_another_verdict,
    claim_another_claim,
    tell_another_mode,
)


@pytest.mark.parametrize("change", BLIND, ids=lambda change: change.__name__)
@settings(SETTINGS, max_examples=20)
@given(data=st.data())
def test_a_fault_of_the_writer_is_caught_without_the_digest(
    tmp_path: Path, change: Change, data: st.DataObject
) -> None:
    """The digests are made after the fault, as a faulty writer would: the rules must see it by themselves."""
    rows = copy.deepcopy(GOOD)
    at = data.draw(st.integers(0, len(CLEAN) - 1))
    change(data, rows[at])
    rows[at] = seal(rows[at])
    found = errors(check(tmp_path, rows))
    assert [f for f in found if f.row == at], rows[at]["conversation_id"]
    assert {f.row for f in found} == {at}, "a good row was held back"


@SETTINGS
@given(data=st.data())
def test_values_swapped_between_rows_are_caught(tmp_path: Path, data: st.DataObject) -> None:
    rows = copy.deepcopy(GOOD)
    name = data.draw(
        st.sampled_from(
            ["response_token_ids", "prompt_token_ids", "response_text_raw", "content", "messages"]
        )
    )
    one, two = data.draw(st.permutations(range(len(rows))))[:2]
    assume(rows[one][name] != rows[two][name])
    rows[one][name], rows[two][name] = rows[two][name], rows[one][name]
    for at in (one, two):
        rows[at]["prompt_tokens"] = len(rows[at]["prompt_token_ids"])
        rows[at]["completion_tokens"] = len(rows[at]["response_token_ids"])
        rows[at] = seal(rows[at])
    assert {f.row for f in errors(check(tmp_path, rows))} >= {one, two}


@SETTINGS
@given(data=st.data())
def test_operators_are_caught_among_any_rows(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever else is in the set and wherever the spoiled row stands, the rule meant for it fires."""
    chosen = data.draw(st.sampled_from(sorted(set(FITTING) - {"generation-prompt-cut"})))
    rows = data.draw(st.permutations(OPERATORS[chosen](GOOD)))
    path = write_shard(tmp_path / "a.parquet", rows, format_name="kimi_k2")
    assert OPERATORS[chosen].rule in {found.rule for found in audit([path], codec=codec()).findings}


@SETTINGS
@given(data=st.data())
def test_no_bytes_stop_the_run(tmp_path: Path, data: st.DataObject) -> None:
    """A file with bytes changed anywhere is a finding or unchanged in its rows; nothing raises."""
    path = write_shard(tmp_path / "a.parquet", GOOD, format_name="kimi_k2")
    block = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(block)[: data.draw(st.sampled_from([None, len(block) // 2, len(block) - 1]))])
    result = audit([path], codec=codec())
    assert result.rows == result.certified + result.quarantined
