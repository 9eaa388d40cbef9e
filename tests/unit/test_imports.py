"""Data from elsewhere: each record becomes rows or is told with file and line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts import audit
from contracts.formats import FORMATS
from contracts.importers import ImportOptions, ImportResult, import_files
from contracts.importers.base import ImportFault
from contracts.records import Severity
from contracts.shard import Row
from fixtures.corruptions.rows import CLEAN, ODD, codec, rows_of, tokenizer_path

KIMI = FORMATS["kimi_k2"]
SAMPLING = {"temperature": 1.0, "max_tokens": 512, "stop": [", 3"]}
TOLD = {
    "target_model": "m",
    "target_revision": "r",
    "tokenizer_sha256": codec().sha256 or "",
    "chat_template_sha256": "c" * 64,
    "engine": "vllm",
    "engine_version": "0.25",
    "reasoning_parser": "kimi_k2",
    "tool_parser": "kimi_k2",
}
GOOD = {
    "id": "a",
    "conversations": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}],
}


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records))
    return path


def load(kind: str, out: Path, *paths: Path, **more: Any) -> tuple[ImportResult, list[Row]]:
    options = ImportOptions(KIMI, codec(), sampling=SAMPLING, provenance=TOLD, **more)
    result = import_files(kind, paths, out, options)
    assert result.records == result.imported + result.refused + result.failed + result.skipped
    rows = [row for name in result.shards for row in pq.read_table(out / "shards" / name).to_pylist()]
    assert len(rows) == result.rows
    return result, rows


def errors(out: Path, strength: Any) -> dict[str, list[int | None]]:
    found: dict[str, list[int | None]] = {}
    for one in audit([out], codec=codec(), strength=strength).findings:
        if one.severity is Severity.ERROR:
            found.setdefault(one.rule, []).append(one.row)
    return found


def pretokenized(row: Row) -> dict[str, Any]:
    prompt, response = row["prompt_token_ids"], row["response_token_ids"]
    return {
        "id": row["sample_id"],
        "primary_id": f"p-{row['sample_id']}",
        "input_ids": [*prompt, *response],
        "loss_mask": [0] * len(prompt) + [1] * len(response),
        "text": codec().decode_bytes([*prompt, *response]).decode("utf-8", "replace"),
        "metadata": {
            "finish_reason": row["finish_reason"],
            "tools": json.loads(row["tools"]) if row["tools"] else None,
        },
    }


def test_ids_with_a_mask_become_rows_of_tokens_whose_fields_are_the_ids_own(tmp_path: Path) -> None:
    originals = [row for row in rows_of(CLEAN) if '"mode":"raw"' not in row["sampling_params"]]
    file = lines(tmp_path / "s.jsonl", *(pretokenized(row) for row in originals))
    result, rows = load("speculators", tmp_path / "out", file)
    assert (result.strength, result.imported, result.unknown) == ("token", len(originals), ())
    for row, original in zip(rows, originals, strict=True):
        for column in ("prompt_token_ids", "response_token_ids", "reasoning_content", "content", "verdict"):
            assert row[column] == original[column], column
        calls = [json.loads(one["tool_calls"] or "[]") for one in (row, original)]
        assert calls[0] == calls[1]
        assert row["text_source"] == "derived" and row["claims"]["text"] is None
    assert errors(tmp_path / "out", "token") == {}


def test_repeats_of_one_prompt_are_numbered(tmp_path: Path) -> None:
    one = pretokenized(rows_of(CLEAN[:1])[0])
    other = {**one, "id": "second", "input_ids": [*one["input_ids"][:-2], one["input_ids"][-1]]}
    other["loss_mask"], other["text"] = one["loss_mask"][:-1], None
    _, rows = load("speculators", tmp_path / "out", lines(tmp_path / "s.jsonl", one, other))
    assert [row["sample_index"] for row in rows] == [0, 1]
    assert errors(tmp_path / "out", "token") == {}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"loss_mask": [0, 1]}, "values of loss_mask"),
        ({"loss_mask": None}, "`loss_mask` is missing"),
        ({"input_ids": ["a"]}, "no integer"),
        ({"input_ids": [-1, 2], "loss_mask": [0, 1]}, "negative"),
        ({"input_ids": [1, 2, 3], "loss_mask": [0.0, 0.5, 1.0]}, "no integer"),
        ({"input_ids": [1, 2], "loss_mask": [0, 2]}, "not 0 or 1"),
        ({"input_ids": [1, 2], "loss_mask": [0, 0]}, "no token has loss"),
        ({"input_ids": [1, 2], "loss_mask": [1, 1]}, "no prompt"),
        ({"input_ids": [1, 2, 3], "loss_mask": [0, 1, 0]}, "follow the response"),
    ],
)
def test_ids_that_hold_no_row_are_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    good = pretokenized(rows_of(CLEAN[:1])[0])
    result, rows = load("speculators", tmp_path / "o", lines(tmp_path / "s.jsonl", {**good, **change}, good))
    assert (result.refused, len(rows)) == (1, 1)
    assert told in result.first_refused[0].reason and result.first_refused[0].line == 1


def test_the_seed_case_is_found_in_specforges_output(tmp_path: Path) -> None:
    """No reasoning parser ran: reasoning is empty in every row, the thinking stands in the content."""
    broken = [
        {
            "id": str(n),
            "status": "success",
            "conversations": [
                {"role": "user", "content": f"What is {n} + 1?"},
                {"role": "assistant", "content": f"Add one to {n}.</think>It is {n + 1}."},
            ],
        }
        for n in range(5)
    ]
    result, rows = load("specforge", tmp_path / "o", lines(tmp_path / "out.jsonl", *broken))
    assert (result.strength, result.imported) == ("text", 5)
    assert {row["verdict"] for row in rows} == {"contradicted"}
    assert errors(tmp_path / "o", "text") == {"thinking-in-content": [0, 1, 2, 3, 4]}
    told = audit([tmp_path / "o"], strength="text")
    remedy = next(f.remedy for f in told.findings if f.rule == "thinking-in-content")
    assert "--reasoning-parser" in remedy and "generate these rows again" in remedy


def test_good_texts_are_certified_as_texts_and_nothing_more(tmp_path: Path) -> None:
    good = {
        "id": "g",
        "conversations": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Ho.", "reasoning_content": "A greeting."},
        ],
    }
    load("specforge", tmp_path / "o", lines(tmp_path / "out.jsonl", good))
    result = audit([tmp_path / "o"], strength="text", certify=tmp_path / "c")
    assert (result.certified, result.verdicts) == (1, {"unproven": 1})
    assert (
        "text"
        in json.loads((tmp_path / "c" / "certificate.json").read_text())["predicate"]["contract"]["name"]
    )


def test_specforges_failed_and_skipped_are_counted_with_it(tmp_path: Path) -> None:
    lines(tmp_path / "out_error.jsonl", {"id": "b", "status": "error", "error": "timed out"})
    lines(tmp_path / "out_skipped.jsonl", {"id": "c", "status": "skipped"}, {"id": "d"})
    file = lines(tmp_path / "out.jsonl", GOOD, {**GOOD, "id": "e", "status": "error", "error": "500"})
    result, _ = load("specforge", tmp_path / "o", file)
    assert (result.records, result.imported, result.failed, result.skipped) == (5, 1, 2, 2)
    told = [json.loads(line) for line in (tmp_path / "o" / "refused.jsonl").read_text().splitlines()]
    assert {"status 'error': timed out", "status 'error': 500"} == {
        one["reason"] for one in told if one["kind"] == "failed"
    }
    again = import_files("specforge", [tmp_path], tmp_path / "o2", ImportOptions(KIMI))
    assert again.records == 5, "a folder reads each file once"


BAD = [
    ("{not json", "no JSON"),
    ('["a"]', "list, not an object"),
    ("{}", "none of conversations, messages"),
    ('{"conversations": []}', "no list of messages"),
    ('{"conversations": [{"role": "user", "content": "Hi"}]}', "not the assistant's"),
    ('{"conversations": [{"role": "wizard", "content": "Hi"}]}', "wizard"),
    ('{"conversations": [7]}', "message 0 is int"),
    ('{"messages": [{"role": "assistant", "content": {"a": 1}}]}', "not text"),
    ('{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', "image"),
    ('{"messages": [{"role": "assistant", "content": "\\ud800"}]}', "surrogate"),
    ('{"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]}', "without a function"),
    ('{"messages": [{"role": "assistant", "content": "a"}], "tools": "{"}', "`tools`"),
    ("[" * 100_000, "no JSON"),
    ("\x00\x01", "no JSON"),
]


@pytest.mark.parametrize(("line", "told"), BAD, ids=[told for _, told in BAD])
def test_a_bad_line_is_told_and_the_rest_goes_on(tmp_path: Path, line: str, told: str) -> None:
    result, rows = load(
        "torchspec", tmp_path / "o", lines(tmp_path / "in.jsonl", GOOD, line, GOOD | {"id": "z"})
    )
    assert [row["sample_id"] for row in rows] == ["a", "z"]
    refused = json.loads((tmp_path / "o" / "refused.jsonl").read_text())
    assert (refused["file"], refused["line"]) == (str(tmp_path / "in.jsonl"), 2)
    assert told in refused["reason"] and result.refused == 1


def test_each_spelling_of_a_conversation_is_read(tmp_path: Path) -> None:
    sharegpt = {
        "id": "s",
        "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}],
    }
    array = tmp_path / "all.json"
    array.write_text(json.dumps([GOOD, sharegpt]))
    _, rows = load("torchspec", tmp_path / "o", array)
    roles = [[(m["role"], m["content"]) for m in row["messages"]] for row in rows]
    assert roles[0] == roles[1] == [("user", "Hi"), ("assistant", "Ho")]
    assert rows[0]["source_dataset"] == "all" and rows[1]["source_row_index"] == 1


def test_each_turn_can_be_a_row(tmp_path: Path) -> None:
    long = {
        "id": "t",
        "messages": [m for n in "ab" for m in ({"role": "user", "content": n}, GOOD["conversations"][1])],
    }
    _, last = load("torchspec", tmp_path / "o", lines(tmp_path / "in.jsonl", long))
    _, every = load("torchspec", tmp_path / "p", tmp_path / "in.jsonl", every_turn=True)
    assert [row["turn_index"] for row in last] == [1]
    assert [(r["turn_index"], r["parent_sample_id"]) for r in every] == [(0, None), (1, "t-0")]


def test_automodels_parquet_is_read_batch_by_batch(tmp_path: Path) -> None:
    messages = GOOD["conversations"]
    table = pa.Table.from_pylist([{"messages": messages}, {"messages": None}, {"messages": messages[:1]}])
    pq.write_table(table, tmp_path / "train.parquet")
    (tmp_path / "manifest.json").write_text("{}")
    result, rows = load("automodel", tmp_path / "o", tmp_path / "train.parquet")
    assert (result.imported, result.refused, rows[0]["content"]) == (1, 2, "Ho")
    (tmp_path / "train.parquet").write_bytes((tmp_path / "train.parquet").read_bytes()[:200])
    result, _ = load("automodel", tmp_path / "p", tmp_path / "train.parquet")
    assert result.refused == 1 and "can't be read" in result.first_refused[0].reason


def test_what_no_flag_tells_is_unknown_and_the_audit_says_so(tmp_path: Path) -> None:
    file = lines(tmp_path / "in.jsonl", GOOD)
    result = import_files("torchspec", [file], tmp_path / "o", ImportOptions(KIMI))
    assert {"target_model", "engine", "reasoning_parser", "finish_reason"} <= set(result.unknown)
    found = [f.message for f in audit([tmp_path / "o"], strength="text").findings]
    assert any("target_model is unknown" in message for message in found)


def test_a_folder_in_use_is_refused_and_an_interrupted_import_replaced(tmp_path: Path) -> None:
    file = lines(tmp_path / "in.jsonl", GOOD)
    load("torchspec", tmp_path / "o", file)
    with pytest.raises(ImportFault, match="import already"):
        load("torchspec", tmp_path / "o", file)
    (tmp_path / "o" / "import.json").rename(tmp_path / "o" / ".import.json.begun")
    (tmp_path / "o" / "shards" / "part-00009.parquet").write_bytes(b"left")
    result, _ = load("torchspec", tmp_path / "o", file)
    assert result.shards == ("part-00000.parquet",)
    assert [p.name for p in (tmp_path / "o" / "shards").iterdir()] == ["part-00000.parquet"]
    with pytest.raises(ImportFault, match="tokenizer"):
        import_files("speculators", [file], tmp_path / "q", ImportOptions(KIMI))


def shardgate(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_command_tells_counts_and_places(tmp_path: Path) -> None:
    file = lines(tmp_path / "in.jsonl", *(pretokenized(row) for row in rows_of((*CLEAN, *ODD))), "{oops")
    common = ("import", file, "--from", "speculators", "--format", "kimi_k2", "-o")
    done = shardgate(*common, tmp_path / "o", "--tokenizer", tokenizer_path(), "--model", "m")
    assert done.returncode == 1, done.stderr
    assert "1 refused" in done.stdout and f"{file}:{len((*CLEAN, *ODD)) + 1}: refused: no JSON" in done.stdout
    without = shardgate(*common, tmp_path / "p")
    assert without.returncode == 2 and "--tokenizer" in without.stderr and "Traceback" not in without.stderr
    assert shardgate(*common[:4], "--format", "nothing", "-o", tmp_path / "p").returncode == 2
