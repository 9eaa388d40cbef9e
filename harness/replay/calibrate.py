"""Thresholds learnt from reference rows, and what they say of a row and of the whole set.

Place in the flow: after the scores. Imports `harness.replay.scores`; the standard library otherwise.

Reference rows are responses of the very server that is asked, so that its numerics, and what the estimates
get wrong, are in their scores too. Two tests, neither of which takes a distribution of the scores on trust:

- **A row** differs where a score lies above its cut: above *every* reference row's (an honest row's chance of
  that is 1 / (n + 1), whatever the distribution) and, since a set has many rows, also so far above their
  middle that by the tail of that score's kind `FALSE_ALARMS` of a set's worth of honest rows would.
- **The set** is shifted where its scores as a whole rank above the reference's (Mann-Whitney, one-sided),
  and by more than a trifle: what is too small to see in a row, another quantisation say, shows in all.

One score needs no reference for its tail: that a sample of the model is x nats likelier after another prompt
than after its own has at most the chance exp(-x), as for every likelihood ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Literal

from harness.replay.scores import SCORES, RowScores

MIN_REFERENCE = 8
"""Reference rows that a score needs to be judged by."""

FALSE_ALARMS = 0.01
"""Sets of honest rows, by the share, in which one row or more may be found to differ."""

SET_CHANCE = 1e-3
"""The chance, over all scores, that honest rows rank so far above the reference."""

LIKE_NORMAL, LIKE_EXPONENTIAL = "normal", "exponential"
_TAILS: Mapping[str, str] = {
    "excess": LIKE_NORMAL,
    "rarest": LIKE_EXPONENTIAL,
    "elsewhere": LIKE_EXPONENTIAL,
}
"""How a score falls off where nothing but chance is in it. Others are numerics, taken as log-normal."""

_LEAST_SPREAD: Mapping[str, float] = {
    "excess": 1.0,
    "rarest": 1.0,
    "outside": 0.5,
    "drift": 0.15,
    "drift_max": 0.3,
    "elsewhere": 1.0,
}
"""In the units of `_scale`: reference rows that agree by chance must make no cut that honest rows break."""

_TRIFLE: Mapping[str, float] = {
    "excess": 0.25,
    "rarest": 0.5,
    "outside": 0.5,
    "drift": 0.3,
    "drift_max": 0.3,
    "elsewhere": 1.0,
}
"""By so much the set's middle must lie above the reference's: twice the drift, a quarter of a deviation."""

_SMALLEST = 1e-4
"""Nats below which drifts, and distances outside of what sampling gives, are all one: float32's own."""


def _scale(score: str, value: float) -> float:
    """Return a score on the scale on which it is compared: numerics by their decimal logarithm."""
    return value if score in _TAILS else math.log10(max(value, 0.0) + _SMALLEST)


def _unscale(score: str, value: float) -> float:
    return value if score in _TAILS else 10**value - _SMALLEST


@dataclass(frozen=True, slots=True)
class Threshold:
    """One score's cut and the reference that it was learnt from; all but `rows` in the score's own unit.

    `spread` is on the scale of comparison: deviations, or decades for `outside` and the drifts.
    """

    score: str
    cut: float
    middle: float
    largest: float
    spread: float
    rows: int


def learn(reference: Sequence[RowScores], rows: int) -> dict[str, Threshold]:
    """Return the threshold of each score that enough reference rows have, for a set of so many rows."""
    found = {}
    for score in SCORES:
        values = [value for one in reference if (value := one.value(score)) is not None]
        if len(values) < MIN_REFERENCE:
            continue
        scaled = sorted(_scale(score, value) for value in values)
        middle = median(scaled)
        spread = max(_upper_spread(scaled, middle), _LEAST_SPREAD[score])
        chance = FALSE_ALARMS / max(rows, 1) / len(SCORES)
        if _TAILS.get(score) == LIKE_EXPONENTIAL:
            # Only the ratio's tail starts from 0; its middle lies far below.
            far = (0.0 if score == "elsewhere" else middle) + _tail(score, spread) * math.log(1 / chance)
        else:
            # n reference rows know their own spread this badly, at one in a thousand.
            unsure = 1 + 3 / math.sqrt(2 * len(values))
            far = middle + spread * unsure * NormalDist().inv_cdf(1 - chance)
        cut = max(far, scaled[-1] + _LEAST_SPREAD[score] / 10)
        found[score] = Threshold(
            score,
            cut=_unscale(score, cut),
            middle=_unscale(score, middle),
            largest=_unscale(score, scaled[-1]),
            spread=spread,
            rows=len(values),
        )
    return found


def _tail(score: str, spread: float) -> float:
    return 1.0 if score == "elsewhere" else spread


def _upper_spread(scaled: Sequence[float], middle: float) -> float:
    """Return a standard deviation out of the middle half's upper part: a few odd rows don't move it."""
    upper = scaled[math.ceil(0.8413 * len(scaled)) - 1]
    return upper - middle


