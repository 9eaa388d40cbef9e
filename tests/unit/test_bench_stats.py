"""The statistics of a bench: fair turns, ratios that are 1 for equal things, spreads that hold what they say.

Place in the flow: tests `harness.benching.stats` and the sentences made of ratios; no server.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.benching.records import TARGET, share_words
from harness.benching.results import UNEQUAL, cost_words, front_words
from harness.benching.stats import Ratio, median, percentiles, quotients, ratio_of, student, turns

ARMS = st.integers(1, 6).map(lambda count: tuple("abcdef"[:count]))
POSITIVE = st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=20)


def spread(value: float, low: float, high: float) -> Ratio:
    return Ratio(value, low, high, low, value, high, 6)


@given(ARMS, st.integers(0, 30))
def test_each_repeat_asks_every_mode_once_and_the_next_one_goes_back(
    arms: tuple[str, ...], pair: int
) -> None:
    there, back = turns(arms, 2 * pair), turns(arms, 2 * pair + 1)
    assert sorted(there) == sorted(arms)
    assert back == there[::-1]


@given(ARMS, st.integers(1, 20))
def test_over_an_even_number_of_repeats_no_mode_stands_earlier_than_another(
    arms: tuple[str, ...], pairs: int
) -> None:
    places: Counter[str] = Counter()
    for repeat in range(2 * pairs):
        for place, arm in enumerate(turns(arms, repeat)):
            places[arm] += place
    assert len(set(places.values())) == 1


@given(st.integers(2, 5), st.integers(1, 6), st.floats(-0.05, 0.05))
def test_a_steady_drift_cancels(count: int, pairs: int, drift: float) -> None:
    """Modes that are equal on a machine that gets slower all the time come out equal."""
    arms = tuple("abcde"[:count])
    rates: dict[str, list[float]] = {arm: [] for arm in arms}
    for repeat in range(2 * pairs):
        for place, arm in enumerate(turns(arms, repeat)):
            rates[arm].append(100 * math.exp(drift * (repeat * count + place)))
    ratio = ratio_of(quotients(rates[arms[1]], rates[arms[0]]) or ())
    assert ratio is not None and ratio.value == pytest.approx(1.0)


@given(POSITIVE)
def test_a_series_over_itself_is_one_without_spread(series: list[float]) -> None:
    ratio = ratio_of(quotients(series, series) or ())
    assert ratio is not None
    assert ratio.value == ratio.low == ratio.high == ratio.minimum == ratio.maximum == 1.0
    assert ratio.half == 0.0 and ratio.holds_one and ratio.repeats == len(series)


@given(POSITIVE, st.floats(0.1, 10))
def test_a_ratio_is_that_of_the_units_and_turns_over(series: list[float], factor: float) -> None:
    plain, scaled = ratio_of(series), ratio_of([factor * one for one in series])
    turned = ratio_of([1 / one for one in series])
    assert plain and scaled and turned
    assert scaled.value == pytest.approx(factor * plain.value)
    assert turned.value == pytest.approx(1 / plain.value)
    assert plain.low is not None and turned.high is not None
    assert turned.high == pytest.approx(1 / plain.low)
    tolerance = 1 + 1e-9
    assert plain.minimum <= plain.value * tolerance and plain.value <= plain.maximum * tolerance
    assert plain.minimum <= plain.median <= plain.maximum


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """With six repeats too: a bootstrap over so few holds it in some 85 of 100 cases."""
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(2000):
        ratio = ratio_of([float(one) for one in np.exp(draw.normal(0.0, 0.05, size=6))])
        held += bool(ratio and ratio.holds_one)
    assert 0.935 < held / 2000 < 0.965


def test_students_t_falls_towards_the_normal_quantile() -> None:
    values = [student(freedom) for freedom in range(1, 500)]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(12.706) and values[59] == pytest.approx(2.000, abs=1e-3)
    assert values[-1] == pytest.approx(1.96, abs=0.01)


def test_one_repeat_has_no_spread_and_nothing_no_ratio() -> None:
    once = ratio_of([0.5])
    assert once is not None and once.low is None and once.half is None
    assert ratio_of([]) is None and ratio_of([1.0, 0.0]) is None and ratio_of([1.0, math.nan]) is None
    assert quotients([1.0, None], [1.0, 1.0]) is None and quotients([1.0], [0.0]) is None
    assert median([]) is None and median([None, 3.0]) == 3.0 and percentiles([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_stand_in_order_and_in_range(values: list[float]) -> None:
    found = percentiles(values)
    assert found is not None and list(found) == ["p50", "p90", "p99"]
    assert min(values) <= found["p50"] <= found["p90"] <= found["p99"] <= max(values)


def test_a_cost_within_the_spread_is_called_none_and_bounded() -> None:
    told = cost_words("reasoning", spread(0.988, 0.970, 1.006), "8 at once", unequal=False)
    assert "reasoning mode costs 1.2 % ± 1.8 % of throughput: no measurable cost" in told
    assert "none above 3.0 %" in told and UNEQUAL not in told


def test_a_cost_beyond_the_spread_is_a_cost_and_a_gain_a_gain() -> None:
    cost = cost_words("tools", spread(0.90, 0.88, 0.92), "1 at once", unequal=False)
    assert "tools mode costs 10.0 % ± 2.0 % of throughput" in cost and "no measurable" not in cost
    gain = cost_words("tools", spread(1.05, 1.03, 1.07), "1 at once", unequal=False)
    assert "gains 5.0 %" in gain and "costs" not in gain


@given(st.floats(0.5, 1.5), st.floats(0.01, 0.2))
def test_unequal_work_is_named_in_every_sentence(value: float, half: float) -> None:
    ratio = spread(value, value - half, value + half)
    assert UNEQUAL in cost_words("tools", ratio, "8 at once", unequal=True)
    assert UNEQUAL in share_words("bench_serving", ratio, "8 at once", unequal=True)
    assert UNEQUAL in cost_words("tools", None, "8 at once", unequal=True)


def test_what_the_parsers_cost_the_servers_own_process_is_told_both_ways() -> None:
    assert "35.0 % ± 5.0 % more processor time" in front_words("tools", spread(1.35, 1.30, 1.40))
    told = front_words("raw", spread(0.99, 0.95, 1.03))
    assert "less processor time" in told and "no measurable difference" in told


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (TARGET, 1.02, "is met"),
        (0.90, TARGET - 0.01, "is missed"),
        (TARGET - 0.01, 1.02, "is met on average"),
        (0.90, TARGET + 0.01, "is missed on average"),
    ],
)
def test_the_target_is_met_missed_or_open(low: float, high: float, said: str) -> None:
    assert said in share_words("bench_serving", spread((low + high) / 2, low, high), "", unequal=False)
