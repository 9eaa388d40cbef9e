"""Whether the modes did the same work: a ratio over unequal work says nothing about the modes.

Place in the flow: between the bench's batches and its result. Imports `load` of this package.

Compared request by request, over all repeats: the number of the prompt's tokens and of the output's, and for
scripted outputs the tokens themselves. Sampled outputs of one length may differ in their tokens (batches of
another size add up otherwise, temperature 0 or not); that is told, and is no fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.benching.load import Answer, Batch


@dataclass(frozen=True, slots=True)
class Difference:
    """How one arm's work differs from the base's: what in words, and in how many requests of how many."""

    arm: str
    what: str
    requests: int
    of: int


@dataclass(frozen=True, slots=True)
class Equality:
    """What comparing the arms' work showed. `same_outputs` None: the server tells no token ids."""

    differences: tuple[Difference, ...]
    same_outputs: bool | None

    @property
    def equal(self) -> bool:
        """Return whether every request made the same number of tokens of the same prompt in every arm."""
        return not self.differences


def compared(batches: Mapping[str, Sequence[Batch]], base: str) -> Equality:
    """Compare every arm's requests with those of the arm `base` in the same place.

    `batches` are each arm's measurements by repeat, all with the same requests in the same order. Failed
    requests are not compared: they are counted as failures.
    """
    differences: Counter[tuple[str, str]] = Counter()
    total: Counter[str] = Counter()
    said: dict[int, set[int | None]] = {}
    expected: dict[int, Answer] = {}
    for arm in (base, *(name for name in batches if name != base)):
        for batch in batches[arm]:
            for number, answer in enumerate(batch.answers):
                total[arm] += 1
                if answer.fault is not None:
                    continue
                said.setdefault(number, set()).add(answer.said)
                model = expected.setdefault(number, answer)
                for what in _unlike(answer, model):
                    differences[arm, what] += 1
    told = tuple(
        Difference(arm, what, count, total[arm]) for (arm, what), count in sorted(differences.items())
    )
    known = [ids for ids in said.values() if None not in ids]
    return Equality(told, all(len(ids) == 1 for ids in known) if len(known) == len(said) and said else None)


def _unlike(answer: Answer, model: Answer) -> list[str]:
    found = []
    if answer.tokens != model.tokens:
        found.append("another number of tokens")
    if None not in (answer.prompt_tokens, model.prompt_tokens) and (
        answer.prompt_tokens != model.prompt_tokens
    ):
        found.append("another prompt")
    if answer.as_scripted is False:
        found.append("tokens that the script does not have")
    return found
