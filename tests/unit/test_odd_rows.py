"""Odd rows that are real: no fidelity rule fires on what a model, a request or a cut may bring about."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts import audit, write_shard
from contracts.formats import FORMATS
from contracts.records import Mode, Profile, Severity
from contracts.rules import RULES
from contracts.shard import Row, seal
from fixtures.corruptions.families import CUT, TURNS, Turn, can_say, codec_of, family_rows
from fixtures.corruptions.rows import CLEAN, ODD, Case, codec, row_of, rows_of

KIMI = FORMATS["kimi_k2"]
TEXTS = {
    "right-to-left": "The word \u202eesrever\u202c is \u05e9\u05dc\u05d5\u05dd.",
    "zero-width": "zero\u200bwidth\u200djoin\ufeff",
    "decomposed": unicodedata.normalize("NFD", "Ça va, naïve café?"),
    "controls": "bell \x07, null \x00, escape \x1b[31m",
    "replacement": "what was read was \ufffd\ufffd",
    "about-the-tags": "The tag < think > opens, /think closes; <thinking> is another.",
    "json": '{"tool_calls": [{"name": "f"}]}',
    "white-space": " \n\t two \r\n lines \n\n",
    "surrogate-pairs": "\U0001f468\u200d\U0001f469\u200d\U0001f467 and \U00020000",
}
CASES = (
    *(Case(f"content-{name}", content=text) for name, text in TEXTS.items()),
    *(Case(f"reasoning-{name}", reasoning=text) for name, text in TEXTS.items()),
    *(Case(f"raw-{name}", reasoning=text, content=text, mode=Mode.RAW) for name, text in TEXTS.items()),
    Case("content-empty", content=""),
    Case("thinking-empty", reasoning="", content="56."),
    Case("split-otherwise", reasoning="indivisible", content="uncharacteristically", split=True),
    Case("long", content="All legs of all spiders. " * 500),
    Case("aborted", content="They ha", finish="abort"),
    Case("cut-after-the-closer", content="", finish="length"),
    Case("switch-told", user="Why?"),
)


def errors_and_fidelity(tmp_path: Path, rows: list[Row], family: str = "kimi_k2") -> list[str]:
    """Return what fidelity rules say of the rows, under any profile."""
    shard = write_shard(tmp_path / "a.parquet", rows, format_name=family)
    used = codec() if rows[0]["tokenizer_sha256"] == codec().sha256 else codec_of(family)
    told = []
    for profile in (Profile.DRAFT, Profile.SFT):
        for found in audit([shard], profile=profile, codec=used).findings:
            name = None if found.row is None else rows[found.row]["conversation_id"]
            if RULES[found.rule].kind == "fidelity" or found.severity is Severity.ERROR:
                told.append(f"{profile}: {found.rule} of {name}: {found.message}")
    return told


def test_odd_texts_cuts_and_splits(tmp_path: Path) -> None:
    rows = [row_of(replace(case, sample_index=number), KIMI, number) for number, case in enumerate(CASES)]
    assert errors_and_fidelity(tmp_path, rows) == []
    assert {"exact", "text_exact"} <= {row["verdict"] for row in rows}


HONEST: dict[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "greedy-as-a-float": {"temperature": 0.0, "top_p": 1.0},
    "nothing-set": {},
    "all-neutral": {
        "temperature": 1,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": {},
        "seed": 7,
        "n": 1,
    },
    "several-samples": {"temperature": 0.7, "n": 4},
    "auto-tools": {"temperature": 1.0, "tool_choice": "auto", "parallel_tool_calls": True},
    "no-stops": {"temperature": 1.0, "stop": None, "stop_token_ids": None},
    "unused-stops": {"temperature": 1.0, "stop": ["###"], "stop_token_ids": [2]},
    "own-keys": {"temperature": 1.0, "user": "a\u202eb", "metadata": {"run": "7"}},
}


@pytest.mark.parametrize("name", HONEST)
def test_odd_but_honest_sampling(tmp_path: Path, name: str) -> None:
    rows = [row_of(replace(case, sampling=HONEST[name]), KIMI, n) for n, case in enumerate(CLEAN)]
    assert errors_and_fidelity(tmp_path, rows) == []


def test_stop_token_ids_of_the_request(tmp_path: Path) -> None:
    """The request's own stop token ends the response: no end token of the family does."""
    rows = rows_of(CLEAN)
    row = rows[5]
    assert row["conversation_id"] == "raw"
    ids = row["response_token_ids"][:-1]
    row["response_token_ids"], row["completion_tokens"] = ids, len(ids)
    row["matched_stop"] = str(ids[-1])
    row["sampling_params"] = json.dumps({"temperature": 1.0, "stop_token_ids": [ids[-1]], "mode": "raw"})
    text = codec().decode_bytes(ids).decode()
    row["response_text_raw"] = row["content"] = row["messages"][-1]["content"] = text
    rows[5] = judged_again(row)
    assert errors_and_fidelity(tmp_path, rows) == []


