"""A row out of a shard, asked about: whether it can be, what for, and what came of it.

Place in the flow: between the choice and the scores. Imports ask, choose, expect and scores of this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.replay.ask import Asker, Limits, NotReplayed
from harness.replay.choose import Place, Sample, params_of, read_rows
from harness.replay.expect import Sampling, sampling_of
from harness.replay.scores import RowScores, scores

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AskedRow:
    """A row that was asked about, or why it was not; `first` are the ids that the model would begin with."""

    sample_id: str
    scores: RowScores | None
    first: tuple[int, ...] = ()
    reason: str = ""
    detail: str = ""


def chosen(sample: Sample, places: Sequence[Place]) -> list[Row]:
    """Return the rows at `places`, each with the prompt of the shard's next row as its `control`."""
    after = [Place(one.shard, (one.row + 1) % sample.shards[one.shard].rows) for one in places]
    rows, beside = read_rows(sample.shards, places), read_rows(sample.shards, after)
    return [{**row, "control": other["prompt_token_ids"]} for row, other in zip(rows, beside, strict=True)]


def sampling(row: Row) -> Sampling:
    """Return how a row was sampled."""
    return sampling_of(params_of(row))


def why_not(row: Row) -> NotReplayed | None:
    """Return why a row can't be asked about, as far as the row itself says."""
    if not row["prompt_token_ids"] or not row["response_token_ids"]:
        return NotReplayed("no-ids", "prompt or response ids are missing")
    if row["constraint"]:
        return NotReplayed("not-sampled", f"its sampling was bent: {str(row['constraint'])[:100]}")
    return None


def askable(rows: Sequence[Row], limits: Limits, count: int) -> list[Row]:
    """Return `count` rows whose prompts a reference can be generated for, the rows over and over."""
    good = []
    for row in rows:
        try:
            if why_not(row) is None:
                limits.check([*row["prompt_token_ids"], *row["response_token_ids"]])
                good.append(row)
        except NotReplayed:
            continue
    return [good[at % len(good)] for at in range(count)] if good else []


async def ask(asker: Asker, row: Row | None) -> AskedRow:
    """Ask about a row; None is one that could not be generated.

    Raises:
        ClientError: the server is gone.
    """
    if row is None:
        return AskedRow("", None, reason="not-generated")
    name, how = str(row["sample_id"]), sampling(row)
    recorded, control = row["output_logprobs"] or None, row["control"]
    elsewhere = None
    try:
        if (why := why_not(row)) is not None:
            raise why
        told = await asker.replay(row["prompt_token_ids"], row["response_token_ids"])
        tied = how.greedy or recorded is not None or not control or control == row["prompt_token_ids"]
        if not tied:
            elsewhere = await _after(asker, control, row["response_token_ids"])
    except NotReplayed as error:
        return AskedRow(name, None, reason=error.reason, detail=error.detail)
    found = scores(told, how, recorded=recorded, vocabulary=asker.limits.vocabulary, elsewhere=elsewhere)
    return AskedRow(name, found, told.first)


async def _after(asker: Asker, control: Sequence[int], response: Sequence[int]) -> Any:
    try:
        return await asker.replay(control, response)
    except NotReplayed:
        return None  # a longer prompt than its own, say: nothing is known, and nothing claimed
