"""Exports: ids and mask come back unchanged, texts tell what renders differently."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts import CertificateMissing, audit, verify, write_shard
from contracts.exporters import FORMS, ExportFault, export_rows
from contracts.exporters.texts import renderer
from contracts.exporters.tokens import input_ids, loss_mask, packed_mask, unpacked_mask
from contracts.importers import ImportOptions, import_files
from contracts.shard import Row
from fixtures.corruptions.rows import CLEAN, FORMATS, ODD, codec, rows_of, tokenizer_path
from harness.commands.export import FORMS as TOLD_FORMS
from harness.commands.export import TEXTS as TOLD_TEXTS

ROWS = rows_of((*CLEAN, *ODD))
TOKENS = ("specforge-ids", "speculators", "speculators-arrow")


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certified")
    write_shard(folder / "a.parquet", ROWS[:5], format_name="kimi_k2")
    write_shard(folder / "b.parquet", ROWS[5:], format_name="kimi_k2")
    assert audit([folder], codec=codec(), certify=folder).quarantined == 0
    return folder


def read_tokens(folder: Path, form: str) -> list[tuple[list[int], list[int]]]:
    if form == "speculators-arrow":
        with pa.ipc.open_stream(folder / "data-00000-of-00001.arrow") as reader:
            return [(r["input_ids"], r["loss_mask"]) for r in reader.read_all().to_pylist()]
    lines = (folder / "train.jsonl").read_text().splitlines()
    return [(r["input_ids"], r["loss_mask"]) for r in map(json.loads, lines)]


@st.composite
def any_rows(draw: st.DrawFn) -> list[Row]:
    """Rows with any ids, and any sorted, disjoint spans as their mask."""
    out = []
    for _ in range(draw(st.integers(1, 4))):
        row = copy.deepcopy(ROWS[0])
        row["prompt_token_ids"] = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20))
        row["response_token_ids"] = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20))
        size = len(input_ids(row))
        cuts = draw(st.lists(st.integers(0, size), unique=True, max_size=8).map(sorted))
        spans = [{"start": a, "length": b - a} for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
        row["loss_mask"] = draw(st.none() | st.just(spans))
        out.append(row)
    return out


@pytest.mark.parametrize("form", TOKENS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=any_rows())
def test_ids_and_mask_come_back(tmp_path_factory: pytest.TempPathFactory, form: str, rows: list[Row]) -> None:
    folder = tmp_path_factory.mktemp("any")
    write_shard(folder / "a.parquet", rows, format_name="kimi_k2")
    result = export_rows(form, [folder / "a.parquet"], folder / "out", certified=False)
    assert (result.rows, result.certificate) == (len(rows), None)
    for row, (ids, mask) in zip(rows, read_tokens(folder / "out", form), strict=True):
        assert ids == [*row["prompt_token_ids"], *row["response_token_ids"]]
        ones = {at for at, value in enumerate(mask) if value}
        spans = row["loss_mask"]
        if spans is None:
            assert ones == set(range(len(row["prompt_token_ids"]), len(ids)))
        else:
            assert ones == {at for s in spans for at in range(s["start"], s["start"] + s["length"])}


@given(rows=any_rows())
def test_a_packed_mask_unpacks_to_the_mask(rows: list[Row]) -> None:
    for row in rows:
        assert unpacked_mask(packed_mask(row)) == loss_mask(row)


def test_the_usual_packed_mask_is_prompt_then_response() -> None:
    row = ROWS[0]
    assert packed_mask(row) == f"{len(row['prompt_token_ids'])},{len(row['response_token_ids'])}"


def test_an_export_imported_again_has_the_ids_and_fields_that_it_had(certified: Path, tmp_path: Path) -> None:
    export_rows("speculators", certified, tmp_path / "x")
    options = ImportOptions(FORMATS["kimi_k2"], codec(), sampling={"temperature": 1.0, "stop": [", 3"]})
    import_files("speculators", [tmp_path / "x" / "train.jsonl"], tmp_path / "i", options)
    back = pq.read_table(tmp_path / "i" / "shards").to_pylist()
    for row, original in zip(back, ROWS, strict=True):
        for column in ("prompt_token_ids", "response_token_ids", "loss_mask", "finish_reason"):
            assert row[column] == original[column], column


@pytest.mark.parametrize("form", FORMS)
def test_the_certificate_names_its_source_and_guards_the_files(
    certified: Path, tmp_path: Path, form: str
) -> None:
    result = export_rows(form, certified, tmp_path, render=renderer(tokenizer_path()))
    told = verify(tmp_path)
    assert told.ok and told.rows == result.rows == len(ROWS)
    predicate = json.loads((tmp_path / "certificate.json").read_text())["predicate"]
    derivation = predicate["derivation"]
    assert derivation["operations"] == [{"name": "export", "parameters": {"form": form}}]
    assert [source["rows"] for source in derivation["sources"]] == [len(ROWS)]
    first = tmp_path / result.files[0]
    first.write_bytes(first.read_bytes().replace(b"0", b"1", 1))
    assert not verify(tmp_path).ok


def test_texts_tell_each_row_that_renders_to_other_ids(certified: Path, tmp_path: Path) -> None:
    render = renderer(tokenizer_path())
    result = export_rows("specforge", certified, tmp_path, render=render)
    listed = [json.loads(line) for line in (tmp_path / "differs.log").read_text().splitlines()]
    assert result.differing == len(listed) > 0
    differing = {one["row"] for one in listed}
    assert differing < set(range(len(ROWS))), "a row that renders to its own ids is listed"
    for one in listed:
        if "token" in one:
            own = input_ids(ROWS[one["row"]])
            assert own[one["token"] : one["token"] + 8] == one["stored"] != one["rendered"]
            prompt = len(ROWS[one["row"]]["prompt_token_ids"])
            assert (one["part"] == "prompt") == (one["token"] < prompt)


def test_specforges_rows_have_no_key_that_becomes_a_template_argument(
    certified: Path, tmp_path: Path
) -> None:
    export_rows("specforge", certified, tmp_path)
    for line in (tmp_path / "train.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert set(record) <= {"id", "conversations", "tools"}
        assert isinstance(record.get("tools", ""), str)


@pytest.mark.parametrize("form", ["automodel-jsonl", "model-optimizer", "specforge", "torchspec"])
def test_a_line_is_a_row_however_a_trainer_splits_lines(tmp_path: Path, form: str) -> None:
    """Automodel reads JSONL with `str.splitlines`, which ends lines at U+2028 and the like too."""
    odd = "a\u2028b\u2029c\x85d\x0be\x1cf 東京 🙂"
    row = copy.deepcopy(ROWS[0])
    row["messages"][0]["content"] = row["messages"][-1]["content"] = odd
    write_shard(tmp_path / "a.parquet", [row, ROWS[1]], format_name="kimi_k2")
    export_rows(form, [tmp_path / "a.parquet"], tmp_path / "o", certified=False)
    lines = (tmp_path / "o" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    told = [json.loads(line) for line in lines]
    assert len(told) == 2
    assert (told[0].get("messages") or told[0]["conversations"])[-1]["content"] == odd


@pytest.mark.parametrize("called", [True, False])
def test_automodels_parquet_has_no_calls_that_are_null(tmp_path: Path, called: bool) -> None:
    """Automodel refuses an assistant's message whose `tool_calls` are there and null."""
    rows = [row for row in ROWS if called or not any(m["tool_calls"] for m in row["messages"])]
    assert any(m["tool_calls"] for row in rows for m in row["messages"]) == called
    write_shard(tmp_path / "a.parquet", rows, format_name="kimi_k2")
    export_rows("automodel", [tmp_path / "a.parquet"], tmp_path / "o", certified=False)
    read = pq.read_table(tmp_path / "o" / "train-00000.parquet").to_pylist()
    for row, back in zip(rows, read, strict=True):
        for message, told in zip(row["messages"], back["messages"], strict=True):
            assert ("tool_calls" in told) == called
            if called and message["role"] == "assistant":
                names = [call["function"] for call in json.loads(message["tool_calls"] or "[]")]
                assert [call["function"] for call in told["tool_calls"]] == names


