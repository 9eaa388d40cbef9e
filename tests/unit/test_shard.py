"""The shard: its schema, a capture's row, the file as written."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts import write_shard
from contracts.digests import content_sha256, prompt_sha256
from contracts.formats import FORMATS
from contracts.records import Claims, Judgement, Verdict
from contracts.shard import (
    CONSTANT_COLUMNS,
    METADATA_PREFIX,
    ShardError,
    arrow_schema,
    decode_matched_stop,
    encode_matched_stop,
    message_struct,
    row_from_capture,
    seal,
)
from fixtures.corruptions.rows import CLEAN, ODD, capture_of, rows_of

KIMI = FORMATS["kimi_k2"]
JUDGED = Judgement(
    Claims(True, None, True, True), Verdict.EXACT, (), None, None, None, None, "stop", "", "raw"
)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    rows = rows_of((*CLEAN, *ODD))
    rows[0]["loss_mask"] = [{"start": rows[0]["prompt_tokens"], "length": rows[0]["completion_tokens"]}]
    rows[1]["output_logprobs"] = [-0.5] * rows[1]["completion_tokens"]
    path = write_shard(tmp_path / "deep" / "a.parquet", rows, format_name="kimi_k2")
    table = pq.read_table(path)
    assert table.schema.equals(arrow_schema())
    assert table.to_pylist() == rows
    assert [file.name for file in path.parent.iterdir()] == ["a.parquet"], "nothing is left beside"


def test_the_schema_is_the_trainers(tmp_path: Path) -> None:
    schema = arrow_schema()
    ids = schema.field("response_token_ids")
    assert ids.type.value_type == pa.int32() and not ids.type.value_field.nullable and not ids.nullable
    assert schema.field("prompt_sha256").type == pa.binary(32)
    assert all(pa.types.is_dictionary(schema.field(name).type) for name in CONSTANT_COLUMNS)
    text = arrow_schema("text")
    assert text.field("response_token_ids").nullable and text.names == schema.names


def test_metadata_repeats_the_constants(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.parquet", rows_of(CLEAN), format_name="kimi_k2")
    parquet = pq.ParquetFile(path)
    said = parquet.schema_arrow.metadata
    assert said[f"{METADATA_PREFIX}format".encode()] == b"kimi_k2"
    assert b'"reasoning_parser": "kimi_k2"' in said[f"{METADATA_PREFIX}constants".encode()]
    column = parquet.metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"


def test_a_scripted_capture_is_marked() -> None:
    capture = replace(capture_of(CLEAN[0], KIMI, 0), scripted_ids=(1, 2))
    row = row_from_capture(capture, JUDGED, sample_id="s", source_dataset="d", source_row_index=0)
    assert row["constraint"] == '{"scripted":true}'
    bent = row_from_capture(
        capture, JUDGED, sample_id="s", source_dataset="d", source_row_index=0, constraint={"regex": "a"}
    )
    assert bent["constraint"] == '{"regex":"a","scripted":true}'


@pytest.mark.parametrize("name", ["prompt_token_ids", "response_token_ids", "usage", "finish_reason"])
def test_a_capture_without_the_engines_word_is_no_row(name: str) -> None:
    capture = replace(capture_of(CLEAN[0], KIMI, 0), **{name: None})  # type: ignore[arg-type]
    with pytest.raises(ShardError, match="can't become a row"):
        row_from_capture(capture, JUDGED, sample_id="s", source_dataset="d", source_row_index=0)


def test_media_is_refused_by_name() -> None:
    with pytest.raises(ShardError, match="image_url"):
        message_struct({"role": "user", "content": [{"type": "image_url", "image_url": {}}]})
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert message_struct(parts)["content"] == "ab"
    assert message_struct({"role": "assistant", "content": None})["content"] == ""


@pytest.mark.parametrize("matched", [None, 42, "42", "</s>", "NaN happened", '"'])
def test_an_end_token_and_a_stop_string_are_told_apart(matched: int | str | None) -> None:
    stored = encode_matched_stop(matched)
    again = decode_matched_stop(stored)
    assert again == matched and type(again) is type(matched)


def test_a_row_that_lacks_a_value_is_not_written(tmp_path: Path) -> None:
    rows = rows_of(CLEAN[:2])
    rows[1]["verdict"] = None
    with pytest.raises(ShardError, match=r"row 1 lacks `verdict`"):
        write_shard(tmp_path / "a.parquet", rows, format_name="kimi_k2")
    with pytest.raises(ShardError, match="needs rows"):
        write_shard(tmp_path / "a.parquet", [], format_name="kimi_k2")
    rows = rows_of(CLEAN[:1])
    rows[0]["response_token_ids"] = [2**40]
    with pytest.raises(ShardError, match="does not fit"):
        write_shard(tmp_path / "a.parquet", rows, format_name="kimi_k2")
    assert list(tmp_path.iterdir()) == []


def test_digests_are_of_the_content_and_not_of_the_name() -> None:
    row = rows_of(CLEAN)[0]
    renamed = seal({**row, "sample_id": "other", "sample_index": 3, "request_id": None})
    assert renamed["content_sha256"] == row["content_sha256"]
    assert prompt_sha256({**row, "response_token_ids": [1]}) == row["prompt_sha256"]
    for name in ("response_token_ids", "content", "tools", "loss_mask", "finish_reason"):
        assert content_sha256({**row, name: [1]}) != row["content_sha256"]
    # Written down by hand: digests must not change between versions.
    assert prompt_sha256({"prompt_token_ids": [1, 2]}).hex().startswith("34fb5c825de7ca4a")


def test_importing_contracts_is_light() -> None:
    code = (
        "import sys, contracts, contracts.rules, contracts.run, contracts.shard, contracts.loader\n"
        "heavy = {'pyarrow', 'polars', 'pandera', 'torch', 'transformers', 'harness'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert all(map(callable, (contracts.audit, contracts.open_certified, contracts.verify)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
