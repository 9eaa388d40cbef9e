"""What bends sampling, and what no request can hold."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.sampling import bent_by, impossible


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "stop": ["x"], "max_tokens": 5, "seed": 1},
        {"response_format": {"type": "text"}},
        {"repetition_penalty": 1.0, "presence_penalty": 0, "logit_bias": {}, "min_tokens": 0, "best_of": 1},
        {"extra_body": {"top_k": 40}},
        {"temperature": None, "max_tokens": None, "top_k": -1},
    ],
)
def test_plain_requests_are_neither_bent_nor_impossible(sampling: dict[str, Any]) -> None:
    assert bent_by(sampling, tools=True) == {} and impossible(sampling) == []


@pytest.mark.parametrize(
    ("sampling", "names"),
    [
        ({"response_format": {"type": "json_object"}}, {"response_format"}),
        ({"guided_json": {}, "guided_regex": "a+"}, {"guided_regex"}),
        ({"extra_body": {"regex": "x", "repetition_penalty": 1.5}}, {"regex", "repetition_penalty"}),
        ({"min_new_tokens": 400}, {"min_new_tokens"}),
        ({"best_of": 4, "use_beam_search": True}, {"best_of", "use_beam_search"}),
        ({"tool_choice": "required"}, {"tool_choice"}),
    ],
)
def test_what_bends_is_named_wherever_it_stands(sampling: dict[str, Any], names: set[str]) -> None:
    assert set(bent_by(sampling, tools=True)) == names


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -3),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 7),
        ("n", True),
        ("max_tokens", -1),
    ],
)
def test_what_no_engine_takes_is_impossible(name: str, value: Any) -> None:
    assert impossible({name: value}) == [name]
