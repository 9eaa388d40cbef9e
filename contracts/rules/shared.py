"""Data-set rules against what the audit was given: prompts of an eval set, a draft model's vocabulary.

Place in the flow: rules. Imports registry, tape and the readers of both; polars and numpy while a check runs.
Where nothing was given, nothing is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from contracts.rules.registry import RULES, Context, RuleSpec, set_check
from contracts.rules.tape import Hits

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

SHOWN = 5


@set_check(
    RuleSpec(
        "eval-overlap",
        "the prompt is one of the eval set's",
        "leave the row out, or the evaluation measures what was trained on",
        column="prompt_sha256",
        scope="set",
        kind="quality",
    )
)
class EvalOverlap:
    """Remembers the rows whose prompt the eval set has, nothing of the others."""

    def __init__(self) -> None:
        self._hits: Hits = []

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame."""
        evals = context.given.eval_set
        if evals is None or not context.active(RULES["eval-overlap"]):
            return
        from contracts.evals import overlaps

        for index in overlaps(frame, evals).arg_true().to_list():
            name, prompt = frame["sample_id"][index], frame["prompt_sha256"][index]
            told = f"prompt {prompt.hex()[:16] if prompt else '?'}…, one of {evals.count} in the eval set"
            self._hits.append(("eval-overlap", context.shard, first_row + index, name, told))

    def merge(self, other: Self) -> None:
        """Take over what was seen of the shards that come after."""
        self._hits += other._hits

    def finish(self) -> Hits:
        """Return the hits."""
        return self._hits


@set_check(
    RuleSpec(
        "draft-coverage",
        "the draft vocabulary lacks too many of the tokens that the responses hold",
        "make the map from this data set; one of another set lowers acceptance without a word",
        column="response_token_ids",
        scope="set",
        kind="quality",
        report="speculators#1081, SpecForge#76",
        strengths=("token",),
    )
)
class DraftCoverage:
    """Counts response tokens, and by id those that the drafter can't say: one number a target token."""

    def __init__(self) -> None:
        self._tokens = 0
        self._missed: np.ndarray[Any, Any] | None = None
        self._least = 0.0
        self._where = ""
        self._foreign: tuple[int, int] | None = None

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame."""
        import numpy as np

        draft = context.given.draft_vocabulary
        if draft is None or not context.active(RULES["draft-coverage"]):
            return
        ids = frame["response_token_ids"].explode(empty_as_null=False, keep_nulls=False).to_numpy()
        ids = ids[ids >= 0]
        size = context.codec.vocab_size if context.codec is not None else None
        if size is not None and int(draft.ids[-1]) >= size:
            self._foreign = (int(draft.ids[-1]), size)
        counts = np.bincount(ids, minlength=int(draft.ids[-1]) + 1)
        self._tokens += int(counts.sum())
        counts[draft.ids] = 0
        self._missed = _sum(self._missed, counts)
        self._least = context.thresholds.draft_coverage
        self._where = f"{draft.where} (sha256 {draft.sha256[:16]}…, {len(draft.ids)} tokens)"

    def merge(self, other: Self) -> None:
        """Take over what was seen of the shards that come after."""
        self._tokens += other._tokens
        self._missed = _sum(self._missed, other._missed)
        self._least, self._where = max(self._least, other._least), self._where or other._where
        self._foreign = self._foreign or other._foreign

    def finish(self) -> Hits:
        """Return a hit where too few tokens are covered, or the map is over another vocabulary."""
        import numpy as np

        hits: Hits = []
        if self._foreign is not None:
            told = f"it names token {self._foreign[0]}; the target's vocabulary has {self._foreign[1]}"
            hits.append(("draft-coverage", "", None, None, f"{self._where}: {told}"))
        if self._missed is None or not self._tokens:
            return hits
        missed = int(self._missed.sum())
        share = 1 - missed / self._tokens
        if share < self._least:
            worst = np.argsort(-self._missed, kind="stable")[:SHOWN]
            named = ", ".join(
                f"{token} ({self._missed[token]} times)" for token in worst if self._missed[token]
            )
            told = f"{100 * share:.4g} % of {self._tokens} tokens, at least {100 * self._least:g} % wanted"
            hits.append(
                ("draft-coverage", "", None, None, f"{self._where} has {told}; it lacks most {named}")
            )
        return hits


def _sum(one: np.ndarray[Any, Any] | None, two: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any] | None:
    if one is None or two is None:
        return two if one is None else one
    long, short = (one, two) if len(one) >= len(two) else (two, one)
    total: np.ndarray[Any, Any] = long.copy()
    total[: len(short)] += short
    return total