def judged_again(row: Row) -> Row:
    from contracts.rules.fidelity import CLAIMS, judge_row

    again = judge_row(row, KIMI, codec())
    row["claims"] = {name: getattr(again.claims, name) for name in CLAIMS}
    row["verdict"], row["losses"] = str(again.verdict), [loss.name for loss in again.losses]
    return seal(row)


SPELLINGS: dict[str, Callable[[Row], str]] = {
    "spaced": lambda row: json.dumps({"thinking": True}),
    "told-though-the-default": lambda row: '{"thinking":true}',
    "null": lambda row: '{"thinking":null}',
    "with-others": lambda row: '{"thinking":true,"preserve_thinking":false,"lang":"\\u00e9"}',
    "indented": lambda row: json.dumps({"thinking": True}, indent=2),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_template_arguments_in_any_spelling(tmp_path: Path, spelling: str) -> None:
    rows = rows_of(CLEAN[:5])
    rows[0] = seal({**rows[0], "template_kwargs": SPELLINGS[spelling](rows[0])})
    assert errors_and_fidelity(tmp_path, rows) == []


def test_a_row_of_300_000_tokens(tmp_path: Path) -> None:
    words = "They have 56 legs, and so on. " * 38_000
    rows = [row_of(Case("huge", content=words), KIMI, 0), *rows_of(CLEAN[1:4], first=1)]
    assert len(rows[0]["response_token_ids"]) >= 300_000
    assert errors_and_fidelity(tmp_path, rows) == []


def test_samples_that_came_out_the_same(tmp_path: Path) -> None:
    """Four samples of one request, alike but for their index: what n > 1 gives at a low temperature."""
    case = replace(CLEAN[0], sampling={"temperature": 0.1, "n": 4})
    rows = [row_of(replace(case, sample_index=n), KIMI, n) for n in range(4)]
    for row in rows:
        row["request_id"], row["created_at"] = "one-request", rows[0]["created_at"]
    assert errors_and_fidelity(tmp_path, [seal(row) for row in rows]) == []


CHAIN = (
    Turn(
        "chain-1",
        before=("Plan it.", (("search", {"query": "a"}),)),
        content="",
        calls=TURNS[7].calls,
        tools=True,
    ),
    Turn(
        "chain-2",
        before=("Plan it.", (("search", {"query": "a"}),), (("get_weather", {"city": "Bern"}),)),
        content="Done.",
        tools=True,
    ),
    Turn("calls-only", before=("Now.",), reasoning="Call.", content="", calls=TURNS[7].calls, tools=True),
    Turn("no-answer", before=("Say nothing.",), reasoning="I will.", content="", finish="length"),
)


@pytest.mark.parametrize("family", sorted(FORMATS))
def test_chains_of_calls_of_every_family(tmp_path: Path, family: str) -> None:
    said = [turn for turn in (*CHAIN, *CUT) if can_say(FORMATS[family], turn)]
    rows = family_rows(family, (*TURNS[:2], *said))
    assert errors_and_fidelity(tmp_path, rows, family) == []


def test_the_odd_rows_of_the_corpus(tmp_path: Path) -> None:
    assert errors_and_fidelity(tmp_path, rows_of((*CLEAN, *ODD))) == []
