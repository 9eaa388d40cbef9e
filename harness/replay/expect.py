"""What sampling from the model would have given at each position, out of its K most likely tokens.

Place in the flow: under the scores. Imports numpy inside functions; otherwise the standard library only.

The server tells, for each position, the log-probability of the row's token and those of the K most likely
ones, at temperature 1. From these follows what a sample under the row's own parameters would have cost there
(the expected negative log-likelihood and its variance), which tokens it could have been, and how unlikely a
token at most as likely as the row's is. The tokens beyond the K have a known mass but no known shape: they
are taken as spread between the K-th's probability and their own mean. The same is done for the reference
rows, so that what this gets wrong is wrong on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float64]]

GREEDY_BELOW = 1e-6
"""SGLang takes a temperature below this for 0."""

SURE = 0.01
"""A log-probability at another temperature that is known no better than this, in nats, is not compared."""

UNKNOWN_VOCABULARY = 100_000


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a row was sampled; temperature 0 is greedy, `top_k` 0 cuts nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @property
    def greedy(self) -> bool:
        """Say whether each token is the most likely one."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


def sampling_of(params: Mapping[str, Any]) -> Sampling:
    """Read a row's `sampling_params`. What they leave out is the engine's default (temperature 1, no cuts).

    Over chat the model's own generation config fills in what the request left out, and nothing in the row
    tells it; models ship with lower temperatures, under which tokens are likelier than is expected here.
    """
    more = params.get("extra_body")
    if isinstance(more, Mapping):
        params = {**more, **params}

    def number(name: str, default: float) -> float:
        value = params.get(name)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if good else default  # type: ignore[arg-type]

    top_k = int(number("top_k", -1.0))
    return Sampling(
        temperature=number("temperature", 1.0),
        top_p=number("top_p", 1.0),
        top_k=top_k if 0 < top_k < 1 << 30 else 0,
        min_p=number("min_p", 0.0),
    )


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the server says of one row's response: `logprobs` (n,) of its tokens, `top` (n, k), descending.

    Natural logarithms at temperature 1, whatever the row was sampled with. `first` holds the ids of the first
    position's most likely tokens, in that order.
    """

    logprobs: Floats
    top: Floats
    first: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """Per position (n,), in nats: `mean` and `variance` of the negative log-likelihood of a sample.

    `outside` is how far the row's token lies below the least likely one that sampling could have given (0: it
    could have been), `rarity` -log of the probability of a token at most as likely as the row's.
    """

    mean: Floats
    variance: Floats
    outside: Floats
    rarity: Floats


def expected(replayed: Replayed, sampling: Sampling, vocabulary: int | None = None) -> Expected:
    """Return what a sample under `sampling` would have been at each position."""
    import numpy as np

    top, own = replayed.top, replayed.logprobs
    tail, typical = _tail(top, vocabulary)
    temperature = 1.0 if sampling.greedy else sampling.temperature
    head, beyond, _ = _weights(top, tail, typical, temperature)
    total = head.sum(axis=1) + beyond
    head, beyond = head / total[:, None], beyond / total
    keep, kept_beyond = _support(head, beyond, sampling)
    cost = -top
    cost_beyond = -(top[:, -1] + typical) / 2
    spread_beyond = (top[:, -1] - typical) ** 2 / 12
    mass = (head * keep).sum(axis=1) + kept_beyond
    share, share_beyond = head * keep / mass[:, None], kept_beyond / mass
    mean = (share * cost).sum(axis=1) + share_beyond * cost_beyond
    variance = (share * (cost - mean[:, None]) ** 2).sum(axis=1)
    variance += share_beyond * ((cost_beyond - mean) ** 2 + spread_beyond)
    floor = np.where(kept_beyond > 0, -np.inf, np.where(keep, top, np.inf).min(axis=1))
    likelier = (head * (top > own[:, None])).sum(axis=1)
    among = own >= top[:, -1]
    # Beyond the K the mass below a token falls slower than its probability: as its root, for Zipf's law.
    below = np.where(among, 1 - likelier, beyond * np.exp(np.minimum(own - top[:, -1], 0.0) / 2))
    rarity = -np.log(np.clip(below, 1e-30, 1.0))
    return Expected(mean, variance, np.maximum(floor - own, 0.0), rarity)


def at_temperature(
    replayed: Replayed, sampling: Sampling, vocabulary: int | None = None
) -> tuple[Floats, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return the tokens' log-probabilities as SGLang records them, after the temperature, and which are sure.

    SGLang 0.5.23 returns output logprobs of logits / temperature, before top-p and top-k, and the prompt's of
    the plain logits. Greedy rows are recorded at temperature 1.
    """
    import numpy as np

    if sampling.greedy or sampling.temperature == 1.0:
        return replayed.logprobs, np.ones(len(replayed.logprobs), dtype=bool)
    tail, typical = _tail(replayed.top, vocabulary)
    head, beyond, error = _weights(replayed.top, tail, typical, sampling.temperature)
    # The weights are relative to the most likely token's.
    scaled = (replayed.logprobs - replayed.top[:, 0]) / sampling.temperature
    return scaled - np.log(head.sum(axis=1) + beyond), error <= SURE


