"""Answers that older SGLang releases built themselves, judged by what they say: see docs/older-sglang.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contracts.losses import LOSSES
from contracts.records import Verdict
from harness.paths import fixtures_dir
from harness.wire import parse_chat
from tests.bodies.record_older import judged

RECORDS = {
    record["sglang"]: record["answers"]
    for record in (
        json.loads(path.read_bytes()) for path in sorted((fixtures_dir() / "older").glob("*.json"))
    )
}
STRIPPING = ("0.5.3", "0.5.8", "0.5.10", "0.5.12")
WITHOUT_IDS = (*STRIPPING, "0.5.13.post1")
IDS_NAMED = {"0.5.17": "token_ids", "0.5.18": "response_token_ids"}
WHITE_SPACE = {"reasoning-stripped", "content-stripped"}
ANSWERS = [
    pytest.param(version, answer, id=f"{version}: {answer['format']} {answer['generated'][:24]!r}")
    for version, answers in RECORDS.items()
    for answer in answers
]


def test_every_version_that_the_docs_name_is_here() -> None:
    assert set(RECORDS) == {*WITHOUT_IDS, *IDS_NAMED}
    assert all(len(answers) >= 8 for answers in RECORDS.values())


@pytest.mark.parametrize(("version", "answer"), ANSWERS)
def test_it_is_judged_as_recorded(version: str, answer: dict[str, Any]) -> None:
    found = judged(answer, with_generate=True)
    assert (found.verdict, [loss.name for loss in found.losses]) == (answer["verdict"], answer["losses"])


@pytest.mark.parametrize(("version", "answer"), ANSWERS)
def test_without_ids_of_its_own_nothing_is_proven(version: str, answer: dict[str, Any]) -> None:
    found = judged(answer, with_generate=False)
    choice = json.loads(answer["chat"])["choices"][0]
    if version in WITHOUT_IDS:
        assert "token_ids" not in choice and "response_token_ids" not in choice
        assert found.verdict is Verdict.UNPROVEN
        assert [loss.name for loss in found.losses] == ["ids-missing"]
        assert "/generate" in LOSSES["ids-missing"].remedy
    else:
        assert parse_chat(answer["chat"].encode()).response_token_ids == tuple(choice[IDS_NAMED[version]])
        assert found.verdict == answer["verdict"]


def _latest() -> dict[tuple[str, str, bool], dict[str, Any]]:
    return {(a["format"], a["generated"], a["thinking"]): a for a in RECORDS["0.5.18"]}


@pytest.mark.parametrize(("version", "answer"), [p for p in ANSWERS if p.values[0] in STRIPPING])
def test_what_a_later_release_keeps_an_older_one_only_stripped(version: str, answer: dict[str, Any]) -> None:
    """White space is a normalisation: it never makes an answer contradict its tokens."""
    later = _latest()[answer["format"], answer["generated"], answer["thinking"]]
    if later["verdict"] != "exact" or (version == "0.5.8" and answer["format"] == "kimi_k2"):
        return  # until 0.5.8 the name kimi_k2 stood for a parser that always takes an answer for reasoning
    allowed = {"exact", "normalized"}
    if answer["generated"] == "r</think>\n<|im_end|>":
        # All of the content was white space: with it goes the evidence that the thinking was closed.
        allowed = {"lossy"}
        assert set(answer["losses"]) == {"closer-undetermined", "content-stripped"}
    else:
        assert set(answer["losses"]) <= WHITE_SPACE
    assert answer["verdict"] in allowed


def test_white_space_is_kept_since_0_5_13_post1() -> None:
    for version, answers in RECORDS.items():
        stripped = [a for a in answers if WHITE_SPACE & set(a["losses"])]
        assert bool(stripped) == (version in STRIPPING)
