"""The numbers behind a replay, held against what they stand for: exact sums, brute force, simulations."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.replay.ask import Limits, NotReplayed, read
from harness.replay.calibrate import (
    SET_CHANCE,
    beyond,
    conformal,
    judge,
    learn,
    ranked_above,
    set_tests,
)
from harness.replay.expect import Replayed, Sampling, at_temperature, expected, sampling_of
from harness.replay.scores import RowScores, scores
from harness.wire_errors import MalformedResponse

PLAIN = Sampling()
LOGITS = st.lists(st.floats(-8, 8), min_size=2, max_size=12)


def softmax(logits: Any) -> Any:
    weights = np.exp(np.asarray(logits, dtype=np.float64) - np.max(logits))
    return weights / weights.sum()


def replayed(logits: Any, tokens: Any, top: int | None = None) -> Replayed:
    """What the server would say of `tokens` (n,) at positions with these `logits` (n, v)."""
    logprobs = np.log(np.stack([softmax(one) for one in logits]))
    own = logprobs[np.arange(len(tokens)), tokens]
    return Replayed(own, -np.sort(-logprobs, axis=1)[:, : top or logprobs.shape[1]])


def model_rows(
    draw: np.random.Generator,
    count: int,
    sampling: Sampling = PLAIN,
    *,
    wrong: float = 0.0,
    length: int = 40,
) -> list[RowScores]:
    """Rows of a simulated model of 500 tokens; a share of the tokens is drawn from another one."""
    made = []
    for _ in range(count):
        logits = draw.normal(size=(length, 500)) * 3
        scale = sampling.temperature or 1.0
        tokens = [
            int(draw.integers(500))
            if draw.random() < wrong
            else int(draw.choice(500, p=softmax(one / scale)))
            for one in logits
        ]
        if sampling.greedy:
            tokens = [int(one.argmax()) for one in logits]
        made.append(scores(replayed(logits, tokens, 20), sampling, vocabulary=500))
    return made


@given(LOGITS, st.data())
def test_with_every_token_known_the_expectation_is_the_entropy(logits: list[float], data: Any) -> None:
    token = data.draw(st.integers(0, len(logits) - 1))
    found = expected(replayed([logits], [token]), Sampling(), len(logits))
    p = softmax(logits)
    entropy = float(-(p * np.log(p)).sum())
    variance = float((p * (np.log(p) + entropy) ** 2).sum())
    assert found.mean[0] == pytest.approx(entropy, abs=1e-3)
    assert found.variance[0] == pytest.approx(variance, abs=1e-2)
    below = p[p <= p[token]].sum()
    assert math.exp(-found.rarity[0]) == pytest.approx(below, abs=1e-6)
    assert found.outside[0] == 0


@given(LOGITS, st.floats(0.2, 3.0), st.data())
def test_logprobs_are_brought_to_the_rows_temperature(
    logits: list[float], temperature: float, data: Any
) -> None:
    """SGLang records output logprobs after the temperature and gives a prompt's before it."""
    token = data.draw(st.integers(0, len(logits) - 1))
    scaled, sure = at_temperature(replayed([logits], [token]), Sampling(temperature), len(logits))
    exact = math.log(softmax(np.asarray(logits) / temperature)[token])
    if sure[0]:
        assert scaled[0] == pytest.approx(exact, abs=0.02)
    if temperature <= 1:
        assert sure[0]


@given(
    LOGITS,
    st.floats(0.3, 2.0),
    st.floats(0.05, 1.0),
    st.integers(0, 6),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.data(),
)
def test_a_token_is_outside_exactly_where_sampling_could_not_give_it(
    logits: list[float], temperature: float, top_p: float, top_k: int, min_p: float, data: Any
) -> None:
    token = data.draw(st.integers(0, len(logits) - 1))
    sampling = Sampling(temperature, top_p, top_k, min_p)
    found = expected(replayed([logits], [token]), sampling, len(logits))
    q = softmax(np.asarray(logits) / temperature)
    order = np.argsort(-q, kind="stable")
    # The engine's own rule: tokens by probability, cut where the mass before them is above top-p.
    before = np.cumsum(q[order]) - q[order]
    allowed = order[(before <= top_p) & (q[order] >= min_p * q.max())][
        : 1 if sampling.greedy else top_k or None
    ]
    least = q[allowed].min()
    if (
        abs(q[token] - least) > 1e-9
        and np.abs(before - top_p).min() > 1e-6
        and np.abs(q - min_p * q.max()).min() > 1e-9
    ):
        assert (found.outside[0] > 0) == (q[token] < least)


