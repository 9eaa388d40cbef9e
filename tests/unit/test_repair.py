"""Repair: what can be proven comes back byte for byte, what can't is left and listed; no repair is wrong."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from contracts import audit, write_shard
from contracts.formats import FORMATS
from contracts.importers import ImportOptions, import_files
from contracts.records import Severity
from contracts.repair import ASSUMPTIONS, RepairFault, RepairResult, repair
from contracts.shard import Row, arrow_schema, seal, shard_metadata, write_table
from fixtures.corruptions import OPERATORS
from fixtures.corruptions.rows import CLEAN, ODD, codec, rows_of, tokenizer_path
from harness.commands.repair import ASSUMPTIONS as TOLD

GOOD = rows_of((*CLEAN, *ODD))
METADATA = shard_metadata(GOOD, format_name="kimi_k2")


def mend(folder: Path, rows: list[Row], **more: Any) -> tuple[RepairResult, list[Row]]:
    """Repair rows as somebody would have written them who kept the metadata of the clean shard."""
    table = pa.Table.from_pylist(rows, schema=arrow_schema())
    write_table(folder / "a.parquet", table.replace_schema_metadata(METADATA))
    result = repair([folder / "a.parquet"], folder / "out", codec=codec(), **more)
    assert result.rows == result.held + result.mended + result.left
    kept = folder / "out" / "shards" / "a.parquet"
    return result, pq.read_table(kept).to_pylist() if kept.exists() else []


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out" / "repairs.jsonl").read_text().splitlines()]


Change = Callable[[st.DataObject, Row], None]


def _set(name: str, values: st.SearchStrategy[Any]) -> Change:
    def change(data: st.DataObject, row: Row) -> None:
        row[name] = data.draw(values)

    change.__name__ = name
    return change


def _target(data: st.DataObject, row: Row) -> None:
    key = data.draw(st.sampled_from(["content", "reasoning_content"]))
    row["messages"][-1][key] = data.draw(TEXT)


TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
COUNT = st.integers(0, 2000)
DERIVED: tuple[Change, ...] = (
    _set("reasoning_content", st.none() | TEXT),
    _set("content", st.none() | TEXT),
    _set("loss_mask", st.lists(st.fixed_dictionaries({"start": COUNT, "length": COUNT}), max_size=3)),
    _set("prompt_tokens", COUNT),
    _set("completion_tokens", COUNT),
    _set("reasoning_tokens", st.none() | COUNT),
    _set(
        "claims",
        st.fixed_dictionaries(dict.fromkeys(("captured", "text", "rebuilt", "tokens"), st.booleans())),
    ),
    _set("verdict", st.sampled_from(["exact", "lossy", "unproven", "contradicted"])),
    _set("losses", st.lists(st.sampled_from(["ids-missing", "order-lost", "nothing"]), max_size=2)),
    _set("finish_reason", st.sampled_from(["stop", "length", "tool_calls", "abort"])),
    _set("prompt_sha256", st.binary(min_size=32, max_size=32)),
    _target,
)
DERIVED_TEXT: tuple[Change, ...] = (*DERIVED, _set("response_text_raw", TEXT))
SETTINGS = settings(
    max_examples=15,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a row takes a second: no time to shrink
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@SETTINGS
@given(data=st.data())
def test_changed_columns_come_back_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any of what the ids and the stored digest determine, one column or several at once."""
    rows = copy.deepcopy(GOOD)
    at = data.draw(st.integers(0, len(rows) - 1))
    derived = rows[at]["text_source"] == "derived"
    count = data.draw(st.integers(1, 3))
    changes = data.draw(st.permutations(DERIVED_TEXT if derived else DERIVED))[:count]
    for change in changes:
        change(data, rows[at])
    assume(rows[at] != GOOD[at])
    result, kept = mend(tmp_path_factory.mktemp("r"), rows)
    assert (result.mended, result.left) == (1, 0), result.first_left
    assert kept == GOOD


