"""Data-set rules over conversations: declared turns were generated, parents are there and come before.

Place in the flow: rules. Imports extends, registry and tape; polars and numpy while a check runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from contracts.records import Profile, Severity
from contracts.rules.extends import compared
from contracts.rules.registry import Context, RuleSpec, set_check
from contracts.rules.tape import Hits, Tape, find, hashed, read_again

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

Span = tuple[int, int, int]
"""(start, length, hash of the ids there) of a declared turn."""


@set_check(
    RuleSpec(
        "mask-turn",
        "the mask covers an earlier turn that the set does not show to be generated",
        "cover only turns whose rows are in the set, as `parent_sample_id` names them, prompt unchanged",
        column="loss_mask",
        scope="set",
        report="Automodel#3024, Automodel#3738",
        strengths=("token",),
    ),
    RuleSpec(
        "parent-missing",
        "the row named as parent is not in the set",
        "audit the whole set together, or leave `parent_sample_id` null",
        column="parent_sample_id",
        scope="set",
        kind="quality",
    ),
    RuleSpec(
        "turn-order",
        "the parent is of another conversation, of a later turn or time, or longer than the prompt",
        "name as parent the row whose prompt and response this prompt extends, or leave it null",
        column="parent_sample_id",
        scope="set",
        report="NeMo-Gym#1787",
    ),
    RuleSpec(
        "parent-differs",
        "the messages of the row named as parent are not the beginning of this row's",
        "name as parent the row whose prompt and response this prompt extends, or leave it null",
        column="parent_sample_id",
        scope="set",
        report="NeMo-Gym#1787",
    ),
    RuleSpec(
        "prompt-rewritten",
        "the prompt's ids do not begin with those of the parent's prompt and response",
        "nothing, where the template takes thinking out of earlier turns or renders calls anew; "
        "train such turns each by its own row",
        column="prompt_token_ids",
        scope="set",
        kind="quality",
        report="NeMo-Gym#1787, NeMo-RL#2821, verl#3960, miles#1117",
        severities=dict.fromkeys((Profile.DRAFT, Profile.SFT, Profile.TEST), Severity.RATE),
        strengths=("token",),
    ),
)
class DeclaredTurns:
    """Remembers 44 bytes a row; of rows with a parent its key, and hashes of the turns that they declare.

    What the declared turns' own rows generated is read from the shards again, at the end: hashing every
    response for the sake of the few would cost as much as the whole scan.
    """

    def __init__(self) -> None:
        self._tape = Tape()
        self._children: list[tuple[int, int, int, tuple[Span, ...]]] = []

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame."""
        import polars as pl

        high, low = hashed(frame, "sample_id")
        facts = frame.select(
            prompt=pl.col("prompt_token_ids").list.len().fill_null(0).cast(pl.Int32),
            response=pl.col("response_token_ids").list.len().fill_null(0).cast(pl.Int32),
            turn=pl.col("turn_index").fill_null(0),
            conversation=pl.col("conversation_id").hash(),
            time=pl.col("created_at").dt.epoch("us").fill_null(0),
        )
        columns: dict[str, np.ndarray] = {name: facts[name].to_numpy() for name in facts.columns}
        start = self._tape.add(context.shard, first_row, {"high": high, "low": low, **columns}, len(frame))
        parent = frame["parent_sample_id"]
        if parent.null_count() == len(frame):
            return
        over, under = hashed(frame, pl.col("parent_sample_id"))
        several = (frame["loss_mask"].list.len() > 1).fill_null(False)
        for index in parent.is_not_null().arg_true().to_list():
            spans: tuple[Span, ...] = ()
            if several[index]:
                prompt = frame["prompt_token_ids"][index]
                told = [(s["start"], s["length"]) for s in frame["loss_mask"][index].to_list()[:-1]]
                spans = tuple((at, length, _hash(prompt, at, length)) for at, length in told)
            self._children.append((start + index, int(over[index]), int(under[index]), spans))

    def merge(self, other: Self) -> None:
        """Take over what was seen of the shards that come after."""
        before = self._tape.merge(other._tape)
        self._children += [(before + row, *rest) for row, *rest in other._children]  # type: ignore[misc]

    def finish(self) -> Hits:
        """Return a hit per parent that is missing or can't be one, and per mask over what none generated."""
        tape = self._tape
        if not self._children:
            return []
        high, low = tape.column("high"), tape.column("low")
        rows = find(high, low, [(over, under) for _, over, under, _ in self._children])
        parents = {row: rows.get((over, under)) for row, over, under, _ in self._children}
        digests = self._digests(parents)
        found: list[tuple[str, int, str]] = []
        pairs: list[tuple[int, int]] = []
        for row, _, _, spans in self._children:
            at = parents[row]
            if at is None:
                found.append(("parent-missing", row, "no row has the id that is named as parent"))
            elif wrong := self._disorder(row, at):
                found.append(("turn-order", row, wrong))
            else:
                pairs.append((row, at))
            bad = self._undeclared(row, parents, spans, digests)
            if bad is not None:
                told = f"span ({bad[0]}, {bad[1]}) is no response of the row's ancestors"
                found.append(("mask-turn", row, told))
        found += compared(tape, pairs)
        places = tape.named(row for _, row, _ in found)
        return [(rule, *places[row], message) for rule, row, message in found]

    def _disorder(self, row: int, parent: int) -> str:
        """Return what keeps a row from being the parent of another, "" where nothing does."""
        column = self._tape.column
        if row == parent:
            return "the row names itself as its parent"
        if column("conversation")[row] != column("conversation")[parent]:
            return "the parent is a row of another conversation"
        if column("turn")[parent] > column("turn")[row]:
            return f"turn {column('turn')[row]}, but the parent's is {column('turn')[parent]}"
        if column("time")[parent] > column("time")[row]:
            return "the parent was generated after the row"
        own = int(column("prompt")[row])
        extended = int(column("prompt")[parent]) + int(column("response")[parent])
        # Templates drop earlier thinking: only a prompt that is shorter than the parent's can't extend it.
        if own and own < int(column("prompt")[parent]):
            return f"the prompt has {own} tokens, the parent's prompt and response {extended}"
        return ""

    def _digests(self, parents: dict[int, int | None]) -> dict[int, int]:
        """Return the hash of what each ancestor of a row with several spans generated, by running number."""
        wanted = {at for row, _, _, spans in self._children if spans for at in _ancestors(row, parents)}
        by_shard: dict[str, dict[int, int]] = {}
        for index, (shard, row) in self._tape.places(wanted).items():
            by_shard.setdefault(shard, {})[row] = index
        return {
            rows[row]: _hash(ids, 0, len(ids))
            for shard, rows in by_shard.items()
            for row, ids in read_again(shard, rows, "response_token_ids")
            if ids is not None
        }

    def _undeclared(
        self, row: int, parents: dict[int, int | None], spans: tuple[Span, ...], digests: dict[int, int]
    ) -> tuple[int, int] | None:
        """Return the first declared turn that no ancestor generated, if there is one."""
        if not spans:
            return None
        column = self._tape.column
        generated = {
            (int(column("prompt")[at]), int(column("response")[at]), digests.get(at))
            for at in _ancestors(row, parents)
        }
        return next((span[:2] for span in spans if span not in generated), None)


def _ancestors(row: int, parents: dict[int, int | None]) -> list[int]:
    out: list[int] = []
    at = parents[row]
    while at is not None and at not in out:
        out.append(at)
        at = parents.get(at)
    return out


def _hash(ids: pl.Series, start: int, length: int) -> int:
    """Return the hash of a part of a row's ids, as the column's own hash has it."""
    import polars as pl

    part = ids.to_list()[max(start, 0) : max(start + length, 0)]
    return int(pl.Series([part], dtype=pl.List(pl.Int32)).hash()[0])