@given(LOGITS)
def test_greedy_is_the_most_likely_token_and_nothing_else(logits: list[float]) -> None:
    best = int(np.argmax(logits))
    for token in range(len(logits)):
        found = expected(replayed([logits], [token]), Sampling(0.0), len(logits))
        assert found.mean[0] == pytest.approx(-math.log(softmax(logits)[best]))
        behind = logits[best] - logits[token]
        assert found.outside[0] == pytest.approx(behind, abs=1e-9) and found.outside[0] >= 0


@pytest.mark.parametrize(("sampling", "near"), [(PLAIN, 0.35), (Sampling(0.6), 0.35), (Sampling(1.3), 0.8)])
def test_honest_rows_have_no_excess_on_average_and_one_deviation(sampling: Sampling, near: float) -> None:
    """Under temperature 1 an honest row's NLL is the entropy on average; under others its own expectation.

    Above 1 the tokens beyond the K weigh more, whose shape is a guess; the reference has the same bias.
    """
    found = [one.excess for one in model_rows(np.random.default_rng(1), 200, sampling)]
    values = [value for value in found if value is not None]
    assert len(values) == 200
    assert abs(float(np.mean(values))) < near
    assert 0.7 < float(np.std(values)) < 1.2


def test_a_greedy_row_is_judged_by_what_greedy_could_give() -> None:
    row = model_rows(np.random.default_rng(1), 1, Sampling(0.0))[0]
    assert row.excess is None and row.outside == 0.0 and row.argmax == 1.0


@settings(max_examples=10)
@given(st.integers(0, 1 << 30))
def test_honest_sets_pass_and_foreign_ones_do_not(seed: int) -> None:
    draw = np.random.default_rng(seed)
    reference, honest = model_rows(draw, 24), model_rows(draw, 24)
    foreign = model_rows(draw, 24, wrong=1.0)
    thresholds = learn(reference, 24)
    assert sum(judge(row, thresholds) != "consistent" for row in honest) <= 1
    assert not any(test.shifted for test in set_tests(honest, reference, thresholds))
    assert all(judge(row, thresholds) == "another-model" for row in foreign)
    assert any(test.shifted for test in set_tests(foreign, reference, thresholds))


def test_what_is_too_small_for_a_row_is_seen_in_the_set() -> None:
    draw = np.random.default_rng(3)
    reference, slightly = model_rows(draw, 64), model_rows(draw, 64, wrong=0.03)
    thresholds = learn(reference, 64)
    assert sum(judge(row, thresholds) == "consistent" for row in slightly) > 48
    assert any(test.shifted for test in set_tests(slightly, reference, thresholds))


def test_drift_tells_small_from_large() -> None:
    draw = np.random.default_rng(5)
    base = model_rows(draw, 40)

    def drifting(row: RowScores, size: float) -> RowScores:
        mean = size * (1 + draw.random())
        return replace(row, drift=mean, drift_max=4 * mean, drift_p99=3 * mean, begins=5, before=mean)

    reference = [drifting(row, 1e-3) for row in base]
    thresholds = learn(reference, 40)
    assert judge(drifting(base[0], 1e-3), thresholds) == "consistent"
    assert judge(drifting(base[0], 0.1), thresholds) == "drifted"
    assert judge(drifting(base[0], 1.0), thresholds) == "other-logprobs"
    # Twice the drift hides in a row, and shows in forty.
    twice = [drifting(row, 2.2e-3) for row in base]
    assert [test.score for test in set_tests(twice, reference, thresholds) if test.shifted]


