"""The tripwire: stops a run whose answers show that it is worth nothing, and says what to do instead.

Place in the flow: beside the runner, fed with each judged answer. Imports `contracts`, `harness.outcomes` and
`harness.recommend`.

At once, whatever the share: no token ids, ids that the engine invented or that the tokenizer does not know;
and, over chat, reasoning or markers in content where the server runs without a parser of the model's format.
With the right parser on, such an answer is one that the parser can't cut, and counts in the share.

By share: over the first answers *in the order they were asked for*, decided only when all of them are in.
Short answers come back first and differ from long ones; they alone must not decide.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from contracts.formats import Format
from contracts.records import Capture, Judgement, Mode, ServerFacts, Transport, Verdict
from harness.outcomes import Outcome, Recommendation
from harness.recommend import recommend

AT_ONCE = frozenset({"ids-missing", "invented-token", "token-out-of-range"})
WRONG_BOOT = frozenset({"reasoning-in-content", "marker-leaked"})
MAX_CONTRADICTED = 0.10
MAX_FAILED = 0.25


@dataclass(frozen=True, slots=True)
class Tripped:
    """Why the run was stopped: the cause in words, what follows from the answers so far."""

    cause: str
    recommendation: Recommendation


class Tripwire:
    """Watches one start of a run; its cohort is the first `cohort` items that this start asks for.

    `max_drift` is the share of prompts that may be other ids than they should be, None: any.
    """

    def __init__(
        self, facts: ServerFacts, fmt: Format, cohort: int, *, max_drift: float | None = None
    ) -> None:
        self._facts = facts
        self._format = fmt
        self._size = cohort
        self._open: set[int] = set(range(cohort))
        self._cohort: list[Outcome] = []
        self._failed: Counter[str] = Counter()
        self._max_drift = max_drift
        self._compared = 0
        self._drifts: Counter[str] = Counter()
        self.tripped: Tripped | None = None

    def shrink(self, issued: int) -> None:
        """Say that no more than `issued` items are asked for at all."""
        if issued < self._size:
            self._size = issued
            self._open = {number for number in self._open if number < issued}
            self._decide()

    @property
    def decided(self) -> bool:
        """Whether the cohort is in."""
        return not self._open

    def saw(self, number: int, capture: Capture, judgement: Judgement) -> None:
        """Look at an answer of the item asked for as the `number`-th, from 0."""
        if self.tripped is not None:
            return
        outcome = _outcome(capture, judgement)
        names = {loss.name for loss in judgement.losses}
        hard = names & AT_ONCE
        if capture.transport is Transport.CHAT and self._wrong_boot(capture):
            hard |= names & WRONG_BOOT
        if hard:
            self._trip(f"{', '.join(sorted(hard))} in the answer to {capture.prompt.name!r}", [outcome])
        elif number in self._open:
            self._cohort.append(outcome)

    def _wrong_boot(self, capture: Capture) -> bool:
        parser = self._facts.reasoning_parser
        if self._format.thinks and parser not in self._format.reasoning_parsers:
            return True
        return capture.mode is Mode.TOOLS and self._facts.tool_parser is None

    def compared(self, number: int, cause: str | None) -> None:
        """Note that a prompt was compared with what it should be; `cause` says why it is not that."""
        if number in self._open:
            self._compared += 1
            if cause is not None:
                self._drifts[cause] += 1

    def finished(self, number: int, failed: str | None = None) -> None:
        """Say that an item is through, with the reason where it failed."""
        if number not in self._open:
            return
        self._open.discard(number)
        if failed is not None:
            self._failed[failed] += 1
        self._decide()

    def _decide(self) -> None:
        if self._open or self.tripped is not None:
            return
        contradicted = sum(one.verdict is Verdict.CONTRADICTED for one in self._cohort)
        failed = self._failed.total()
        if contradicted > MAX_CONTRADICTED * max(len(self._cohort), 1):
            self._trip(
                f"{contradicted} of the first {len(self._cohort)} answers are contradicted", self._cohort
            )
        elif failed > MAX_FAILED * max(self._size, 1):
            causes = ", ".join(f"{name} ({count})" for name, count in self._failed.most_common())
            self._trip(f"{failed} of the first {self._size} requests failed: {causes}", self._cohort)
        elif self._max_drift is not None and self._drifts.total() > self._max_drift * self._compared:
            causes = ", ".join(f"{name} ({count})" for name, count in self._drifts.most_common())
            told = f"{self._drifts.total()} of {self._compared} prompts are not the ids that they should be"
            self._trip(f"{told}: {causes}", self._cohort)
        self._cohort = []

    def _trip(self, cause: str, outcomes: list[Outcome]) -> None:
        every = outcomes if outcomes is self._cohort else [*self._cohort, *outcomes]
        self.tripped = Tripped(cause, recommend(self._facts, every, self._format.name))


def _outcome(capture: Capture, judgement: Judgement) -> Outcome:
    return Outcome(
        prompt=f"{capture.prompt.name}/{capture.sample_index}/{capture.prompt.turn_index}",
        mode=capture.mode,
        transport=capture.transport,
        stream=capture.stream,
        server=capture.server.base_url,
        scripted=False,
        verdict=judgement.verdict,
        losses=judgement.losses,
        divergence=None,
        expected=None,
        tokens=len(capture.response_token_ids or ()),
    )
