"""Exports read by the trainers' own loading code: the same ids, the same mask.

Place in the flow: runs `tests/bodies/trainers.py` with `.venv-trainers`, which `.ci/trainers-env` makes of
the pinned packages of SpecForge, speculators and hs-connectors; never skipped.
"""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from contracts import audit, write_shard
from contracts.exporters import FORMS, export_rows
from contracts.exporters.texts import renderer
from contracts.exporters.tokens import unpacked_mask
from contracts.shard import Row
from fixtures.corruptions.rows import CLEAN, ODD, codec, rows_of, tokenizer_path

ROOT = Path(__file__).resolve().parents[2]
ROWS = rows_of((*CLEAN, *ODD))
IDS = ("specforge-ids", "speculators", "speculators-arrow")


def several_turns() -> Row:
    """A row whose mask covers two earlier turns and the response, its texts full of odd characters."""
    row = copy.deepcopy(ROWS[1])
    prompt = len(row["prompt_token_ids"])
    spans = ((2, 3), (8, 1), (prompt, len(row["response_token_ids"])))
    row["loss_mask"] = [{"start": start, "length": length} for start, length in spans]
    row["sample_id"], row["messages"][0]["content"] = "several-turns", "a\u2028b\x85c\ufeff 🙂"
    return row


MASKED = [*ROWS, several_turns()]
"""The rows of the forms with ids and mask."""


def expected(row: Row) -> list[list[int]]:
    prompt, response = row["prompt_token_ids"], row["response_token_ids"]
    mask = [0] * len(prompt) + [1] * len(response)
    for span in row["loss_mask"] or ():
        mask[span["start"] : span["start"] + span["length"]] = [1] * span["length"]
    return [[*prompt, *response], mask]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    write_shard(folder / "set" / "a.parquet", ROWS, format_name="kimi_k2")
    assert audit([folder / "set"], codec=codec(), certify=folder / "set").quarantined == 0
    render = renderer(tokenizer_path())
    write_shard(folder / "masked" / "a.parquet", MASKED, format_name="kimi_k2")
    for form in FORMS:
        if form in IDS:  # no other row of the set generated the earlier turns: not to be certified
            export_rows(form, [folder / "masked" / "a.parquet"], folder / form, certified=False)
        else:
            export_rows(form, folder / "set", folder / form, render=render)
    return folder


@pytest.fixture(scope="module")
def loaded(exports: Path) -> dict[str, Any]:
    made = subprocess.run([ROOT / ".ci" / "trainers-env"], capture_output=True, text=True, timeout=540)
    assert made.returncode == 0, made.stderr
    python = Path(made.stdout.strip()) / "bin" / "python"
    body = ROOT / "tests" / "bodies" / "trainers.py"
    done = subprocess.run(
        [python, body, exports, tokenizer_path()], capture_output=True, text=True, timeout=540, cwd=exports
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("form", IDS)
def test_the_trainers_code_yields_the_same_ids_and_mask(loaded: dict[str, Any], form: str) -> None:
    assert loaded[form] == [expected(row) for row in MASKED]


def test_specforges_rendering_is_the_one_that_the_export_compared(
    loaded: dict[str, Any], exports: Path
) -> None:
    """A row that is not listed as differing comes out of SpecForge's own preprocessing with its own ids."""
    lines = (exports / "specforge" / "differs.log").read_text().splitlines()
    differing = {json.loads(line)["row"] for line in lines}
    same = [expected(row)[0] for number, row in enumerate(ROWS) if number not in differing]
    made = [ids for ids, _ in loaded["specforge"]]
    assert len(same) >= 2 and differing, "the rows show only one of the two cases"
    assert len(made) == len(ROWS)
    for ids in same:
        assert any(found[: len(ids)] == ids for found in made)


def test_torchspecs_rows_have_conversation_ids_and_packed_mask(loaded: dict[str, Any]) -> None:
    for row, read in zip(ROWS, loaded["torchspec"], strict=True):
        ids, mask = expected(row)
        assert (read["id"], read["input_ids"]) == (row["sample_id"], ids)
        assert read["packed_loss_mask"] == f"{len(row['prompt_token_ids'])},{len(row['response_token_ids'])}"
        assert unpacked_mask(read["packed_loss_mask"]) == mask
        assert [m["content"] for m in read["conversations"]] == [m["content"] for m in row["messages"]]


@pytest.mark.parametrize("form", ["automodel", "model-optimizer"])
def test_messages_are_the_rows_own(loaded: dict[str, Any], form: str) -> None:
    for row, read in zip(ROWS, loaded[form], strict=True):
        for message, told in zip(row["messages"], read["messages"], strict=True):
            assert told["content"] == message["content"] and told["role"] == message["role"]
            assert told.get("reasoning_content") == message["reasoning_content"]
            calls = json.loads(message["tool_calls"] or "[]")
            names = [(call["id"], call["function"]) for call in told.get("tool_calls") or []]
            assert names == [(call["id"], call["function"]) for call in calls]