def test_what_is_not_certified_is_refused(tmp_path: Path) -> None:
    write_shard(tmp_path / "s" / "a.parquet", ROWS, format_name="kimi_k2")
    with pytest.raises(CertificateMissing):
        export_rows("specforge-ids", tmp_path / "s", tmp_path / "o")


def test_an_altered_shard_ends_the_export_without_a_certificate(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "s" / "a.parquet", ROWS, format_name="kimi_k2")
    audit([path], codec=codec(), certify=tmp_path / "s")
    block = bytearray(path.read_bytes())
    block[len(block) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(block))
    with pytest.raises(Exception, match="altered"):
        export_rows("specforge-ids", tmp_path / "s", tmp_path / "o")
    assert not (tmp_path / "o" / "certificate.json").exists()


def test_rows_without_ids_are_not_written_as_ids(tmp_path: Path) -> None:
    record = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}
    (tmp_path / "in.jsonl").write_text(json.dumps(record))
    import_files("torchspec", [tmp_path / "in.jsonl"], tmp_path / "i", ImportOptions(FORMATS["kimi_k2"]))
    audit([tmp_path / "i"], strength="text", certify=tmp_path / "c")
    with pytest.raises(ExportFault, match="without ids"):
        export_rows("speculators", tmp_path / "c", tmp_path / "o")
    result = export_rows("torchspec", tmp_path / "c", tmp_path / "p", render=renderer(tokenizer_path()))
    assert (result.rows, result.differing) == (1, None)


