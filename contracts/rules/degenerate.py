"""Quality rules about a server that no longer answers: one response to many prompts, a passage over and over.

Place in the flow: rules. Imports columns, registry and tape of `contracts`; numpy and polars while a check
runs. Loops of a few tokens are `repetition-loop`; here it is a longer passage before a cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from contracts.columns import ids_of
from contracts.rules.registry import (
    RATE_BUT_SFT,
    RULES,
    Batch,
    Context,
    Hit,
    Row,
    RuleSpec,
    row_check,
    set_check,
)
from contracts.rules.tape import Hits, Tape, hashed

if TYPE_CHECKING:
    import polars as pl

LONG = 32
"""Tokens from which a response does not answer several prompts by chance."""
PASSAGE = 24
"""Last tokens that are looked for in the response before them."""
TIMES = 3
"""How often they must stand there, themselves included."""


@set_check(
    RuleSpec(
        "response-everywhere",
        "many different prompts have one and the same response",
        "look at the server: it may answer from a broken cache or repeat a canned text; generate them again",
        column="content",
        scope="set",
        kind="quality",
        report="tokenspeed#1305",
    ),
)
class Responses:
    """Remembers 17 bytes a row: hashes of response and prompt, and whether the response is long."""

    def __init__(self) -> None:
        self._tape = Tape()
        self._least = 0

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame."""
        import polars as pl

        if not context.active(RULES["response-everywhere"]):
            return
        self._least = context.thresholds.same_response_prompts
        # Without ids nothing is counted: a text of some length stands for it.
        told = [pl.col(name).str.len_bytes().fill_null(0) for name in ("reasoning_content", "content")]
        unknown = pl.col("completion_tokens") == 0
        long = (pl.col("completion_tokens") >= LONG) | (unknown & (pl.sum_horizontal(told) >= 4 * LONG))
        columns = {
            "response": hashed(frame, "reasoning_content", "content", "tool_calls")[0],
            "prompt": hashed(frame, "prompt_sha256")[0],
            "long": frame.select(long=long.fill_null(False))["long"].to_numpy(),
        }
        self._tape.add(context.shard, first_row, columns, len(frame))

    def merge(self, other: Self) -> None:
        """Take over what was seen of the shards that come after."""
        self._least = max(self._least, other._least)
        self._tape.merge(other._tape)

    def finish(self) -> Hits:
        """Return a hit per response that too many prompts have, at its first row."""
        import numpy as np

        tape = self._tape
        if not tape.rows or not self._least:
            return []
        rows = np.flatnonzero(tape.column("long"))
        response, prompt = tape.column("response")[rows], tape.column("prompt")[rows]
        _, inverse, counts = np.unique(response, return_inverse=True, return_counts=True)
        found = []
        for kind in np.flatnonzero(counts >= self._least).tolist():
            here = rows[inverse == kind]
            prompts = len(np.unique(prompt[inverse == kind]))
            if prompts >= self._least:
                found.append((int(here[0]), len(here), prompts))
        places = tape.named(row for row, _, _ in found)
        told = "{} rows of {} prompts have this response"
        return [
            ("response-everywhere", *places[row], told.format(n, prompts))
            for row, n, prompts in sorted(found)
        ]


def _ending_as_before(batch: Batch, ctx: Context) -> pl.Series:
    """Return the rows that were cut by the limit and whose last tokens stand in them before."""
    import numpy as np
    import polars as pl

    cut = (batch.frame["finish_reason"] == "length").fill_null(False).to_numpy()
    found = np.zeros(len(cut), dtype=bool)
    values, offsets = ids_of(batch, "response_token_ids")
    for row in np.flatnonzero(cut & (np.diff(offsets) >= TIMES * PASSAGE)).tolist():
        found[row] = times_before(values[offsets[row] : offsets[row + 1]]) >= TIMES
    return pl.Series(found)


def times_before(ids: object) -> int:
    """Return how often the last `PASSAGE` ids of a response stand in it, themselves included."""
    import numpy as np

    flat = np.asarray(ids)
    if len(flat) < PASSAGE:
        return 0
    last = flat[-PASSAGE:]
    places = np.flatnonzero(flat[: len(flat) - PASSAGE + 1] == last[0])
    for step in range(1, PASSAGE):
        places = places[flat[places + step] == last[step]]
        if len(places) <= 1:
            break
    return len(places)


@row_check(
    RuleSpec(
        "tail-loop",
        "the response was cut while it said a passage again that it had said before",
        "nothing, where the model really looped; such rows teach a drafter to loop",
        column="response_token_ids",
        kind="quality",
        report="tokenspeed#1305",
        severities=RATE_BUT_SFT,
        strengths=("token",),
    ),
    suspects=_ending_as_before,
)
def tail_loop(row: Row, ctx: Context) -> Iterator[Hit]:
    """Count the last tokens' passage in a response that the limit cut."""
    if row["finish_reason"] != "length" or row["response_token_ids"] is None:
        return
    ids = row["response_token_ids"]
    if len(ids) >= TIMES * PASSAGE and (times := times_before(ids)) >= TIMES:
        yield "tail-loop", None, f"its last {PASSAGE} tokens stand in it {times} times"
