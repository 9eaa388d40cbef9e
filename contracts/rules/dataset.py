"""Data-set rules: uniqueness, doubled rows, declared turns, one generation prompt per thinking mode.

Place in the flow: rules. Imports the registry; polars while a check runs. They keep some bytes per row, never
the rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contracts.rules.registry import RULES as _RULES
from contracts.rules.registry import Context, RuleSpec, set_check

if TYPE_CHECKING:
    import polars as pl

Hits = list[tuple[str, str, int | None, str | None, str]]
TAIL = 3
"""Prompt tokens at the end that every prompt of one thinking mode must share."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row is."""

    shard: str
    row: int
    sample_id: str

    def __str__(self) -> str:
        return f"{self.shard}, row {self.row}"


@set_check(
    RuleSpec(
        "sample-id-twice",
        "a sample id is used by more than one row",
        "give every generation event its own id; after a restart, drop the rows written twice",
        column="sample_id",
        scope="set",
        report="DeepSpec#29, SpecForge resume",
    ),
    RuleSpec(
        "sample-twice",
        "prompt, sample index and weight version are those of another row",
        "number the samples of a prompt; drop rows that were counted twice",
        column="sample_index",
        scope="set",
        report="DeepSpec#29",
    ),
    RuleSpec(
        "row-twice",
        "a row repeats another one under a new id: same request, same content",
        "drop the repeat; repeats of a prompt (n > 1) have requests of their own",
        column="request_id",
        scope="set",
        report="DeepSpec#29, SpecForge resume",
    ),
)
class Uniqueness:
    """Remembers a key per row; a repeated key is a hit on every row but the first that has it."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], tuple[Place, bytes]] = {}
        self._hits: Hits = []
        self._flagged: set[tuple[str, Place]] = set()

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame."""
        names = (
            "sample_id",
            "prompt_sha256",
            "sample_index",
            "weight_version",
            "request_id",
            "content_sha256",
            "created_at",
        )
        columns = (frame[name].to_list() for name in names)
        rows = enumerate(zip(*columns, strict=True))
        for offset, (sample, prompt, index, weights, request, content, created) in rows:
            place = Place(context.shard, first_row + offset, str(sample))
            self._once("sample-id-twice", (sample,), place, content, f"sample id {sample!r}")
            self._once(
                "sample-twice", (prompt, index, weights), place, content, f"sample {index} of the same prompt"
            )
            if request is not None:
                what = f"request {request!r} with the same content"
                self._once("row-twice", (request, content, created), place, content, what)

    def _once(self, rule: str, key: tuple[Any, ...], place: Place, content: bytes, what: str) -> None:
        first, first_content = self._seen.setdefault((rule, *key), (place, content))
        if first is place:
            return
        self._hit(rule, place, f"{what} is also in {first}")
        if rule == "sample-id-twice" and first_content != content:
            # Two different rows claim one id: nothing says which is the true one.
            self._hit(rule, first, f"{what} is also in {place}, with other content")

    def _hit(self, rule: str, place: Place, message: str) -> None:
        if (rule, place) not in self._flagged:
            self._flagged.add((rule, place))
            self._hits.append((rule, place.shard, place.row, place.sample_id, message))

    def finish(self) -> Hits:
        """Return the hits."""
        return self._hits


@set_check(
    RuleSpec(
        "prompt-tail-differs",
        "the prompt ends otherwise than the set's other prompts of this thinking mode and template",
        "render the prompt again with `add_generation_prompt`; it was cut or shifted",
        column="prompt_token_ids",
        scope="set",
        report="TorchSpec#108",
        strengths=("token",),
    ),
)
class PromptTails:
    """Counts the prompts' last tokens by template and thinking mode; those off the majority are hits."""

    def __init__(self) -> None:
        self._tails: dict[tuple[Any, ...], Counter[tuple[int, ...]]] = {}
        self._rows: dict[tuple[Any, ...], list[Place]] = {}

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame; remembers at most the rows of the rarer tails."""
        import polars as pl

        if not context.active(_RULES["prompt-tail-differs"]):
            return
        tails = frame.select(
            pl.col("prompt_token_ids").list.tail(TAIL), "thinking_mode", "sample_id", "template_kwargs"
        ).with_columns(template=frame["chat_template_sha256"].cast(pl.String))
        for offset, (tail, mode, sample, kwargs, template) in enumerate(tails.rows()):
            group, key = (mode, template, kwargs), tuple(tail or ())
            self._tails.setdefault(group, Counter())[key] += 1
            places = self._rows.setdefault((group, key), [])
            if len(places) < _KEPT:
                places.append(Place(context.shard, first_row + offset, str(sample)))

    def finish(self) -> Hits:
        """Return a hit per row whose tail is not the majority's, where there is a majority."""
        hits: Hits = []
        for group, tails in self._tails.items():
            common, count = tails.most_common(1)[0]
            if count * 2 <= tails.total() or len(tails) == 1:
                continue
            for tail in tails:
                if tail == common:
                    continue
                for place in self._rows[(group, tail)]:
                    message = f"it ends {list(tail)}; {count} of {tails.total()} end {list(common)}"
                    hits.append(("prompt-tail-differs", place.shard, place.row, place.sample_id, message))
        return hits


_KEPT = 1_000_000


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
)
class DeclaredTurns:
    """Checks masks over several turns against the rows that generated those turns."""

    def __init__(self) -> None:
        self._facts: dict[str, tuple[int, int, int, str | None]] = {}
        self._children: list[tuple[Place, str, list[int], list[tuple[int, int]]]] = []
        self._orphans: list[tuple[Place, str]] = []

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame; only rows with a parent and several spans keep their prompt ids."""
        import polars as pl

        facts = frame.select(
            "sample_id",
            "parent_sample_id",
            prompt=pl.col("prompt_token_ids").list.len(),
            response=pl.col("response_token_ids").list.len(),
            digest=pl.col("response_token_ids").cast(pl.List(pl.Int32)).hash(),
        )
        for sample, parent, prompt, response, digest in facts.rows():
            self._facts[sample] = (prompt or 0, response or 0, digest, parent)
        for index in frame["parent_sample_id"].is_not_null().arg_true().to_list():
            place = Place(context.shard, first_row + index, frame["sample_id"][index])
            parent = frame["parent_sample_id"][index]
            self._orphans.append((place, parent))
            mask = frame["loss_mask"][index]
            spans = [] if mask is None else [(span["start"], span["length"]) for span in mask.to_list()]
            if len(spans) > 1:
                self._children.append((place, parent, frame["prompt_token_ids"][index].to_list(), spans[:-1]))

    def finish(self) -> Hits:
        """Return a hit per mask that covers what no ancestor in the set generated."""
        import polars as pl

        hits: Hits = []
        for place, parent, prompt, spans in self._children:
            generated: dict[tuple[int, int], int] = {}
            name: str | None = parent
            while name is not None and name in self._facts and len(generated) <= len(prompt):
                start, length, digest, older = self._facts[name]
                generated[(start, length)] = digest
                name = older if older != name else None
            for start, length in spans:
                part = pl.Series([prompt[start : start + length]], dtype=pl.List(pl.Int32))
                if generated.get((start, length)) != part.hash()[0]:
                    message = f"span ({start}, {length}) is no response of the row's ancestors"
                    hits.append(("mask-turn", place.shard, place.row, place.sample_id, message))
                    break
        for place, parent in self._orphans:
            if parent not in self._facts:
                message = f"no row has the id {parent!r}"
                hits.append(("parent-missing", place.shard, place.row, place.sample_id, message))
        return hits
