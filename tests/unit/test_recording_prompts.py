"""Prompts of every form become the same work; what is no prompt is told with file and line.

Place in the flow: none; `harness.recording.prompts` and `rowforms` on files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import ShardgateError
from harness.recording.prompts import BadRow, Item, Source, Task, Wanted, check, find_source, items, tasks
from harness.recording.store import replace_json

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
ASK = [{"role": "user", "content": "Hi"}]
WANTED = Wanted(sampling={"max_tokens": 8, "temperature": 1}, template_kwargs={})


def jsonl(folder: Path, *rows: Any, name: str = "p.jsonl") -> Path:
    path = folder / name
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", errors="surrogatepass")
    return path


def source(path: Path) -> Source:
    return find_source(path)


def only(path: Path, wanted: Wanted = WANTED) -> Task:
    (found,) = tasks(find_source(path), wanted)
    assert isinstance(found, Task), found
    return found


def bad(tmp_path: Path, row: Any, wanted: Wanted = WANTED) -> str:
    (found,) = tasks(source(jsonl(tmp_path, row)), wanted)
    assert isinstance(found, BadRow), found
    assert found.where == f"{tmp_path / 'p.jsonl'}:1"
    return found.why


@pytest.mark.parametrize(
    "row",
    [
        {"messages": ASK},
        {"prompt": "Hi"},
        {"prompt": ASK},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        {"messages": json.dumps(ASK)},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "H"}, {"text": "i"}]}]},
        {"messages": [*ASK, {"role": "assistant", "content": "Hello"}], "tools": None},
    ],
)
def test_every_form_of_one_prompt_is_one_prompt(tmp_path: Path, row: Any) -> None:
    found = only(jsonl(tmp_path, row))
    assert found.prompt.messages == tuple(ASK)
    assert found.key == only(jsonl(tmp_path, {"messages": ASK}, name="other.jsonl")).key


def test_jsonl_parquet_arrow_and_a_data_sets_folder_are_the_same_work(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "messages": ASK, "tools": [TOOL], "sampling_params": {"max_new_tokens": 5}},
        {
            "id": "b",
            "messages": [
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                    ],
                },
                {"role": "tool", "content": "sun", "tool_call_id": "1"},
            ],
            "tools": None,
            "sampling_params": None,
        },
    ]
    table = pa.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "p.parquet")
    folder = tmp_path / "saved"
    folder.mkdir()
    # As `Dataset.save_to_disk` lays it out: Arrow streams, and a state that names them in order.
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, part in zip(names, (table.slice(0, 1), table.slice(1)), strict=True):
        with pa.ipc.new_stream(folder / name, table.schema) as writer:
            writer.write_table(part)
    replace_json(folder / "state.json", {"_data_files": [{"filename": name} for name in names]})
    with pa.ipc.new_file(tmp_path / "p.arrow", table.schema) as writer:
        writer.write_table(table)
    expected = list(items(source(jsonl(tmp_path, *rows)), WANTED))
    assert [item.task.prompt.name for item in expected] == ["a", "b"]
    assert expected[0].task.prompt.sampling == {"max_tokens": 5, "temperature": 1}
    assert expected[0].task.prompt.tools == (TOOL,)
    for path in (tmp_path / "p.parquet", tmp_path / "p.arrow", folder):
        found = list(items(source(path), WANTED))
        assert [item.name for item in found] == [item.name for item in expected]
        assert [item.task.prompt for item in found] == [item.task.prompt for item in expected]


def test_splits_and_selections_are_refused_with_what_to_do(tmp_path: Path) -> None:
    replace_json(tmp_path / "dataset_dict.json", {"splits": ["train", "test"]})
    with pytest.raises(ShardgateError) as caught:
        source(tmp_path)
    assert str(tmp_path / "train") in caught.value.remedy
    (tmp_path / "dataset_dict.json").unlink()
    with pytest.raises(ShardgateError, match="no prompts"):
        source(tmp_path)
    replace_json(tmp_path / "state.json", {"_data_files": [], "_indices_files": [{"filename": "i.arrow"}]})
    with pytest.raises(ShardgateError, match="flatten_indices"):
        source(tmp_path)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{", "no JSON"),
        ("[1]", "not an object"),
        ({}, "none of `messages`"),
        ({"messages": []}, "no list"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "no message of a user"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, "roles"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "roles"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "'robot'"),
        ({"messages": [{"role": "user"}]}, "no content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "media"),
        ({"conversations": [{"from": "narrator", "value": "a"}]}, "'narrator'"),
        ('{"prompt": "\\ud800"}', "half a character"),
        ({"prompt": "a", "tools": [{"name": "f"}]}, "`tools`[0]"),
        ({"prompt": "a", "tools": "{"}, "no JSON"),
        ({"prompt": "a", "sampling": {"n": 0}}, "n is 0"),
        ({"prompt": "a", "sampling": {"max_tokens": 0}}, "max_tokens"),
        ({"prompt": "a", "sampling": {"stream": True}}, "stream"),
        ({"prompt": "a", "sampling": {"best_of": 2}}, "best_of"),
        ({"prompt": "a", "template_kwargs": 3}, "no object"),
    ],
)
def test_what_is_no_prompt_is_told_by_line_and_reason(tmp_path: Path, row: Any, why: str) -> None:
    assert why in bad(tmp_path, row)


def test_a_wrong_row_does_not_hide_the_others(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"prompt": "a"}, "{", "", {"prompt": "b"}, "x")
    found = check(source(path), WANTED)
    assert (found.rows, found.generations) == (4, 2)
    assert [(one.row, one.where.rpartition(":")[2]) for one in found.bad] == [(1, "2"), (3, "5")]
    assert [item.task.prompt.name for item in items(source(path), WANTED)] == ["p:0", "p:2"]
    assert len(check(source(path), WANTED, keep=1).bad) == 1


def test_samples_are_counted_over_a_conversation_wherever_it_stands(tmp_path: Path) -> None:
    hot = {"prompt": "a", "sampling": {"temperature": 2}}
    path = jsonl(tmp_path, {"prompt": "a"}, {"prompt": "b"}, {"prompt": "a"}, hot)
    found = list(items(source(path), Wanted({}, {}, samples=2)))
    by_prompt = [(item.task.prompt.messages[0]["content"], item.sample_index) for item in found]
    # An equal prompt and sample index in two rows would read as one generation counted twice.
    assert len(set(by_prompt)) == len(by_prompt) == 8
    assert len({item.name for item in found}) == 8
    own = jsonl(tmp_path, {"prompt": "a", "sampling": {"n": 3}}, name="own.jsonl")
    three = list(items(source(own), WANTED))
    assert [item.sample_index for item in three] == [0, 1, 2]
    assert "n" not in three[0].task.prompt.sampling


def test_each_turn_in_its_place(tmp_path: Path) -> None:
    said = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "2"},
        {"role": "assistant", "content": "two"},
    ]
    path = jsonl(tmp_path, {"messages": said})
    last = only(path)
    assert last.cuts == (4,) and last.prompt.messages == tuple(said[:4])
    each = only(path, Wanted({}, {}, samples=2, turns="each"))
    assert each.cuts == (2, 4)
    assert check(source(path), Wanted({}, {}, samples=2, turns="each")).generations == 4


@given(
    a=st.lists(st.text(max_size=5), min_size=1, max_size=3),
    b=st.lists(st.text(max_size=5), min_size=1, max_size=3),
)
def test_a_key_is_its_content(tmp_path_factory: pytest.TempPathFactory, a: list[str], b: list[str]) -> None:
    def name(texts: list[str]) -> str:
        said: list[dict[str, str]] = []
        for text in texts:
            said += [{"role": "user", "content": text}, {"role": "assistant", "content": "x"}]
        found = only(jsonl(tmp_path_factory.mktemp("key"), {"messages": said}))
        return Item(found, 0).name

    assert (name(a) == name(b)) == (a == b)


def test_the_digest_is_of_the_bytes(tmp_path: Path) -> None:
    first = source(jsonl(tmp_path, {"prompt": "a"})).digest
    assert source(jsonl(tmp_path, {"prompt": "a"}, name="again.jsonl")).digest == first
    assert source(jsonl(tmp_path, {"prompt": "b"})).digest != first
    with pytest.raises(ShardgateError, match=r"\.txt"):
        source(jsonl(tmp_path, "a", name="p.txt"))
