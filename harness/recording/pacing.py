"""How many requests are under way: more while the server gains by it, fewer when it refuses or only slows.

Place in the flow: under the runner. Imports the standard library only.

A server that batches answers each request later the more there are, and gives more tokens a second all the
same: latency alone is no reason to ask for less. What counts is whether more requests brought more tokens;
where they did not, answers only come later. So the limit doubles, later grows by a tenth, from window to
window (as many answers as the limit) while the rate grows with it; where it does not, the limit goes back
to where the rate was best, and is tried higher again after a while. A refusal (429, 503) or a timeout cuts
it by a third, once for all requests that were sent before the cut.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

GAIN = 1.03
"""The rate must grow by this for more requests to have brought something."""
CUT = 2 / 3
TRY_AGAIN = 8
"""Windows after which a limit that stood is tried higher."""


class Pacer:
    """A bound on requests under way that moves with what comes back."""

    def __init__(
        self,
        maximum: int,
        *,
        start: int = 8,
        fixed: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`fixed` keeps the limit at `maximum`."""
        self.maximum = max(1, maximum)
        self.fixed = fixed
        self.limit = self.maximum if fixed else min(max(1, start), self.maximum)
        self.under_way = 0
        self.cuts = 0
        self._clock = clock
        self._changed = asyncio.Condition()
        self._cut_at = float("-inf")
        self._slow_start = True
        self._best_rate = 0.0
        self._best_limit = self.limit
        self._stood = 0
        self._begin()

    def _begin(self) -> None:
        self._window_start = self._clock()
        self._answers = 0
        self._tokens = 0

    async def acquire(self) -> None:
        """Wait for a place under the limit and take it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.under_way < self.limit)
            self.under_way += 1

    async def release(self) -> None:
        """Give a place back."""
        self.under_way -= 1
        async with self._changed:
            self._changed.notify_all()

    def answered(self, tokens: int) -> None:
        """Note an answer of that many tokens."""
        self._answers += 1
        self._tokens += tokens
        if not self.fixed and self._answers >= max(self.limit, 4):
            self._window_ended()

    def _window_ended(self) -> None:
        rate = self._tokens / max(self._clock() - self._window_start, 1e-9)
        gained = rate > self._best_rate * GAIN
        if not gained:
            self._slow_start = False
            self._stood += 1
        if gained or self._stood >= TRY_AGAIN:
            # After a while what was best is long ago (other lengths, another load): measured anew from here.
            self._best_rate, self._best_limit = rate, self.limit
            self._stood = 0
            self._grow()
        else:
            self.limit = min(self.limit, self._best_limit)
        self._begin()

    def _grow(self) -> None:
        step = self.limit if self._slow_start else max(1, self.limit // 10)
        self.limit = min(self.maximum, self.limit + step)

    def refused(self, sent_at: float) -> None:
        """Note that the server refused a request sent at `sent_at`, or let it time out."""
        if self.fixed or sent_at <= self._cut_at:
            return
        self._cut_at = self._clock()
        self._slow_start = False
        self.cuts += 1
        self.limit = max(1, int(self.limit * CUT))
        self._best_rate = 0.0
        self._best_limit = self.limit
        self._stood = 0
        self._begin()
