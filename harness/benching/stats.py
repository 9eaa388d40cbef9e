"""The statistics of a bench: whose turn it is, percentiles, and ratios with their spread.

Place in the flow: under the bench. Pure functions; imports the standard library, and numpy inside functions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

PERCENTILES = (50, 90, 99)

_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t for 95 %, two-sided, by degrees of freedom from 1 on. A bootstrap over a handful of repeats
would give intervals that are a good deal too narrow."""


def student(freedom: int) -> float:
    """Return Student's t for a two-sided interval of 95 %; `freedom` is 1 or more."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    # The first terms of the expansion about the normal quantile: right to three digits from here on.
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def turns(arms: Sequence[T], repeat: int) -> tuple[T, ...]:
    """Return the order of one repeat, from 0: forwards in the even ones, the same backwards in the odd ones.

    Two repeats together give each arm the same place on average, so that a drift (warming up, a neighbour's
    work) cancels. Each such pair begins with another arm, so that none always follows the same one.
    """
    first = repeat // 2 % len(arms) if arms else 0
    order = (*arms[first:], *arms[:first])
    return order if repeat % 2 == 0 else order[::-1]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A quantity of one arm over the same of another, each pair measured in one repeat.

    `value` is the geometric mean, `low` and `high` its interval of 95 % by Student's t over the logarithms;
    with one repeat there is none (both None).
    """

    value: float
    low: float | None
    high: float | None
    minimum: float
    median: float
    maximum: float
    repeats: int

    @property
    def half(self) -> float | None:
        """Return half the interval's width."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def spread(self) -> str:
        """Return the half width in per cent, in words with a space before; empty where there is none."""
        if self.half is None:
            return ""
        # So few repeats, or so unlike ones, that a number would only look like one.
        return " ± more than 100 %" if self.half > 1 else f" ± {100 * self.half:.1f} %"

    @property
    def holds_one(self) -> bool:
        """Return whether no difference was shown: the interval holds 1, or there is none."""
        return self.low is None or self.high is None or self.low <= 1.0 <= self.high


def ratio_of(ratios: Sequence[float]) -> Ratio | None:
    """Return the ratio of single ratios; None where there is none, or one that is not positive."""
    if not ratios or not all(math.isfinite(one) and one > 0 for one in ratios):
        return None
    logs = [math.log(one) for one in ratios]
    mean = statistics.fmean(logs)
    low = high = None
    if len(logs) > 1:
        half = student(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        low, high = math.exp(mean - half), math.exp(mean + half)
    return Ratio(
        value=math.exp(mean),
        low=low,
        high=high,
        minimum=min(ratios),
        median=statistics.median(ratios),
        maximum=max(ratios),
        repeats=len(ratios),
    )


def quotients(
    numerators: Sequence[float | None], denominators: Sequence[float | None]
) -> tuple[float, ...] | None:
    """Return the quotients pair by pair; None where a pair is not whole or not positive."""
    pairs = list(zip(numerators, denominators, strict=True))
    if not all(above and below and above > 0 and below > 0 for above, below in pairs):
        return None
    return tuple(float(above) / float(below) for above, below in pairs if above and below)


def percentiles(values: Sequence[float]) -> Mapping[str, float] | None:
    """Return `p50`, `p90`, `p99` of values, None where there are none."""
    if not values:
        return None
    import numpy as np

    found = np.percentile(np.asarray(values, dtype=float), PERCENTILES)
    return {f"p{name}": float(value) for name, value in zip(PERCENTILES, found, strict=True)}


def median(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are there."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None
