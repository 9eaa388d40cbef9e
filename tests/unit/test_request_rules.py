"""What the rules about requests, prompts and turns leave alone: all that a good row may bring along."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts import audit, write_shard
from contracts.formats import FORMATS
from contracts.records import Mode, Profile, Severity
from contracts.rules.degenerate import PASSAGE, times_before
from contracts.rules.limits import NO_LIMIT, limits_of
from contracts.shard import Row, seal
from contracts.thresholds import Thresholds
from fixtures.corruptions.base import change_json
from fixtures.corruptions.of_requests import second_turn
from fixtures.corruptions.rows import CLEAN, ODD, Case, codec, row_of, rows_of

KIMI = FORMATS["kimi_k2"]
Change = Callable[[Row], None]


def rules(tmp_path: Path, rows: list[Row], profile: Profile = Profile.DRAFT, **thresholds: Any) -> set[str]:
    """Return the rules that fire as errors or warnings."""
    path = write_shard(tmp_path / "a.parquet", [seal(row) for row in rows], format_name="kimi_k2")
    found = audit([path], profile=profile, codec=codec(), thresholds=Thresholds(**thresholds)).findings
    return {one.rule for one in found if one.severity is not Severity.RATE}


def case_named(rows: list[Row], name: str) -> Row:
    return next(row for row in rows if row["conversation_id"] == name)


def asked(**parameters: Any) -> Change:
    return lambda row: change_json(row, "sampling_params", **parameters)


FINE: dict[str, tuple[str, Change]] = {
    "the limit reached": ("cut", lambda row: None),
    "no limit": ("cut", asked(max_tokens=None)),
    "the greater of two limits": ("answer", asked(max_tokens=5, max_completion_tokens=400)),
    "a stop string that never came": ("answer", asked(stop=["Observation:"])),
    "an empty stop string": ("answer", asked(stop=["", None])),
    "a stop token that is the last one": (
        "raw",
        lambda row: change_json(row, "sampling_params", stop_token_ids=[row["response_token_ids"][-1]]),
    ),
    "a stop regex": ("answer", asked(stop_regex="[0-9]{9}")),
    "calls as the model likes": ("one-call", asked(tool_choice="auto", parallel_tool_calls=True)),
    "one call where one was asked for": ("one-call", asked(parallel_tool_calls=False)),
    "no tool choice": ("one-call", asked(tool_choice=None)),
    "an adapter that the row names": (
        "answer",
        lambda row: (asked(lora_path="legal-v2")(row), row.update(lora='["legal-v2"]'))[0],
    ),
    "certain now and then": (
        "answer",
        lambda row: row.update(output_logprobs=[0.0] * (len(row["response_token_ids"]) - 1) + [-0.25]),
    ),
    "a short certain answer": (
        "raw",
        lambda row: row.update(output_logprobs=[0.0] * len(row["response_token_ids"])),
    ),
    "a turn after as many answers": ("agentic", lambda row: row.update(turn_index=1)),
    "no request id": ("answer", lambda row: None),
}


@pytest.mark.parametrize("name", FINE)
def test_what_a_good_request_may_say(tmp_path: Path, name: str) -> None:
    case, change = FINE[name]
    rows = rows_of((*CLEAN, *ODD))
    before = rules(tmp_path, rows)
    row = case_named(rows, case)
    change(row)
    # An adapter is another run's, and a column that one row alone has is told for the set.
    left_out = {"provenance-not-constant", "column-patchy"}
    assert rules(tmp_path, rows) - before - left_out == set()


def test_limits_go_by_any_of_their_names() -> None:
    assert limits_of({}) == (NO_LIMIT, NO_LIMIT)
    assert limits_of({"max_tokens": 0, "max_new_tokens": None}) == (NO_LIMIT, NO_LIMIT)
    assert limits_of({"max_tokens": 7, "max_completion_tokens": 9}) == (7, 9)
    assert limits_of({"max_tokens": True, "max_new_tokens": 3}) == (3, 3)


def test_a_full_context_excuses_a_cut(tmp_path: Path) -> None:
    rows = rows_of((*CLEAN, *ODD))
    row = case_named(rows, "cut")
    change_json(row, "sampling_params", max_tokens=4096)
    assert "cut-before-limit" in rules(tmp_path, rows)
    full = row["prompt_tokens"] + row["completion_tokens"] + 1
    assert "cut-before-limit" not in rules(tmp_path, rows, context_length=full)
    assert "cut-before-limit" in rules(tmp_path, rows, context_length=full + 100)


def test_a_stop_string_is_looked_for_as_the_server_does(tmp_path: Path) -> None:
    """It looks at a few last tokens: a stop that was said letter by letter goes by unseen."""
    stop = "indivisible"
    sampling = {"temperature": 1.0, "stop": [stop]}
    spelled = Case(
        "spelled",
        content=f"It is {stop}, they say.",
        split=True,
        mode=Mode.RAW,
        sampling=sampling,
        sample_index=9,
    )
    assert len(codec().encode(stop)) + 1 < len(stop)
    assert rules(tmp_path, [row_of(spelled, KIMI, 0), *rows_of(CLEAN, first=1)]) == set()
    whole = replace(spelled, split=False)
    assert rules(tmp_path, [row_of(whole, KIMI, 0), *rows_of(CLEAN, first=1)]) == {"stop-passed"}


def test_a_turn_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    rows = rows_of(CLEAN)
    child = second_turn(rows, 0)
    assert rules(tmp_path, rows, Profile.RL) == set()
    del child["prompt_token_ids"][rows[0]["prompt_tokens"] + 2]
    child["prompt_tokens"] -= 1
    assert rules(tmp_path, rows, Profile.RL) == {"prompt-rewritten"}, "a warning where prefixes matter"
    assert rules(tmp_path, rows) == set(), "and a rate where templates may take thinking out"


def test_system_messages_may_change_between_turns(tmp_path: Path) -> None:
    rows = rows_of(CLEAN)
    at = next(n for n, row in enumerate(rows) if row["conversation_id"] == "system")
    child = second_turn(rows, at)
    child["messages"][0] = {**child["messages"][0], "content": "Answer in one word."}
    child["prompt_token_ids"][:0] = codec().encode("Answer in one word.")
    child["prompt_tokens"] = len(child["prompt_token_ids"])
    assert "parent-differs" not in rules(tmp_path, rows)


def test_prompts_of_few_rows_or_several_shapes_are_not_compared(tmp_path: Path) -> None:
    rows = []
    for number in range(12):
        row = copy.deepcopy(rows_of(CLEAN)[0])
        row |= {"sample_id": f"n{number}", "request_id": f"n{number}", "sample_index": number}
        if number % 3 == 0:  # a third was rendered by another revision of the template
            row["prompt_token_ids"][6:6] = [50]
            row["prompt_tokens"] += 1
        rows.append(row)
    assert rules(tmp_path, rows, prompt_shape_rows=10) == set(), "no shape is nearly everybody's"
    few = [rows[0], *(row for n, row in enumerate(rows) if n % 3)]
    assert rules(tmp_path, few) == set(), "nine rows tell nothing"


def test_a_passage_counts_where_it_ends_the_response() -> None:
    passage = list(range(100, 100 + PASSAGE))
    assert times_before([*passage, 1, *passage, 2, *passage]) == 3
    assert times_before([*passage, 1, *passage, 2]) == 1
    assert times_before([7] * 5) == 0


def test_parameters_of_the_clients_extra_body_count(tmp_path: Path) -> None:
    rows = rows_of(CLEAN)
    change_json(rows[0], "sampling_params", extra_body={"max_new_tokens": 5}, max_tokens=None)
    assert "limit-exceeded" in rules(tmp_path, rows)


def test_parameters_that_are_no_json_stop_nothing(tmp_path: Path) -> None:
    rows = rows_of(CLEAN)
    rows[0]["sampling_params"] = "max_tokens=5"
    assert "column-not-json" in rules(tmp_path, rows)
    rows[0]["sampling_params"] = json.dumps(
        {"mode": "tools", "stop": 5, "stop_token_ids": "x", "tool_choice": 3}
    )
    assert "row-unreadable" not in rules(tmp_path, rows)