def test_a_score_without_enough_reference_is_not_judged_by() -> None:
    rows = model_rows(np.random.default_rng(2), 7)
    assert learn(rows, 10) == {}
    assert beyond(rows[0], {}) == ()


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30), st.lists(st.integers(0, 9), min_size=1, max_size=30)
)
def test_ranks_are_the_pairs_counted_one_by_one(ours: list[int], theirs: list[int]) -> None:
    p, above = ranked_above([float(v) for v in ours], [float(v) for v in theirs])
    pairs = sum((one > other) + (one == other) / 2 for one in ours for other in theirs)
    assert above == pytest.approx(pairs / len(ours) / len(theirs))
    assert 0 <= p <= 1


def test_ranks_of_equals_say_nothing_and_of_separated_ones_all() -> None:
    assert ranked_above([1.0] * 20, [1.0] * 20) == (1.0, 0.5)
    assert ranked_above([2.0 + i for i in range(20)], [-1.0 - i for i in range(20)])[0] < SET_CHANCE / 100
    draw = np.random.default_rng(0)
    low = sum(
        ranked_above(list(draw.normal(size=20)), list(draw.normal(size=20)))[0] < 0.05 for _ in range(400)
    )
    assert low < 40


@given(st.floats(-5, 5), st.lists(st.floats(-5, 5), max_size=20))
def test_the_conformal_share_counts_the_row_itself(value: float, reference: list[float]) -> None:
    found = conformal(value, reference)
    assert found == (1 + sum(one >= value for one in reference)) / (1 + len(reference))
    assert 0 < found <= 1


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({}, Sampling()),
        ({"temperature": 0}, Sampling(0.0)),
        ({"temperature": 0.6, "top_p": 0.95, "top_k": -1}, Sampling(0.6, 0.95)),
        ({"temperature": None, "top_k": 20, "min_p": 0.1}, Sampling(top_k=20, min_p=0.1)),
        ({"extra_body": {"top_k": 5}}, Sampling(top_k=5)),
        ({"temperature": True, "top_p": "x"}, Sampling()),
    ],
)
def test_sampling_is_read_as_the_engine_takes_it(params: Any, wanted: Sampling) -> None:
    assert sampling_of(params) == wanted


def answer(ids: list[int], logprobs: list[float | None], top: Any = None) -> bytes:
    likeliest = top or [None if value is None else [[-0.1, 7, None], [-2.5, 8, None]] for value in logprobs]
    entries = [[value, one, None] for value, one in zip(logprobs, ids, strict=True)]
    meta = {"input_token_logprobs": entries, "input_top_logprobs": likeliest}
    return json.dumps({"text": "", "meta_info": meta}).encode()


def test_the_first_entry_stands_before_the_response() -> None:
    """SGLang's first entry is null: it belongs to the prompt's last id, which nothing predicts."""
    found = read(answer([5, 10, 11], [None, -1.0, -2.0]), [10, 11])
    assert found.logprobs.tolist() == [-1.0, -2.0]
    assert found.top.tolist() == [[-0.1, -2.5]] * 2 and found.first == (7, 8)


@pytest.mark.parametrize(
    "body",
    [
        answer([10, 11], [None, -2.0]),
        answer([5, 10, 12], [None, -1.0, -2.0]),
        answer([5, 10], [None, -1.0]),
        answer([5, 10, 11], [None, -1.0, -2.0], [None, [[-1.0, 1, None]], []]),
        b'{"meta_info": {}}',
        b"[]",
    ],
)
def test_an_answer_of_another_form_or_other_ids_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedResponse):
        read(body, [10, 11])


def test_the_vocabularys_last_id_comes_back_as_0() -> None:
    assert read(answer([5, 0, 11], [None, -1.0, -2.0]), [63, 11], 64).logprobs[0] == -1.0
    with pytest.raises(MalformedResponse):
        read(answer([5, 0, 11], [None, -1.0, -2.0]), [10, 11], 64)


@pytest.mark.parametrize(
    ("ids", "reason"), [([1, 64], "no-such-id"), ([-1, 3], "no-such-id"), ([1] * 9, "too-long")]
)
def test_ids_that_would_end_the_server_are_not_sent(ids: list[int], reason: str) -> None:
    with pytest.raises(NotReplayed) as told:
        Limits(vocabulary=64, context=9).check(ids)
    assert told.value.reason == reason
