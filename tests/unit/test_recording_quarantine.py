"""The rows of a quarantine become the prompts that they were, each once; a spare copy is not asked for.

Place in the flow: none; `harness.recording.quarantine` on what an audit put aside.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contracts import audit, write_shard
from contracts.errors import ShardgateError
from contracts.shard import Row, seal
from fixtures.corruptions.rows import CLEAN, codec, rows_of
from harness.recording.prompts import BadRow, Item, Task, Wanted, check, items, tasks
from harness.recording.quarantine import find_quarantine

WANTED = Wanted(sampling={}, template_kwargs={})


def put_aside(tmp_path: Path, rows: list[Row]) -> Path:
    """Audit rows, certify what holds; returns the quarantine's folder."""
    path = write_shard(tmp_path / "shards" / "a.parquet", rows, format_name="kimi_k2")
    audit([path], codec=codec(), certify=tmp_path / "set")
    return tmp_path / "set" / "quarantine"


def clean() -> list[Row]:
    return [dict(row) for row in rows_of(CLEAN)]


def asked(folder: Path) -> list[Item]:
    source = find_quarantine(folder)
    found = list(items(source, WANTED))
    assert check(source, WANTED).generations == len(found)
    return found


def test_a_broken_row_is_asked_for_as_it_was(tmp_path: Path) -> None:
    rows = clean()
    at = next(n for n, row in enumerate(rows) if row["tools"] and len(row["messages"]) > 3)
    lost = rows[at]
    rows[at] = {**lost, "response_token_ids": lost["response_token_ids"][:-3]}
    (item,) = asked(put_aside(tmp_path, rows))
    prompt, again = item.prompt, item.task.again
    assert again is not None and again.replaces == lost["sample_id"]
    assert item.name != lost["sample_id"].rpartition("-")[0] and ".again" in item.name
    assert again.prompt_ids == tuple(lost["prompt_token_ids"])
    assert json.loads(json.dumps(prompt.tools)) == json.loads(lost["tools"])
    said = lost["messages"][:-1]
    assert [message["role"] for message in prompt.messages] == [message["role"] for message in said]
    for message, before in zip(prompt.messages, said, strict=True):
        assert (message.get("content") or "") == before["content"]
        calls = before["tool_calls"]
        assert message.get("tool_calls") == (json.loads(calls) if calls else None)
        assert message.get("tool_call_id") == before["tool_call_id"]
    own = json.loads(lost["sampling_params"])
    assert prompt.sampling == {name: own[name] for name in own if name not in ("mode", "stream")}
    assert prompt.template_kwargs == json.loads(lost["template_kwargs"])
    assert (item.sample_index, item.task.row, again.dataset, again.parent) == tuple(
        lost[name] for name in ("sample_index", "source_row_index", "source_dataset", "parent_sample_id")
    )


def test_a_second_copy_of_a_kept_row_is_not_asked_for(tmp_path: Path) -> None:
    rows = clean()
    folder = put_aside(tmp_path, [*rows, rows[0]])
    assert len(list(folder.glob("*.parquet"))) == 1 and asked(folder) == []


def test_two_rows_of_one_id_are_one_row_to_generate(tmp_path: Path) -> None:
    rows = clean()
    twin = seal({**rows[1], "sample_id": rows[0]["sample_id"]})
    found = asked(put_aside(tmp_path, [*rows, twin]))
    assert [item.task.again.replaces for item in found if item.task.again] == [rows[0]["sample_id"]]


@pytest.mark.parametrize(
    ("sample", "turn", "item"),
    [
        ("abc-000-0", 0, "abc-000.again"),
        ("abc-000.again-0", 0, "abc-000.again2"),
        ("abc-000.again9-1", 1, "abc-000.again10"),
        ("somebody's own", 0, "somebody's own.again"),
    ],
)
def test_a_name_says_which_row_is_replaced(tmp_path: Path, sample: str, turn: int, item: str) -> None:
    from harness.recording.quarantine import _item

    assert _item(sample, turn) == item


def spoilt(**columns: Any) -> Any:
    return lambda row: {**row, **columns}


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (spoilt(messages=[]), "no messages"),
        (spoilt(constraint='{"scripted":true}'), "scripted"),
        (spoilt(tools="{"), "no JSON"),
        (spoilt(sampling_params="[1]"), "no object"),
    ],
)
def test_what_holds_no_prompt_any_more_is_told_with_its_row(tmp_path: Path, spoil: Any, why: str) -> None:
    rows = [spoil(row) for row in clean()[:2]]
    path = write_shard(tmp_path / "q" / "a.parquet", rows, format_name="kimi_k2")
    found = list(tasks(find_quarantine(path.parent), WANTED))
    assert len(found) == 2 and not any(isinstance(one, Task) for one in found)
    assert all(isinstance(one, BadRow) and why in one.why and str(path) in one.where for one in found)


def test_what_is_no_quarantine_is_told(tmp_path: Path) -> None:
    with pytest.raises(ShardgateError, match="no quarantined rows"):
        find_quarantine(tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    with pytest.raises(ShardgateError, match="can't be read"):
        list(tasks(find_quarantine(tmp_path), WANTED))
