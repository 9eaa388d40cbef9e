"""The token diff: raw and rebuilt tokens aligned, the first divergence marked, the loss at its token."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from contracts.align import Aligned, align
from contracts.formats import FORMATS
from contracts.records import Verdict
from contracts.rules.fidelity import judge_row
from contracts.shard import write_shard
from fixtures.corruptions.rows import CLEAN, ODD, codec, rows_of, tokenizer_path
from harness.report.token_diff import print_diff
from tests.unit.test_cli_shards import shardgate

ROWS = rows_of([*CLEAN, *ODD])


def aligned(row: dict[str, object]) -> tuple[tuple[Aligned, ...], Verdict]:
    judgement = judge_row(row, FORMATS["kimi_k2"], codec())
    return align(row["response_token_ids"], judgement, codec()), judgement.verdict  # type: ignore[arg-type]


@given(st.sampled_from(ROWS), st.data())
def test_both_sides_are_whole_and_in_order(row: dict[str, object], data: st.DataObject) -> None:
    """Reading down one column gives that side's ids back, whatever was changed between them."""
    ids = list(row["response_token_ids"])  # type: ignore[call-overload]
    for _ in range(data.draw(st.integers(0, 3))):
        ids.insert(data.draw(st.integers(0, len(ids))), data.draw(st.integers(0, 3071)))
    changed = {**row, "response_token_ids": ids}
    judgement = judge_row(changed, FORMATS["kimi_k2"], codec())
    lines = align(ids, judgement, codec())
    assert [line.raw_id for line in lines if line.raw_id is not None] == ids
    rebuilt = codec().encode(judgement.rebuilt_text or "")
    assert [line.rebuilt_id for line in lines if line.rebuilt_id is not None] == rebuilt
    assert [line.index for line in lines if line.index is not None] == list(range(len(ids)))
    if judgement.verdict is Verdict.EXACT:
        assert all(line.same for line in lines)
    named = {name for line in lines for name in line.losses}
    assert named == {loss.name for loss in judgement.losses} or not ids


def test_the_first_divergence_is_marked_and_markup_stays_text() -> None:
    row = next(r for r in ROWS if aligned(r)[1] not in (Verdict.EXACT, Verdict.TEXT_EXACT))
    lines, verdict = aligned(row)
    out = StringIO()
    print_diff(lines, judge_row(row, FORMATS["kimi_k2"], codec()), out, whole=True)
    told = out.getvalue()
    assert told.startswith(f"verdict: {verdict}") and told.count("▶") == 1 and "\x1b" not in told


def test_the_command_by_number_and_by_id(tmp_path: Path) -> None:
    rows = rows_of(CLEAN)
    path = write_shard(tmp_path / "a.parquet", rows, format_name="kimi_k2")
    for name in ("0", rows[0]["sample_id"]):
        done = shardgate("diff", path, name, "--tokenizer", tokenizer_path(), "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["judgement"]["verdict"] == "exact"
        assert [line["raw_id"] for line in told["tokens"]] == list(rows[0]["response_token_ids"])
    for wrong in ("99", "nobody", "-1"):
        done = shardgate("diff", "--tokenizer", tokenizer_path(), "--", path, wrong)
        assert done.returncode == 2 and "has no row" in done.stderr and "Traceback" not in done.stderr


def test_a_file_that_is_no_shard(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    done = shardgate("diff", tmp_path / "x.parquet", "0", "--tokenizer", tokenizer_path())
    assert done.returncode == 2 and "can't be read" in done.stderr and "Traceback" not in done.stderr