def beyond(scores: RowScores, thresholds: Mapping[str, Threshold]) -> tuple[str, ...]:
    """Return the scores by which a row differs from the server's own responses, the worst first."""
    over = []
    for name, threshold in thresholds.items():
        value = scores.value(name)
        if value is not None and value > threshold.cut:
            far = (_scale(name, value) - _scale(name, threshold.middle)) / threshold.spread
            over.append((far, name))
    return tuple(name for _, name in sorted(over, reverse=True))


def conformal(value: float, reference: Sequence[float]) -> float:
    """Return the share of reference rows, and the row itself, that are as bad or worse: an exact p-value."""
    return (1 + sum(one >= value for one in reference)) / (len(reference) + 1)


@dataclass(frozen=True, slots=True)
class SetTest:
    """One score over the set: `p` of the ranks; `above`, how often a row outranks a reference row."""

    score: str
    rows: int
    p: float
    above: float
    middle: float
    reference: float
    shifted: bool


def set_tests(
    rows: Sequence[RowScores], reference: Sequence[RowScores], thresholds: Mapping[str, Threshold]
) -> tuple[SetTest, ...]:
    """Compare all rows with all reference rows, score by score."""
    found = []
    for name in thresholds:
        ours = [_scale(name, value) for row in rows if (value := row.value(name)) is not None]
        theirs = [_scale(name, value) for row in reference if (value := row.value(name)) is not None]
        if len(ours) < MIN_REFERENCE or len(theirs) < MIN_REFERENCE:
            continue
        p, above = ranked_above(ours, theirs)
        here, there = median(ours), median(theirs)
        found.append(
            SetTest(
                name,
                len(ours),
                p,
                above,
                _unscale(name, here),
                _unscale(name, there),
                shifted=p * len(SCORES) < SET_CHANCE and here - there > _TRIFLE[name],
            )
        )
    return tuple(found)


def ranked_above(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Return Mann-Whitney's one-sided p (normal, ties corrected) and the share of pairs that ours wins."""
    m, n = len(ours), len(theirs)
    both = sorted([(value, 0) for value in ours] + [(value, 1) for value in theirs])
    ranks, ties, at = 0.0, 0.0, 0
    while at < len(both):
        end = at
        while end < len(both) and both[end][0] == both[at][0]:
            end += 1
        size = end - at
        ranks += (at + 1 + end) / 2 * sum(1 for _, whose in both[at:end] if whose == 0)
        ties += size**3 - size
        at = end
    above = ranks - m * (m + 1) / 2
    total = m + n
    variance = m * n / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0, 0.5
    z = (above - m * n / 2 - 0.5) / math.sqrt(variance)
    return 0.5 * math.erfc(z / math.sqrt(2)), above / (m * n)


Verdict = Literal[
    "consistent", "another-model", "another-prompt", "shifted", "swapped", "tokens-replaced",
    "other-sampling", "drifted", "other-logprobs",
]  # fmt: skip

VERDICTS: Mapping[str, str] = {
    "consistent": "as likely to this model as its own responses",
    "another-model": "improbable to this model throughout: other weights, or another model's tokens",
    "another-prompt": "improbable after this prompt alone: another chat template, or another conversation",
    "shifted": "the ids are moved: by one place against the prompt, or each by one in value",
    "swapped": "the response of another row",
    "tokens-replaced": "the model's own up to a token, or but for a few, that it would not have said there",
    "other-sampling": "probable, but no sample under the row's own temperature, top-p, top-k or min-p",
    "drifted": "probable, and the recorded logprobs a little off: other weights, quantisation or kernels",
    "other-logprobs": "probable, and the recorded logprobs far off: not this model's for these tokens",
}
"""What each verdict of a row means. All but `consistent` are findings."""

FAR_OFF = 0.3
"""Nats of mean drift that no quantisation of the same weights is expected to make."""

IMPROBABLE = 4.0
"""Standard deviations over plain sampling at which a response is no likely one of this model's."""

OWN = 3
"""Tokens that a row must have in common with the model before one that is off counts as put there."""


def judge(scores: RowScores, thresholds: Mapping[str, Threshold]) -> Verdict:
    """Return a row's verdict by its own numbers; trying other ids may tell more (see `diagnose`)."""
    over = beyond(scores, thresholds)
    if not over:
        return "consistent"
    there = scores.nll - (scores.elsewhere or 0.0) / scores.tokens
    if "elsewhere" in over and there < 2 * scores.entropy + 0.5:
        return "swapped"
    improbable = scores.plain > IMPROBABLE or "excess" in over
    mended = scores.without < IMPROBABLE / 2
    fits = "drift" not in thresholds or (scores.before or 0.0) <= thresholds["drift"].cut
    if (scores.begins or 0) >= OWN and fits and {"drift", "drift_max", "outside"} & {*over}:
        return "tokens-replaced"
    if improbable and scores.rest is not None and scores.rest < IMPROBABLE / 2:
        return "another-prompt"
    if mended and (improbable or "rarest" in over):
        return "tokens-replaced"
    if improbable:
        return "another-model"
    if set(over) <= {"drift", "drift_max"}:
        return "other-logprobs" if (scores.drift or 0.0) > FAR_OFF else "drifted"
    return "other-sampling"
