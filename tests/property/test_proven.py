"""What the fast paths let through, the slow ones find nothing in: for every family that they read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.formats import FORMATS, Format
from contracts.records import Profile, ThinkingMode
from contracts.rowwise import _suspects
from contracts.rules import ROW_CHECKS, Context
from contracts.rules.fidelity import judged_again
from contracts.rules.proven import readable
from contracts.rules.registry import DISTINCT, SUSPECTS
from contracts.shard import Row, seal
from contracts.tokens import Codec
from fixtures.corruptions.rows import CLEAN, codec, rows_of
from harness.models import codec_for
from harness.strategies import Stream, disturbed_streams, safe_streams
from tests.bodies.proven_rows import BASE, batch_of, context

FAMILIES = [fmt for fmt in FORMATS.values() if readable(fmt, codec_for(fmt))]
MAIN = ("kimi_k2", "qwen3", "deepseek_v31")


def fields_of(text: str, fmt: Format, end: str, starts: bool) -> tuple[str | None, str | None]:
    """Cut a text the plain way: what a parser hands out of a well-formed response without calls."""
    text = text.removesuffix(end) if end else text
    if fmt.opener and text.startswith(fmt.opener):
        text, starts = text[len(fmt.opener) :], True
    if not starts:
        return None, text or None
    reasoning, _, content = text.partition(fmt.closer)
    return reasoning or None, content or None


def row_of(data: st.DataObject, stream: Stream, fmt: Format, tokenizer: Codec) -> Row:
    """A row that states that it is exact, whatever it is."""
    ids = list(stream.ids)
    raw = tokenizer.decode_bytes(ids).decode("utf-8", "replace")
    instant = stream.thinking_mode is ThinkingMode.INSTANT
    ends = (
        fmt.opener if fmt.opener_prefilled and not instant else fmt.closer if instant and fmt.thinks else ""
    )
    prompt = tokenizer.encode(f"Say: hello\n{ends}")
    mode = data.draw(st.sampled_from(["tools", "tools", "reasoning", "raw"]))
    end = next((text for text in fmt.end_tokens if raw.endswith(text)), "")
    stopped = stream.finish_reason in ("stop", "tool_calls")
    reasoning, content = fields_of(raw, fmt, end, ends == fmt.opener and bool(ends))
    if mode == "raw":
        reasoning, content = None, raw
    row = {
        **BASE,
        "prompt_token_ids": prompt,
        "response_token_ids": ids,
        "prompt_tokens": len(prompt),
        "completion_tokens": len(ids),
        "response_text_raw": raw,
        "text_source": "served" if mode == "raw" else "derived",
        "reasoning_content": reasoning,
        "content": content,
        "tool_calls": None,
        "finish_reason": stream.finish_reason,
        "matched_stop": str(ids[-1]) if stopped and ids and data.draw(st.booleans()) else None,
        "thinking_mode": str(stream.thinking_mode),
        "template_kwargs": json.dumps({fmt.template_switch: not instant}) if fmt.template_switch else "{}",
        "sampling_params": json.dumps({"max_tokens": 99, "mode": mode, "stream": False}),
        "reasoning_parser": fmt.reasoning_parser or "none",
        "tool_parser": fmt.tool_parser or "none",
        "claims": {
            "captured": True,
            "text": True if mode == "raw" else None,
            "rebuilt": True,
            "tokens": True,
        },
        "verdict": "exact",
        "losses": [],
    }
    return seal(disturb(data, row, fmt))


def disturb(data: st.DataObject, row: Row, fmt: Format) -> Row:
    texts = st.sampled_from(["", " ", "\n", "x", "\x1c", "é", "e\u0301", *fmt.markers, *fmt.end_tokens])

    def edit(name: str) -> dict[str, Any]:
        text = row[name] or ""
        at = data.draw(st.integers(0, len(text)))
        return {name: text[:at] + data.draw(texts) + text[at + data.draw(st.integers(0, 2)) :]}

    ids = list(row["response_token_ids"])
    at = data.draw(st.integers(0, max(0, len(ids) - 1)))
    changes: list[Callable[[], dict[str, Any]]] = [
        dict,
        dict,
        dict,
        lambda: edit("content"),
        lambda: edit("reasoning_content"),
        lambda: edit("response_text_raw"),
        lambda: {"response_token_ids": [*ids[:at], *ids[at + 1 :]]},
        lambda: {"response_token_ids": [*ids, 2**31 - 1]},
        lambda: {"response_token_ids": [*ids[:at], *ids[at : at + 1], *ids[at:]]},
        lambda: {"finish_reason": data.draw(st.sampled_from(["stop", "length", "tool_calls", "abort"]))},
        lambda: {"matched_stop": data.draw(st.sampled_from([None, "1", '"x"', '"NaN happened"']))},
        lambda: {"text_source": data.draw(st.sampled_from(["served", "derived", "guessed"]))},
        lambda: {"claims": {**row["claims"], "text": data.draw(st.sampled_from([True, False, None]))}},
        lambda: {"reasoning_parser": "none"},
        lambda: {"prompt_token_ids": row["prompt_token_ids"][:-1]},
        lambda: {"template_kwargs": data.draw(st.sampled_from(["{}", "[", '{"thinking":1}']))},
        lambda: {"constraint": data.draw(st.sampled_from(["{}", '{"regex":"a"}', "["]))},
        lambda: {"reasoning_content": row["content"], "content": row["reasoning_content"]},
    ]
    changed = {**row, **data.draw(st.sampled_from(changes))()}
    last = {
        **changed["messages"][-1],
        "content": changed["content"] or "",
        "reasoning_content": changed["reasoning_content"],
    }
    return {**changed, "messages": [*changed["messages"][:-1], last]}


@pytest.mark.parametrize("name", [*MAIN, "any other"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_is_left_out_has_nothing_to_report(name: str, data: st.DataObject) -> None:
    fmt = FORMATS[name] if name in FORMATS else data.draw(st.sampled_from(FAMILIES))
    tokenizer = codec_for(fmt)
    tools = data.draw(st.booleans())
    streams = safe_streams(fmt, tokenizer, tools=tools) | disturbed_streams(fmt, tokenizer, tools=tools)
    drawn = data.draw(st.lists(streams, min_size=1, max_size=6))
    rows = [row_of(data, stream, fmt, tokenizer) for stream in drawn]
    ctx, batch = context(fmt, tokenizer), batch_of(rows)
    for check in ROW_CHECKS:
        if check not in SUSPECTS and check not in DISTINCT:
            continue
        looked_at = _suspects(check, batch, ctx).to_list()
        for row, suspect in zip(batch.table.to_pylist(), looked_at, strict=True):
            assert suspect or list(check(row, ctx)) == [], check


def test_the_families_are_the_ones_that_matter() -> None:
    assert set(MAIN) <= {fmt.name for fmt in FAMILIES}


def test_every_row_is_looked_at_without_the_fast_path() -> None:
    ctx = Context(Profile.DRAFT, "a.parquet", FORMATS["kimi_k2"], codec(), fast=False)
    assert _suspects(judged_again, batch_of(rows_of(CLEAN)), ctx).all()