@SETTINGS
@given(data=st.data())
def test_no_repair_is_wrong_and_doubtful_ids_are_never_touched(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Ids changed, the digests made again or not: the row is left, byte for byte, whatever else changed."""
    rows = copy.deepcopy(GOOD)
    at = data.draw(st.integers(0, len(rows) - 1))
    ids = rows[at][data.draw(st.sampled_from(["response_token_ids", "prompt_token_ids"]))]
    place = data.draw(st.integers(0, len(ids) - 1))
    kind = data.draw(st.sampled_from(["flip", "drop", "double"]))
    if kind == "flip":
        ids[place] = data.draw(st.integers(0, 3071).filter(lambda new: new != ids[place]))
    elif kind == "drop":
        del ids[place]
    else:
        ids.insert(place, ids[place])
    if data.draw(st.booleans()):
        for change in data.draw(st.permutations(DERIVED))[:1]:
            change(data, rows[at])
    if data.draw(st.booleans()) and rows[at]["losses"] != ["nothing"]:
        rows[at] = seal(rows[at])
    folder = tmp_path_factory.mktemp("r")
    result, kept = mend(folder, rows)
    changed = [one["row"] for one in log(folder)]
    assert changed == [] or kept == GOOD, "a row was made to look right"
    if result.left:
        left = pq.read_table(folder / "out" / "left" / "a.parquet").to_pylist()
        assert rows[at] in left


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.name)
def test_each_corruption_is_undone_or_left(tmp_path: Path, operator: Any) -> None:
    """What is mended is the row that it was, but for a served text that is gone; nothing is invented."""
    clean = GOOD
    spoiled = operator(clean)
    table = pa.Table.from_pylist(spoiled, schema=arrow_schema())
    meta = shard_metadata(spoiled, format_name="kimi_k2")
    write_table(tmp_path / "a.parquet", table.replace_schema_metadata(meta))
    result = repair([tmp_path / "a.parquet"], tmp_path / "out", codec=codec())
    assert result.rows == len(spoiled) or result.files_left
    by_name = {row["sample_id"]: row for row in clean}
    for told in log(tmp_path):
        kept = pq.read_table(tmp_path / "out" / "shards" / "a.parquet").to_pylist()
        mended = next(row for row in kept if row["sample_id"] == told["sample_id"])
        was = by_name[told["sample_id"]]
        served = {"text_source", "claims", "content_sha256", "response_text_raw"}
        differing = {name for name in was if was[name] != mended[name]}
        assert not differing or (differing <= served and told["proof"] != "digest"), differing


def test_a_quarantine_is_mended_with_its_own_findings(tmp_path: Path) -> None:
    rows = copy.deepcopy(GOOD)
    rows[0]["verdict"] = "lossy"
    rows[1]["response_token_ids"][0] += 1
    write_shard(tmp_path / "a.parquet", rows, format_name="kimi_k2")
    copy_of = write_shard(
        tmp_path / "b.parquet", [seal({**GOOD[3], "sample_id": "again"})], format_name="kimi_k2"
    )
    audit([tmp_path / "a.parquet", copy_of], codec=codec(), certify=tmp_path / "c")
    result = repair([tmp_path / "c" / "quarantine"], tmp_path / "out", codec=codec())
    assert (result.held, result.mended) == (0, 1)
    assert pq.read_table(tmp_path / "out" / "shards" / "a.parquet").to_pylist() == [GOOD[0]]
    reasons = {one.sample_id: one.reason for one in result.first_left}
    assert "generate the row again" in reasons[GOOD[1]["sample_id"]]
    assert "the set or the file is at fault" in reasons["again"]
    again = audit([tmp_path / "out"], codec=codec())
    assert [found for found in again.findings if found.severity is Severity.ERROR] == []


def test_files_that_are_no_shards_are_left_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"no parquet")
    rows = copy.deepcopy(GOOD)
    rows[2]["losses"] = ["order-lost"]
    write_shard(tmp_path / "y.parquet", rows, format_name="kimi_k2")
    result = repair([tmp_path], tmp_path / "out", codec=codec())
    assert (result.files_left, result.mended, result.held) == (1, 1, len(GOOD) - 1)
    assert "shard-unreadable" in result.first_left[0].reason


def texts(folder: Path, *answers: dict[str, str]) -> Path:
    records = [
        {
            "id": str(n),
            "messages": [{"role": "user", "content": f"Question {n}"}, {"role": "assistant", **answer}],
        }
        for n, answer in enumerate(answers)
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    import_files("torchspec", [folder / "in.jsonl"], folder / "i", ImportOptions(FORMATS["kimi_k2"]))
    return folder / "i"


SEED = {"content": "I think.</think>Yes."}


def test_texts_are_left_unless_an_assumption_is_asked_for(tmp_path: Path) -> None:
    shards = texts(tmp_path, SEED)
    result = repair([shards], tmp_path / "o", codec=None, strength="text")
    assert (result.mended, result.left) == (0, 1)
    assert "generate the row again" in result.first_left[0].reason


def test_an_assumption_is_a_mark_that_keeps_rows_uncertified_unless_waived(tmp_path: Path) -> None:
    fine = {"content": "No.", "reasoning_content": "Hm."}
    twice = {"content": "a</think>b</think>c"}
    shards = texts(tmp_path, SEED, fine, twice, {"content": "<think>So.</think>\n\nYes."})
    result = repair([shards], tmp_path / "o", codec=None, strength="text", assume=("opener-missing",))
    assert (result.held, result.mended, result.left) == (1, 2, 1)
    rows = pq.read_table(tmp_path / "o" / "shards").to_pylist()
    assert [(row["reasoning_content"], row["content"]) for row in rows] == [
        ("I think.", "Yes."),
        ("Hm.", "No."),
        ("So.", "\n\nYes."),
    ]
    assert rows[0]["losses"] == ["ids-missing", "opener-assumed"] and rows[0]["verdict"] == "unproven"
    assert rows[0]["messages"][-1]["reasoning_content"] == "I think."
    plain = audit([tmp_path / "o"], strength="text")
    assert {f.rule for f in plain.findings if f.severity is Severity.ERROR} == {"mended-on-assumption"}
    assert plain.certified == 1
    waived = audit(
        [tmp_path / "o"],
        strength="text",
        certify=tmp_path / "c",
        waivers={"mended-on-assumption": "read by hand"},
    )
    assert waived.certified == 3
    predicate = json.loads((tmp_path / "c" / "certificate.json").read_text())["predicate"]
    assert predicate["losses"]["opener-assumed"] == 2 and predicate["contract"]["strength"] == "text"
    assert predicate["waivers"][0]["reason"] == "read by hand"


def test_doubled_tags_are_taken_away_on_request(tmp_path: Path) -> None:
    doubled = {"reasoning_content": "<think>Hm.", "content": "</think>Yes."}
    shards = texts(tmp_path, doubled)
    result = repair([shards], tmp_path / "o", codec=None, strength="text", assume=("tags-doubled",))
    # Nothing but a marker in the text was wrong, which is a rate: such rows hold, and are left as they are.
    assert (result.held, result.mended) in ((1, 0), (0, 1))
    from contracts.records import Fields

    mended = ASSUMPTIONS["tags-doubled"].mend(
        Fields(doubled["reasoning_content"], doubled["content"]), FORMATS["kimi_k2"]
    )
    assert mended == Fields("Hm.", "Yes.")


def test_assumptions_are_for_texts_alone(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.parquet", GOOD, format_name="kimi_k2")
    with pytest.raises(RepairFault, match="without ids"):
        repair([path], tmp_path / "o", codec=codec(), assume=("opener-missing",))
    with pytest.raises(RepairFault, match="tokenizer"):
        repair([path], tmp_path / "o", codec=None)


def test_what_a_killed_repair_left_goes_with_the_next_one(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.parquet", GOOD, format_name="kimi_k2")
    (tmp_path / "o" / "shards").mkdir(parents=True)
    for name in (".repair-begun", ".a.trial.tmp", "shards/.a.parquet.7.rows.tmp", ".repairs.jsonl.7.tmp"):
        (tmp_path / "o" / name).touch()
    assert repair([path], tmp_path / "o", codec=codec()).held == len(GOOD)
    left = {one.name for one in (tmp_path / "o").rglob("*") if one.name.startswith(".")}
    assert left <= {".lock"}, left


def test_the_command(tmp_path: Path) -> None:
    rows = copy.deepcopy(GOOD)
    rows[0]["verdict"] = "lossy"
    path = write_shard(tmp_path / "a.parquet", rows, format_name="kimi_k2")
    command = [sys.executable, "-m", "harness", "repair", path, "-o", tmp_path / "o"]
    done = subprocess.run(
        [*map(str, command), "--tokenizer", str(tokenizer_path())],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "1 mended" in done.stdout and "digest" in done.stdout
    assert tuple(ASSUMPTIONS) == TOLD