def _tail(top: Floats, vocabulary: int | None) -> tuple[Floats, Floats]:
    """Return the mass beyond the K most likely tokens and the logarithm of its mean per token."""
    import numpy as np

    mass = np.clip(1.0 - np.exp(top).sum(axis=1), 0.0, 1.0)
    mass = np.where(mass < 1e-6, 0.0, mass)  # what rounding leaves of float32 numbers
    others = max((vocabulary or UNKNOWN_VOCABULARY) - top.shape[1], 1)
    return mass, np.minimum(np.log(np.maximum(mass, 1e-30) / others), top[:, -1])


def _weights(top: Floats, tail: Floats, typical: Floats, temperature: float) -> tuple[Floats, Floats, Floats]:
    """Return the weights p^(1/T) of the K tokens (n, k), of all others (n,), and how badly the sum is known.

    All relative to the most likely token's weight. The others' sum lies between that of a tail as flat as its
    mass allows and one that sits at the K-th's probability; the geometric mean of both is taken.
    """
    import numpy as np

    first, power = top[:, :1], 1.0 / temperature
    head = np.exp((top - first) * power)
    one = np.log(np.maximum(tail, 1e-30)) + (power - 1) * top[:, -1]
    other = np.log(np.maximum(tail, 1e-30)) + (power - 1) * typical
    middle = (one + other) / 2 - power * first[:, 0]
    beyond = np.where(tail > 0, np.exp(middle), 0.0)
    edges = [np.exp(edge - power * first[:, 0]) * (tail > 0) for edge in (one, other)]
    total = head.sum(axis=1)
    error = np.abs(np.log((total + edges[0]) / (total + edges[1]))) / 2
    return head, beyond, error


def _support(
    head: Floats, beyond: Floats, sampling: Sampling
) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], Floats]:
    """Return which of the K tokens sampling may give, and the mass of the others that it may."""
    import numpy as np

    keep = np.ones(head.shape, dtype=bool)
    kept = beyond.copy()
    if sampling.greedy:
        keep[:, 1:] = False
        return keep, np.zeros_like(kept)
    before = np.cumsum(head, axis=1) - head
    if sampling.top_p < 1.0:
        keep &= before <= sampling.top_p
        kept = np.clip(sampling.top_p - head.sum(axis=1), 0.0, kept)
    if sampling.top_k:
        keep[:, sampling.top_k :] = False
        if sampling.top_k <= head.shape[1]:
            kept = np.zeros_like(kept)
    if sampling.min_p > 0.0:
        keep &= head >= sampling.min_p * head[:, :1]
        kept = np.where(head[:, -1] >= sampling.min_p * head[:, 0], kept, 0.0)
    return keep, kept
