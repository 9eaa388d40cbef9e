"""Rules against what an audit is given: an eval set's prompts, a draft vocabulary, a model's template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts import audit, write_shard
from contracts.drafts import load_draft_vocabulary
from contracts.evals import load_eval_set
from contracts.given import Given, GivenError
from contracts.run import AuditResult, fingerprint
from contracts.shard import Row
from fixtures.corruptions.rows import CLEAN, codec, rows_of

ROWS = rows_of(CLEAN)
USED = sorted({token for row in ROWS for token in row["response_token_ids"]})


def check(tmp_path: Path, given: Given, rows: list[Row] = ROWS) -> AuditResult:
    path = write_shard(tmp_path / "a.parquet", rows, format_name="kimi_k2")
    return audit([path], codec=codec(), given=given)


def lines(tmp_path: Path, *values: Any) -> Path:
    path = tmp_path / "eval.jsonl"
    path.write_text("\n".join(json.dumps(value) for value in values), encoding="utf-8")
    return path


ASKED = "How many legs do seven spiders have?"


@pytest.mark.parametrize(
    "entry",
    [
        {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": ASKED}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ASKED}]}]},
        {"conversations": [{"from": "human", "value": ASKED}, {"from": "gpt", "value": "56"}]},
        {"prompt": ASKED, "answer": "56"},
        {"question": f"  {ASKED.upper()}\n"},
        ASKED,
        {"prompt_sha256": ROWS[0]["prompt_sha256"].hex()},
    ],
)
def test_a_prompt_of_the_eval_set_is_told(tmp_path: Path, entry: Any) -> None:
    evals = load_eval_set(lines(tmp_path, {"prompt": "something else"}, entry))
    result = check(tmp_path, Given(eval_set=evals))
    assert {(found.rule, found.row) for found in result.findings} == {("eval-overlap", 0)}
    assert result.certified == len(ROWS), "a warning"


def test_an_eval_set_of_plain_text(tmp_path: Path) -> None:
    (tmp_path / "eval.txt").write_text(f"Another one?\n\n{ASKED}\n")
    found = check(tmp_path, Given(eval_set=load_eval_set(tmp_path / "eval.txt"))).findings
    assert [(f.rule, f.row) for f in found] == [("eval-overlap", 0)]


def test_an_eval_set_of_shards(tmp_path: Path) -> None:
    evals = write_shard(tmp_path / "eval.parquet", [ROWS[2], ROWS[6]], format_name="kimi_k2")
    found = check(tmp_path, Given(eval_set=load_eval_set([evals]))).findings
    assert [(f.rule, f.row) for f in found] == [("eval-overlap", 2), ("eval-overlap", 6)]


def test_other_prompts_are_silent_and_the_fingerprint_covers_the_set(tmp_path: Path) -> None:
    given = Given(eval_set=load_eval_set(lines(tmp_path, {"prompt": "How many legs?"}, ASKED[:-1])))
    assert check(tmp_path, given).findings == ()
    assert fingerprint(given=given) != fingerprint()


@pytest.mark.parametrize(
    ("text", "told"),
    [("", "empty"), ("{", "no JSON lines"), ('{"a": 1}', "without a prompt"), ("PAR1", "can't be read")],
)
def test_an_eval_set_that_is_none_is_told(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "eval.jsonl"
    path.write_text(text)
    with pytest.raises(GivenError, match=told) as caught:
        load_eval_set(path)
    assert str(path) in caught.value.where and caught.value.remedy


def maps(tmp_path: Path, ids: list[int], size: int) -> dict[str, Path]:
    """Write one vocabulary in every form that is read."""
    from safetensors.numpy import save_file

    chosen = np.array(ids, dtype=np.int64)
    mask = np.zeros(size, dtype=bool)
    mask[chosen] = True
    offsets = chosen - np.arange(len(chosen))
    paths = {
        name: tmp_path / name
        for name in ("t2d.npy", "d2t.npy", "ids.npy", "map.safetensors", "ids.json", "map.json")
    }
    np.save(paths["t2d.npy"], mask)
    np.save(paths["d2t.npy"], offsets)
    np.save(paths["ids.npy"], chosen)
    save_file({"d2t": offsets, "t2d": mask}, paths["map.safetensors"])
    paths["ids.json"].write_text(json.dumps(ids))
    paths["map.json"].write_text(json.dumps({"d2t": offsets.tolist()}))
    return paths


def test_every_form_of_the_map_gives_the_same_tokens(tmp_path: Path) -> None:
    for name, path in maps(tmp_path, USED, codec().vocab_size or 0).items():
        assert load_draft_vocabulary(path).ids.tolist() == USED, name


def test_the_map_is_found_in_a_draft_models_folder_among_its_weights(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    offsets, weight = (
        np.array([token - n for n, token in enumerate(USED)]),
        np.zeros((4, 4), dtype=np.float16),
    )
    save_file({"fc.weight": weight}, tmp_path / "a.safetensors")
    save_file({"model.d2t": offsets, "lm_head.weight": weight}, tmp_path / "model.safetensors")
    found = load_draft_vocabulary(tmp_path)
    assert found.ids.tolist() == USED and found.where.endswith("model.safetensors")
    (tmp_path / "ids.json").write_text(json.dumps(USED))
    assert load_draft_vocabulary(tmp_path / "ids.json").sha256 == found.sha256, "one map, one fingerprint"
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(GivenError, match="can't be used"):
        load_draft_vocabulary(tmp_path)


def test_coverage_below_the_threshold_is_told_with_the_map_and_what_it_lacks(tmp_path: Path) -> None:
    size = codec().vocab_size or 0
    whole = Given(draft_vocabulary=load_draft_vocabulary(maps(tmp_path, USED, size)["ids.json"]))
    assert check(tmp_path, whole).findings == () and fingerprint(given=whole) != fingerprint()
    lacking = load_draft_vocabulary(maps(tmp_path, USED[: len(USED) // 2], size)["t2d.npy"])
    (found,) = check(tmp_path, Given(draft_vocabulary=lacking)).findings
    assert (
        found.rule == "draft-coverage" and lacking.sha256[:16] in found.message and "t2d.npy" in found.message
    )
    counts = {t: sum(row["response_token_ids"].count(t) for row in ROWS) for t in USED[len(USED) // 2 :]}
    most = max(counts, key=lambda token: (counts[token], -token))
    assert f"lacks most {most} ({counts[most]} times)" in found.message


def test_a_map_of_another_vocabulary_is_told(tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text(json.dumps([*USED, 163_000]))
    given = Given(draft_vocabulary=load_draft_vocabulary(tmp_path / "ids.json"))
    (found,) = check(tmp_path, given).findings
    assert found.rule == "draft-coverage" and "163000" in found.message


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("ids.json", b"[-1, 2]"),
        ("ids.json", b"[]"),
        ("ids.json", b"{"),
        ("ids.json", b"[1.5]"),
        ("ids.json", b'{"one": [1], "two": [2]}'),
        ("d2t.json", b"[3, 2]"),
        ("map.pt", b"x"),
        ("map.npy", b"x"),
        ("map.safetensors", b"x"),
    ],
)
def test_a_map_that_is_none_is_told(tmp_path: Path, name: str, block: bytes) -> None:
    (tmp_path / name).write_bytes(block)
    with pytest.raises(GivenError, match="can't be used") as caught:
        load_draft_vocabulary(tmp_path / name)
    assert caught.value.where == str(tmp_path / name) and caught.value.why