def test_a_used_folder_is_refused(certified: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ExportFault, match="not empty"):
        export_rows("specforge-ids", certified, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def shardgate(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("source", ["cert", "clean"])
def test_a_certified_folder_is_refused_and_the_command_ends(tmp_path: Path, source: str) -> None:
    for name in ("cert", "clean"):
        write_shard(tmp_path / name / "a.parquet", ROWS, format_name="kimi_k2")
        audit([tmp_path / name], codec=codec(), certify=tmp_path / name)
    before = sorted(path.name for path in (tmp_path / "cert").iterdir())
    done = shardgate("export", tmp_path / source, "--to", "specforge-ids", "-o", tmp_path / "cert")
    assert done.returncode == 2 and "holds a certified set" in done.stderr
    assert sorted(path.name for path in (tmp_path / "cert").iterdir()) == before


def test_the_command_ends_when_a_shard_turns_out_bad_half_way(tmp_path: Path) -> None:
    write_shard(tmp_path / "s" / "a.parquet", ROWS[:5], format_name="kimi_k2")
    path = write_shard(tmp_path / "s" / "b.parquet", ROWS[5:], format_name="kimi_k2")
    audit([tmp_path / "s"], codec=codec(), certify=tmp_path / "s")
    block = bytearray(path.read_bytes())
    block[len(block) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(block))
    done = shardgate("export", tmp_path / "s", "--to", "specforge-ids", "-o", tmp_path / "o")
    assert done.returncode == 2 and "altered" in done.stderr
    assert not (tmp_path / "o" / "train.jsonl").exists()


def test_the_command(certified: Path, tmp_path: Path) -> None:
    done = shardgate("export", certified, "--to", "specforge-ids", "-o", tmp_path / "a", "--json")
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0 and told["rows"] == len(ROWS)
    done = shardgate("export", certified, "--to", "specforge", "-o", tmp_path / "b")
    assert done.returncode == 2 and "--tokenizer" in done.stderr
    tokenizer = ("--tokenizer", tokenizer_path())
    done = shardgate("export", certified, "--to", "specforge", "-o", tmp_path / "b", *tokenizer)
    assert done.returncode == 1 and "differs.log" in done.stdout
    assert (tuple(FORMS), {f for f in FORMS if FORMS[f].holds == "texts"}) == (TOLD_FORMS, set(TOLD_TEXTS))
