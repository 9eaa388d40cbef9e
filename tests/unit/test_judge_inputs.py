"""The judge's public call: what it takes, and the clear errors for what it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contracts.errors import ShardgateError
from contracts.records import Judgement, ThinkingMode, Verdict
from contracts.tokens import load_codec
from harness import judge
from harness.models import tokenizer_only
from harness.strategies import TOOLS
from tests.conftest import need

need("sglang")
CODEC = load_codec(tokenizer_only())
ANSWER = CODEC.encode("r</think>C<|im_end|>")


def kimi(ids: Any, **options: Any) -> Judgement:
    return judge(
        ids, **{"tokenizer": CODEC, "reasoning_parser": "kimi_k2", "tool_parser": "kimi_k2", **options}
    )


def names(judgement: Judgement) -> set[str]:
    return {loss.name for loss in judgement.losses}


def test_arrays_serve_as_ids() -> None:
    prompt = np.array(CODEC.encode("<|im_middle|><think>"))
    assert kimi(np.array(ANSWER), prompt_ids=prompt, chunks=np.array([1, 2])).verdict is Verdict.EXACT
    assert kimi(ANSWER, prompt_ids=np.array([], dtype=int)).verdict is Verdict.EXACT


@pytest.mark.parametrize("foreign", [10**6, -1, 2**40, 2**70, -(2**70)])
def test_an_id_of_no_vocabulary_is_named(foreign: int) -> None:
    judgement = kimi([*ANSWER[:-1], foreign, ANSWER[-1]])
    assert judgement.verdict is Verdict.CONTRADICTED and "token-out-of-range" in names(judgement)


def test_every_way_to_give_a_tokenizer() -> None:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    folder = tokenizer_only()
    ways = [folder, str(folder), folder / "tokenizer.json", AutoTokenizer.from_pretrained(folder)]
    ways.append(Tokenizer.from_file(str(folder / "tokenizer.json")))
    assert {kimi(ANSWER, tokenizer=way).verdict for way in ways} == {Verdict.EXACT}


@pytest.mark.parametrize(
    "options",
    [
        {"reasoning_parser": "no-such"},
        {"tool_parser": "no-such"},
        {"tokenizer": "/no/such/folder"},
        {"tokenizer": object()},
        {"tools": [{"name": 1}]},
        {"tools": [{}]},
        {"tools": [1]},
        {"chunks": [1.5]},
        {"prompt_ids": ["x"]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_wrong_use_is_told(options: dict[str, Any]) -> None:
    with pytest.raises(ShardgateError):
        kimi(ANSWER, **options)


def test_the_end_token_is_no_fact_that_the_ids_may_lend() -> None:
    other = CODEC.encode("r</think>C[EOS]")
    assert kimi(ANSWER).verdict is Verdict.EXACT
    assert names(kimi(other)) == {"end-undetermined"}
    assert kimi(other, matched_stop=other[-1]).verdict is Verdict.EXACT


def test_a_constrained_answer_that_never_closed_its_thinking() -> None:
    judgement = kimi(CODEC.encode('{"a": 1}<|im_end|>'), constrained=True)
    assert judgement.verdict is Verdict.CONTRADICTED and "content-in-reasoning" in names(judgement)


def test_words_serve_as_modes() -> None:
    ids = CODEC.encode("Hello<|im_end|>")
    assert kimi(ids, thinking_mode="instant").content == "Hello"
    assert kimi(ids, thinking_mode=ThinkingMode.THINKING).reasoning_content == "Hello"
    assert kimi(ANSWER, mode="raw").content == "r</think>C<|im_end|>"


def test_reasoning_in_an_instant_answer_is_told() -> None:
    instant = CODEC.encode("<|im_middle|><think></think>")
    assert "marker-leaked" in names(kimi(ANSWER, prompt_ids=instant, tools=TOOLS))
