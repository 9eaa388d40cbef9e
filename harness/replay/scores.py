"""One row's numbers: how likely its tokens are to the model, and how far from what was recorded.

Place in the flow: after the answer, before the thresholds. Imports `harness.replay.expect`; numpy in
functions.

Each score is the higher the worse:

    excess      the response's NLL over what a sample would have had, in standard deviations
    rarest      its rarest token: -log of the chance that one of n samples is as rare
    outside     nats by which a token lies below what greedy, top-p, top-k or min-p could have given
    drift       mean |recorded - replayed| log-probability, where the row has recorded ones
    drift_max   the largest of them
    elsewhere   nats by which the response is likelier after another row's prompt than after its own; asked
                for where neither recorded logprobs nor greedy sampling tie the response to its prompt
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.replay.expect import Expected, Replayed, Sampling, at_temperature, expected

if TYPE_CHECKING:
    import numpy as np

HEAD = 8
"""Tokens that count as a response's beginning."""

FAR = 0.5
"""Nats by which one token must be off to be called so."""

DAMPING = 1.0
"""Added to the variance, in nats²: a row of near-certain tokens must not be judged by one of them alone."""

SCORES = ("excess", "rarest", "outside", "drift", "drift_max", "elsewhere")


@dataclass(frozen=True, slots=True)
class RowScores:
    """A row's numbers; None where a score does not apply (no recorded logprobs, greedy, nothing cut off).

    `nll` and `entropy` are means per token in nats, `entropy` being what a sample would have had on average.
    `argmax` and `beyond_top` are shares of the tokens. `head` and `rest` are the excess of the first `HEAD`
    tokens and of the others, `plain` the excess as if the row had been sampled at temperature 1. `oddest` are
    the most surprising tokens, by index, and `without` the excess without them and their followers. `off` are
    the tokens that sampling could not have given; `begins` is the first token that is far off, by what
    sampling could have given or by what was recorded (None: nowhere), and `before` the mean drift of the
    tokens before it.
    """

    tokens: int
    nll: float
    entropy: float
    argmax: float
    beyond_top: float
    excess: float | None
    rarest: float | None
    outside: float | None
    drift: float | None
    drift_p99: float | None
    drift_max: float | None
    head: float
    rest: float | None
    plain: float
    oddest: tuple[int, ...]
    off: int
    begins: int | None
    before: float | None
    without: float
    elsewhere: float | None = None

    def value(self, score: str) -> float | None:
        """Return the score of this name."""
        found: float | None = getattr(self, score)
        return found


def scores(
    replayed: Replayed,
    sampling: Sampling,
    *,
    recorded: Sequence[float] | None = None,
    vocabulary: int | None = None,
    elsewhere: Replayed | None = None,
) -> RowScores:
    """Return the numbers of one row of n > 0 tokens.

    `recorded` (n,) are its own log-probabilities; `elsewhere` is the same response after another prompt.
    """
    import numpy as np

    found = expected(replayed, sampling, vocabulary)
    plain = found if sampling == Sampling() else expected(replayed, Sampling(), vocabulary)
    over = -replayed.logprobs - found.mean
    count = len(over)
    cut = sampling.greedy or sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0
    each = _drift(replayed, sampling, recorded, vocabulary)
    drift = None if each is None else each[np.isfinite(each)]
    begins = _first(found.outside > FAR, *([] if each is None else [each > FAR]))
    # A greedy row has no spread of its own: what is odd in it is judged as if it had been sampled.
    odd = plain.rarity + (found.outside if sampling.greedy else 0.0)
    odd_first = np.argsort(-odd, kind="stable")[:3]
    kept = np.ones(count, dtype=bool)
    kept[odd_first] = False
    kept[np.minimum(odd_first + 1, count - 1)] = False
    return RowScores(
        tokens=count,
        nll=float(-replayed.logprobs.mean()),
        entropy=float(found.mean.mean()),
        argmax=float((replayed.logprobs >= replayed.top[:, 0]).mean()),
        beyond_top=float((replayed.logprobs < replayed.top[:, -1]).mean()),
        excess=None if sampling.greedy else _excess(over, found.variance),
        rarest=None if sampling.greedy else float(found.rarity.max() - np.log(count)),
        outside=float(found.outside.max()) if cut else None,
        drift=None if drift is None else float(drift.mean()),
        drift_p99=None if drift is None else float(np.quantile(drift, 0.99)),
        drift_max=None if drift is None else float(drift.max()),
        head=_of(plain, replayed, slice(0, HEAD)),
        rest=_of(plain, replayed, slice(HEAD, None)) if count > HEAD else None,
        plain=_of(plain, replayed, slice(None)),
        oddest=tuple(int(at) for at in odd_first),
        off=int((found.outside > 0).sum()),
        begins=begins,
        before=None if each is None or not begins else _mean(each[:begins]),
        without=_of(plain, replayed, kept),
        elsewhere=None if elsewhere is None else float(elsewhere.logprobs.sum() - replayed.logprobs.sum()),
    )


def _excess(over: np.ndarray[Any, Any], variance: np.ndarray[Any, Any]) -> float:
    return float(over.sum() / (variance.sum() + DAMPING) ** 0.5)


def _of(plain: Expected, replayed: Replayed, part: Any) -> float:
    return _excess((-replayed.logprobs - plain.mean)[part], plain.variance[part])


def _drift(
    replayed: Replayed, sampling: Sampling, recorded: Sequence[float] | None, vocabulary: int | None
) -> np.ndarray[Any, Any] | None:
    """Return |recorded - replayed| (n,), NaN for tokens that can't be compared; None where none can.

    A server may be set to record before the temperature (SGLANG_RETURN_ORIGINAL_LOGPROB): a row's numbers are
    all of one kind or the other, and it is the nearer one that counts.
    """
    import numpy as np

    if recorded is None or len(recorded) != len(replayed.logprobs):
        return None
    own = np.asarray(recorded, dtype=np.float64)
    scaled, sure = at_temperature(replayed, sampling, vocabulary)
    kinds = [np.abs(own - replayed.logprobs)]
    if sure.any():
        kinds.append(np.where(sure, np.abs(own - scaled), np.nan))
    elif not sampling.greedy:
        return None
    return min(kinds, key=lambda kind: float(np.nanmean(kind)))


def _mean(values: np.ndarray[Any, Any]) -> float | None:
    import numpy as np

    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _first(*flags: np.ndarray[Any, Any]) -> int | None:
    found = [int(one.argmax()) for one in flags if one.any()]
    return min(found) if found else None
