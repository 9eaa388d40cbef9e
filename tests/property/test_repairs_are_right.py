"""A wrong repair is worse than none: what repair calls mended is the clean row again, byte for byte.

Every operator of `fixtures/corruptions`, its rows sealed with their fault and sealed before it, over several
families; all faults of a family lie in one shard.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from contracts import audit, write_shard
from contracts.records import Severity
from contracts.repair import repair
from contracts.shard import CONSTANT_COLUMNS, RUN_COLUMNS, Row, ShardError, table_of
from fixtures.corruptions import OPERATORS, Operator, families, rows
from fixtures.corruptions.matrix import base_rows, codec_of

FAMILIES = ("kimi_k2", "glm45", "deepseek_v31", "qwen3_coder")
CONSTANT = (*CONSTANT_COLUMNS, *RUN_COLUMNS)


def fresh(family: str, operator: Operator, number: int) -> list[Row]:
    """Return the operator's clean rows with prompts that no other operator's rows have."""
    names = {row["conversation_id"] for row in base_rows(family, operator)}
    if family == "kimi_k2":
        cases = [case for case in (*rows.CLEAN, *rows.ODD) if case.name in names]
        return rows.rows_of([replace(case, user=f"{case.user} ({number})") for case in cases])
    turns = [turn for turn in (*families.TURNS, *families.CUT) if turn.name in names]
    asked = [replace(turn, before=(f"{number}: {turn.before[0]}", *turn.before[1:])) for turn in turns]
    return families.family_rows(family, asked)


def spoiled(family: str) -> Iterator[tuple[str, Row, Row]]:
    """Yield (operator, clean row, spoiled row) of each operator that spoils one row in place."""
    both = [(name, operator) for name, operator in sorted(OPERATORS.items())]
    both += [(f"{name}, unsealed", replace(operator, reseal=False)) for name, operator in both]
    for number, (name, operator) in enumerate(both):
        if not operator.fits(base_rows(family, operator)):
            continue
        clean = fresh(family, operator, number)
        for place, (was, now) in enumerate(zip(clean, operator(clean), strict=False)):
            # One shard has one set of constants: rows with others are the set rules' matter.
            if was != now and all(was[column] == now[column] for column in CONSTANT):
                names = {"sample_id": f"{family}-{1000 * (number + 1) + place}", "parent_sample_id": None}
                yield name, {**was, **names}, {**now, **names}


@cache
def _fits(family: str) -> list[tuple[str, Row, Row]]:
    """Return the faults that the schema of a shard can hold at all, as a shard gives them back."""
    out = []
    for name, clean, bad in spoiled(family):
        try:
            was, now = table_of([clean, bad], "token").to_pylist()
        except ShardError:
            continue
        out.append((name, was, now))
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_mended_is_the_clean_row_and_nothing_else(tmp_path: Path, family: str) -> None:
    faults = _fits(family)
    assert len({name for name, _, _ in faults}) > 100
    path = write_shard(tmp_path / "a.parquet", [bad for _, _, bad in faults], format_name=family)
    result = repair([path], tmp_path / "o", codec=codec_of(family))
    assert (result.rows, result.files_left) == (len(faults), 0)
    kept = by_name(tmp_path / "o" / "shards" / "a.parquet")
    left = by_name(tmp_path / "o" / "left" / "a.parquet")
    mended = [json.loads(line) for line in (tmp_path / "o" / "repairs.jsonl").read_text().splitlines()]
    assert len(mended) == result.mended > 20, "nothing was mended: the test shows nothing"
    proven = {one["sample_id"] for one in mended}
    for name, clean, bad in faults:
        sample = clean["sample_id"]
        if sample in proven:
            assert kept[sample] == clean, f"{name}: a wrong repair"
        else:
            assert repr({**kept, **left}[sample]) == repr(bad), (
                f"{name}: a row that was not mended is another one"
            )
    again = audit([tmp_path / "o" / "shards" / "a.parquet"], codec=codec_of(family))
    wrong = {f.row for f in again.findings if f.severity is Severity.ERROR and f.row is not None}
    order = list(kept)
    assert not {order[row] for row in wrong} & proven, "a mended row breaks a rule"


def by_name(path: Path) -> dict[str, dict[str, Any]]:
    return {row["sample_id"]: row for row in pq.read_table(path).to_pylist()}
