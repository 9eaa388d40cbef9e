"""One row's ids prefilled with logprobs: what is sent, what comes back, how often it is tried.

Place in the flow: between the rows and their scores. Imports `harness.http`, `harness.replay.expect` and the
wire's errors; numpy inside functions.

SGLang 0.5.23 (`scheduler_components/logprob_result_processor.py`): with `logprob_start_len` s the answer has
an entry for each id from s on, the first of them null, since it stands for no prediction; the k-th holds the
log-probability of the k-th id. So s is one before the response. The vocabulary's last id comes back as 0
there. Prefix caching stops before s, and with `max_new_tokens` 0 nothing is generated.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.http import HttpSession
from harness.recording.generate import LONGEST_PAUSE, PASSING
from harness.replay.expect import Replayed
from harness.wire_errors import HttpStatusError, MalformedResponse, ServerGone, ServerTimeout
from harness.wire_json import json_object, malformed, raise_if_error

TOP = 20
"""How many of the most likely tokens are asked for at each position."""


class NotReplayed(Exception):
    """A row that can't be asked about: the reason in one word, and in detail."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server takes: ids below `vocabulary`, fewer than `context` of them; None: not known."""

    vocabulary: int | None = None
    context: int | None = None

    def check(self, ids: Sequence[int]) -> None:
        """Raise `NotReplayed` for ids that must not be sent: one beyond the vocabulary ends the server."""
        if self.context is not None and len(ids) >= self.context:
            raise NotReplayed("too-long", f"{len(ids)} ids; the server takes fewer than {self.context}")
        low, high = min(ids), max(ids)
        if low < 0 or (self.vocabulary is not None and high >= self.vocabulary):
            raise NotReplayed("no-such-id", f"id {low if low < 0 else high}; the model has {self.vocabulary}")


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds for one answer: `base`, and the ids at `slowest` a second; `attempts` tries in all."""

    base: float = 120.0
    slowest: float = 50.0
    attempts: int = 4
    pause: float = 0.5

    def deadline(self, ids: int) -> float:
        """Return the seconds that so many ids may take."""
        return self.base + ids / self.slowest


class Asker:
    """Asks one server, at most as many at once as its session allows; counts `retries` and `tokens`."""

    def __init__(self, http: HttpSession, limits: Limits, patience: Patience, *, top: int = TOP) -> None:
        self._http = http
        self.limits = limits
        self._patience = patience
        self._top = top
        self._jitter = random.Random(0)
        self.retries = 0
        self.tokens = 0

    async def replay(self, prompt: Sequence[int], response: Sequence[int]) -> Replayed:
        """Return what the model makes of a response after a prompt.

        Raises:
            NotReplayed: it can't be asked, or the server refuses this one.
            ClientError: the server is gone, or wants a key.
        """
        if not prompt or not response:
            raise NotReplayed("no-ids", "the row has no prompt ids" if response else "the response is empty")
        ids = [*prompt, *response]
        self.limits.check(ids)
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": len(prompt) - 1,
            "top_logprobs_num": self._top,
            "stream": False,
        }
        answer = await self._tried(body, self._patience.deadline(len(ids)))
        self.tokens += len(ids)
        try:
            return read(answer, response, self.limits.vocabulary)
        except MalformedResponse as error:
            raise NotReplayed("answer-malformed", error.what) from error

    async def _tried(self, body: dict[str, Any], seconds: float) -> bytes:
        for attempt in range(1, self._patience.attempts + 1):
            last = attempt == self._patience.attempts
            started = time.monotonic()
            try:
                async with asyncio.timeout(seconds):
                    return await self._http.post("/generate", body)
            except HttpStatusError as error:
                if error.status in (401, 403):
                    raise  # every row would be told the same
                if error.status not in PASSING or last:
                    long = "long" in error.why or "length" in error.why
                    reason = "too-long" if error.status == 400 and long else f"status-{error.status}"
                    raise NotReplayed(reason, error.why) from error
            except (TimeoutError, ServerTimeout) as error:
                if last:
                    took = time.monotonic() - started
                    raise NotReplayed("timeout", f"no whole answer within {took:.0f} s") from error
            except ServerGone:
                if last:
                    raise
            self.retries += 1
            pause = min(LONGEST_PAUSE, self._patience.pause * 2 ** (attempt - 1))
            await asyncio.sleep(pause * self._jitter.uniform(0.5, 1.5))
        raise AssertionError("unreachable")


def read(body: bytes, response: Sequence[int], vocabulary: int | None = None) -> Replayed:
    """Return an answer's numbers for the response's ids, aligned from its end and held against its ids.

    Raises:
        MalformedResponse: it lacks a number, or speaks of other ids.
    """
    import numpy as np

    data = json_object(body)
    raise_if_error(data, body)
    meta = data.get("meta_info")
    if not isinstance(meta, dict):
        malformed("meta_info", meta, "an object", body)
    count = len(response)
    own, top = meta.get("input_token_logprobs"), meta.get("input_top_logprobs")
    for name, value in (("input_token_logprobs", own), ("input_top_logprobs", top)):
        if not isinstance(value, list) or len(value) < count:
            malformed(f"meta_info.{name}", value, f"a list of {count + 1} entries", body)
    assert isinstance(own, list) and isinstance(top, list)
    own, top = own[len(own) - count :], top[len(top) - count :]
    try:
        told = [entry[1] for entry in own]
        logprobs = np.array([entry[0] for entry in own], dtype=np.float64)
        first = tuple(int(one[1]) for one in top[0])
        likeliest = np.array([[one[0] for one in entries] for entries in top], dtype=np.float64)
    except (TypeError, ValueError, IndexError) as error:
        raise MalformedResponse(
            what="a position has no logprobs",
            why=str(error),
            remedy="check that the server is an SGLang, and that nothing between changes its answers",
            body=body,
        ) from error
    # See above: the vocabulary's last id comes back as 0.
    if any(
        said != sent and (said != 0 or (vocabulary is not None and sent != vocabulary - 1))
        for said, sent in zip(told, response, strict=True)
    ):
        malformed("meta_info.input_token_logprobs", told[:8], "the ids that were sent", body)
    if likeliest.ndim != 2 or not np.isfinite(logprobs).all() or not np.isfinite(likeliest).all():
        malformed("meta_info.input_top_logprobs", None, "numbers for each position", body)
    return Replayed(logprobs, -np.sort(-likeliest, axis=1), first)
