"""Rows with tool calls of every family: what the fast path lets through, the judge finds nothing in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.formats import FORMATS, format_named
from contracts.rules.fidelity import judged_again
from contracts.rules.proven import not_proven, readable
from fixtures.corruptions.families import CUT, TURNS, codec_of, family_rows
from harness.models import codec_for
from tests.bodies.proven_rows import batch_of, called_row, context

FAMILIES = sorted(FORMATS)
PAIRS = ("kimi_k2+llama4", "qwen3+llama3", "deepseek_r1+qwen3_coder", "gpt_oss+qwen3", "granite+gemma4")


@pytest.mark.parametrize("name", [*FAMILIES, *PAIRS])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_rows_with_calls_that_are_let_through_have_nothing_to_report(name: str, data: st.DataObject) -> None:
    fmt = format_named(name)
    assert fmt is not None
    tokenizer = codec_for(fmt)
    rows = [called_row(data, fmt, tokenizer) for _ in range(data.draw(st.integers(1, 6)))]
    ctx, batch = context(fmt, tokenizer), batch_of(rows)
    for row, left in zip(batch.table.to_pylist(), not_proven(batch, ctx).to_list(), strict=True):
        assert left or list(judged_again(row, ctx)) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_clean_rows_need_no_judge(name: str) -> None:
    """Else the fast path would be safe by letting nothing through; cuts are rows like others."""
    rows = family_rows(name, (*TURNS, *CUT))
    ctx = context(FORMATS[name], codec_of(name))
    assert readable(FORMATS[name], codec_of(name))
    assert not not_proven(batch_of(rows), ctx).any()
