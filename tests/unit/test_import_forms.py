"""The forms that public data sets have, re-created: each comes in with the right rows or is refused by name.

Shapes as found in LLaMA-Factory's `data/`, axolotl's and ms-swift's test data, FastChat, Medusa, EAGLE,
TorchSpec, Model-Optimizer, OpenAI's cookbook and the regenerations of SpecForge and speculators; no text of
theirs.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts import audit, write_shard
from contracts.formats import FORMATS
from contracts.importers import ImportOptions, ImportResult, import_files
from contracts.importers.base import ImportFault
from contracts.records import Severity
from contracts.shard import Row, ShardError
from contracts.strict_json import NotJson, loads
from fixtures.corruptions.rows import CLEAN, codec, rows_of

KIMI = FORMATS["kimi_k2"]
ASK, SAY = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}
BARE = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
CALL = '{"name": "f", "arguments": {"city": "Ōsaka"}}'
GLAIVE = {
    "conversations": [
        {"from": "human", "value": "Weather?"},
        {"from": "function_call", "value": CALL},
        {"from": "observation", "value": '{"t": 3}'},
        {"from": "gpt", "value": "3 degrees."},
    ],
    "system": "Be brief.",
    "tools": json.dumps([BARE]),
}


def brought(
    folder: Path, *records: Any, kind: str = "torchspec", **more: Any
) -> tuple[ImportResult, list[Row]]:
    file = folder / "in.json"
    file.write_text(json.dumps(list(records)), encoding="utf-8")
    return read(folder, file, kind, **more)


def read(folder: Path, file: Path, kind: str = "torchspec", **more: Any) -> tuple[ImportResult, list[Row]]:
    out = folder / "out"
    result = import_files(kind, [file], out, ImportOptions(KIMI, codec(), **more))
    assert result.records == result.imported + result.refused + result.failed + result.skipped
    rows = [row for name in result.shards for row in pq.read_table(out / "shards" / name).to_pylist()]
    assert len(rows) == result.rows
    return result, rows


def said(row: Row) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in row["messages"]]


def test_calls_as_turns_of_their_own_are_calls_with_paired_results(tmp_path: Path) -> None:
    result, (row,) = brought(tmp_path, GLAIVE)
    assert (result.refused, dict(result.unread)) == (0, {})
    roles = ["system", "user", "assistant", "tool", "assistant"]
    assert [message["role"] for message in row["messages"]] == roles
    assert row["messages"][0]["content"] == "Be brief."
    (call,) = json.loads(row["messages"][2]["tool_calls"])
    assert json.loads(call["function"]["arguments"]) == {"city": "Ōsaka"}
    assert row["messages"][3]["tool_call_id"] == call["id"]
    assert json.loads(row["tools"]) == [{"type": "function", "function": BARE}]
    wrong = [f for f in audit([tmp_path / "out"], strength="text").findings if f.severity is Severity.ERROR]
    assert wrong == []


def test_openais_older_functions_are_calls(tmp_path: Path) -> None:
    older = {
        "messages": [
            ASK,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "3"},
            SAY,
        ],
        "functions": [BARE],
        "parallel_tool_calls": False,
    }
    result, (row,) = brought(tmp_path, older)
    assert json.loads(row["messages"][1]["tool_calls"])[0]["function"] == {"name": "f", "arguments": "{}"}
    assert row["messages"][2]["role"] == "tool" and row["messages"][2]["tool_call_id"]
    assert dict(result.unread) == {"parallel_tool_calls": 1}


def test_parts_are_reasoning_text_and_calls(tmp_path: Path) -> None:
    def parts(*kinds: tuple[str, str]) -> dict[str, Any]:
        return {"role": "assistant", "content": [{"type": kind, "value": text} for kind, text in kinds]}

    ask = {"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}
    good = {
        "messages": [ask, parts(("reasoning", "Hm."), ("text", "Ho"), ("tool_call", CALL))],
        "tools": [BARE],
    }
    turned = {"messages": [ask, parts(("text", "Ho"), ("reasoning", "Hm."))]}
    result, (row,) = brought(tmp_path, good, turned)
    assert said(row)[0] == ("user", "Hi")
    assert (row["reasoning_content"], row["content"]) == ("Hm.", "Ho")
    assert json.loads(row["tool_calls"])[0]["function"]["name"] == "f"
    assert "order" in result.first_refused[0].reason


def test_what_is_marked_not_to_be_trained_on_is_no_row(tmp_path: Path) -> None:
    def turn(mark: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [ASK, {**SAY, "weight": 1}, ASK, {**SAY, **mark}]}

    marks: list[dict[str, Any]] = [{"weight": 0}, {"loss_weight": 0.0}, {"train": False}, {"weight": 1}]
    result, rows = brought(tmp_path, *map(turn, marks))
    assert (len(rows), result.refused) == (1, 3)
    assert all("trained on" in one.reason for one in result.first_refused)
    (tmp_path / "e").mkdir()
    _, every = brought(tmp_path / "e", turn({"weight": 0}), every_turn=True)
    assert [row["turn_index"] for row in every] == [0]


def test_what_a_row_has_no_place_for_is_named(tmp_path: Path) -> None:
    record = {"messages": [ASK, {**SAY, "annotations": ["x"]}], "category": "chat", "source": None}
    result, _ = brought(tmp_path, record, {"messages": [ASK, SAY]})
    assert dict(result.unread) == {"category": 1, "messages.annotations": 1}


REFUSED = [
    ({"instruction": "a", "input": "", "output": "b"}, "Alpaca"),
    ({"query": "a", "response": "b", "history": []}, "ms-swift"),
    ({"prompt": "a", "completion": "b"}, "completion"),
    ({"question_id": 1, "turns": ["a"], "category": "x"}, "shardgate capture"),
    ({"question_id": 1, "choices": [{"turns": ["a"]}]}, "without the questions"),
    ({"text": "a b c"}, "without roles"),
    ({"input_ids": [1, 2], "labels": [-100, 2]}, "--from speculators"),
    ({"conversations": [{"from": "human", "value": "a"}], "chosen": {}, "rejected": {}}, "preferences"),
    ({"chosen_messages": [ASK, SAY], "rejected_messages": [ASK, SAY]}, "preferences"),
    ({"messages": [ASK, SAY], "label": False}, "bad one"),
    ({"messages": [{**ASK, "content": "<image>Who?"}, SAY], "images": ["1.jpg"]}, "media"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "value": "x"}]}, SAY]}, "image_url"),
    ({"conversation": [{"human": "a", "assistant": "b"}]}, "its keys are assistant, human"),
    ({"messages": [{"role": "user", "text": "Hi"}, SAY]}, "no content"),
    ({"messages": [ASK, {"role": "assistant", "content": None}]}, "no content"),
    ({"messages": [ASK]}, "shardgate capture"),
    ({"data": [{"messages": [ASK, SAY]}]}, "list of records under 'data'"),
    ({"messages": [{"role": "system", "content": "a"}, ASK, SAY], "system": "b"}, "system message"),
    ({"conversations": [ASK, {"from": "function_call", "value": "f(x)"}, SAY]}, "no JSON"),
    ({"messages": [ASK, SAY], "tools": ["search"]}, "`tools`[0]"),
]


@pytest.mark.parametrize(("record", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_other_forms_are_refused_by_their_name(tmp_path: Path, record: Any, told: str) -> None:
    result, rows = brought(tmp_path, record, {"messages": [ASK, SAY]})
    assert (len(rows), result.refused) == (1, 1)
    assert told in result.first_refused[0].reason


ENCODED = {
    "utf-8 with a mark": lambda text: text.encode("utf-8-sig"),
    "utf-16": lambda text: text.encode("utf-16"),
    "utf-16 without a mark": lambda text: text.encode("utf-16-le"),
    "gzip": lambda text: gzip.compress(text.encode()),
}


@pytest.mark.parametrize("encode", ENCODED.values(), ids=ENCODED)
@pytest.mark.parametrize("form", ["lines", "array", "one object over lines", "objects over lines"])
def test_a_file_is_read_whatever_it_is_encoded_in(tmp_path: Path, encode: Any, form: str) -> None:
    record = {"id": "a", "messages": [{"role": "user", "content": "Grüße\u2028東京"}, SAY]}
    text = {
        "lines": json.dumps(record, ensure_ascii=False) + "\n",
        "array": json.dumps([record], ensure_ascii=False),
        "one object over lines": json.dumps(record, ensure_ascii=False, indent=1),
        "objects over lines": f"{json.dumps(record, indent=1, ensure_ascii=False)}\n" * 2,
    }[form]
    (tmp_path / "in.jsonl").write_bytes(encode(text))
    result, rows = read(tmp_path, tmp_path / "in.jsonl")
    assert result.refused == 0 and len(rows) == (2 if form.startswith("objects") else 1)
    assert rows[0]["messages"][0]["content"] == "Grüße\u2028東京"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"[]", "empty"),
        (b"PK\x03\x04....", "zip"),
        (b"\x28\xb5\x2f\xfd....", "zstd"),
        (b"ARROW1\0\0", "can't be read"),
        (gzip.compress(b'{"messages": []}' * 50)[:-9], "from here on"),
        (b'\xff\xfe{\0"', "from here on"),
        (b'{"id": "a", "id": "b", "messages": []}', "'id' stands twice"),
        (b'{"messages": [{"role": "user", "role": "tool"}]}', "'role' stands twice"),
        (b'{"messages": NaN}', "NaN"),
        (b"PAR1", "can't be read"),
    ],
)
def test_a_file_that_is_none_is_refused_and_not_passed_over(
    tmp_path: Path, content: bytes, told: str
) -> None:
    (tmp_path / "in.jsonl").write_bytes(content)
    result, rows = read(tmp_path, tmp_path / "in.jsonl")
    assert rows == [] and result.refused == 1
    assert told in result.first_refused[0].reason


def test_a_folder_named_as_a_file_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "x.parquet"
    folder.mkdir()
    with pytest.raises(ImportFault, match="nothing to import"):
        read(tmp_path, folder)
    pq.write_table(pa.Table.from_pylist([{"messages": [ASK, SAY]}]), folder / "part-0.parquet")
    _, rows = read(tmp_path, folder)
    assert len(rows) == 1


def test_a_data_sets_folder_of_arrow_is_read(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"messages": [ASK, SAY]}, {"messages": [ASK, {**SAY, "content": "Hu"}]}])
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "state.json").write_text("{}")
    with pa.ipc.new_stream(folder / "data-00000-of-00002.arrow", table.schema) as writer:
        writer.write_table(table)
    with pa.ipc.new_file(folder / "data-00001-of-00002.arrow", table.schema) as writer:
        writer.write_table(table)
    result, rows = read(tmp_path, folder)
    assert (result.records, [row["content"] for row in rows]) == (4, ["Ho", "Hu"] * 2)


def test_nulls_that_a_table_made_of_arguments_are_not_taken_for_the_models(tmp_path: Path) -> None:
    def call(arguments: Any) -> dict[str, Any]:
        made = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return {"messages": [ASK, {"role": "assistant", "content": "", "tool_calls": [made]}]}

    table = pa.Table.from_pylist([call({"a": 1, "b": 2}), call({"a": 1})])
    pq.write_table(table, tmp_path / "t.parquet")
    result, (row,) = read(tmp_path, tmp_path / "t.parquet", "automodel")
    assert json.loads(row["tool_calls"])[0]["function"]["arguments"] == '{"a": 1, "b": 2}'
    assert result.refused == 1 and "JSON text" in result.first_refused[0].reason


def test_labels_are_a_mask_where_they_are_the_ids_own(tmp_path: Path) -> None:
    (row,) = rows_of(CLEAN[:1])
    prompt, response = row["prompt_token_ids"], row["response_token_ids"]
    good = {"input_ids": [*prompt, *response], "labels": [-100] * len(prompt) + response}
    other = {**good, "labels": [-100] * len(prompt) + [response[0] + 1, *response[1:]]}
    result, (made,) = brought(tmp_path, good, other, kind="speculators")
    assert (made["prompt_token_ids"], made["response_token_ids"]) == (prompt, response)
    assert "labels" in result.first_refused[0].reason


def test_speculators_output_tells_its_turns_failures_and_a_foreign_tokenizer(tmp_path: Path) -> None:
    first, second = rows_of(CLEAN)[:2]

    def row(number: int, source: Row, **change: Any) -> dict[str, Any]:
        prompt, response = source["prompt_token_ids"], source["response_token_ids"]
        return {
            "id": f"c_gen{number}",
            "primary_id": "c",
            "input_ids": [*prompt, *response],
            "loss_mask": [0] * len(prompt) + [1] * len(response),
            "text": codec().decode_bytes([*prompt, *response]).decode("utf-8", "replace"),
            "metadata": {"finish_reason": source["finish_reason"], "sampling_params": {"temperature": 0.5}},
            **change,
        }

    foreign = row(2, first, text="What another vocabulary makes of the ids.")
    beyond = row(3, first, input_ids=[10**6, 1], loss_mask=[0, 1], text=None)
    records = [row(0, first), row(1, second), foreign, beyond]
    file = tmp_path / "o.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    error = {"id": "d", "metadata": {"error": "ConnectionError()"}}
    (tmp_path / "o.errors.jsonl").write_text(json.dumps(error) + "\n")
    result, rows = read(tmp_path, file, "speculators")
    assert (result.imported, result.refused, result.failed) == (2, 2, 1)
    assert [(one["conversation_id"], one["turn_index"], one["sample_index"]) for one in rows] == [
        ("c", 0, 0),
        ("c", 1, 0),
    ]
    assert json.loads(rows[0]["sampling_params"])["temperature"] == 0.5
    assert all("another tokenizer" in one.reason for one in result.first_refused if one.kind == "refused")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"output_logprobs": [0.5, None]}, "output_logprobs"),
        ({"response_token_ids": [1, None]}, "response_token_ids"),
        ({"losses": [None]}, "losses"),
        ({"sample_id": None}, "sample_id"),
    ],
)
def test_a_null_inside_a_row_is_told_with_row_and_column(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    rows = rows_of(CLEAN[:2])
    with pytest.raises(ShardError, match=f"row 1 lacks `{told}"):
        write_shard(tmp_path / "a.parquet", [rows[0], {**rows[1], **change}], format_name="kimi_k2")
    spoiled = [{**rows[1]["messages"][0], "content": None}, *rows[1]["messages"][1:]]
    with pytest.raises(ShardError, match="content"):
        write_shard(tmp_path / "a.parquet", [{**rows[1], "messages": spoiled}], format_name="kimi_k2")
    assert list(tmp_path.iterdir()) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_what_is_json_is_read_as_it_is(value: Any) -> None:
    assert loads(json.dumps(value)) == value


@given(st.text(max_size=5), JSON)
def test_a_key_that_stands_twice_is_an_error_at_any_depth(key: str, value: Any) -> None:
    name, text = json.dumps(key), json.dumps(value)
    with pytest.raises(NotJson, match="twice"):
        loads(f'[{{"a": {{{name}: {text}, {name}: {text}}}}}]')
