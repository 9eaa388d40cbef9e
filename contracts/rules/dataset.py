"""Data-set rules: unique names and samples, rows counted twice, one generation prompt per thinking mode.

Place in the flow: rules. Imports registry and tape; polars and numpy while a check runs. They keep some bytes
per row, never the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from contracts.rules.registry import RULES, Context, RuleSpec, set_check
from contracts.rules.tape import Hits, Tape, hashed, repeats

if TYPE_CHECKING:
    import polars as pl

TAIL = 3
"""Prompt tokens at the end that every prompt of one thinking mode must share."""
LONG = 64
"""Sampled responses of this many tokens don't come out the same twice by chance."""


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
        "a row repeats another one under a new id or sample index: same request, time and content",
        "drop the repeat; repeats of a prompt (n > 1) have requests of their own",
        column="request_id",
        scope="set",
        report="DeepSpec#29, SpecForge resume",
    ),
    RuleSpec(
        "response-twice",
        "a long sampled response is word for word another row's answer to the same prompt",
        "look whether the row was counted twice under a new name; drop it if so",
        column="content_sha256",
        scope="set",
        kind="quality",
        report="DeepSpec#29, SpecForge resume",
    ),
)
class Uniqueness:
    """Remembers 64 bytes a row; a repeated key is a hit on every row but the first that has it."""

    def __init__(self) -> None:
        self._tape = Tape()

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame."""
        import polars as pl

        sampling = pl.col("sampling_params")
        several = (sampling.str.extract(r'"n":\s*(\d+)').cast(pl.Int64, strict=False) > 1).fill_null(False)
        # The samples of one request with n > 1 share its id and time.
        index = pl.when(several).then(pl.col("sample_index"))
        greedy = sampling.str.contains(r'"temperature":\s*0(\.0+)?[,}]').fill_null(False)
        keys = {
            "sample-id-twice": hashed(frame, "sample_id"),
            "sample-twice": hashed(frame, "prompt_sha256", "sample_index", "weight_version"),
            "row-twice": hashed(frame, "request_id", "content_sha256", "created_at", index.alias("n")),
            "response-twice": hashed(frame, "content_sha256"),
        }
        told = frame.select(
            asked=pl.col("request_id").is_not_null(),
            long=(pl.col("completion_tokens") >= LONG) & ~greedy,
        )
        columns = {
            f"{rule} {half}": half_key for rule, key in keys.items() for half, half_key in enumerate(key)
        }
        columns |= {name: told[name].fill_null(False).to_numpy() for name in ("asked", "long")}
        self._tape.add(context.shard, first_row, columns, len(frame))

    def merge(self, other: Self) -> None:
        """Take over what was seen of the shards that come after."""
        self._tape.merge(other._tape)

    def finish(self) -> Hits:
        """Return the hits."""
        tape = self._tape
        if not tape.rows:
            return []
        found: list[tuple[str, int, int, str]] = []
        content = tape.column("response-twice 0")
        shared: dict[int, int] = {}
        for row, first in self._repeats("sample-id-twice"):
            found.append(("sample-id-twice", row, first, ""))
            if content[row] != content[first]:
                shared.setdefault(first, row)
        # Two different rows claim one id: nothing says which is the true one.
        found += [("sample-id-twice", first, row, ", with other content") for first, row in shared.items()]
        found += [("sample-twice", row, first, "") for row, first in self._repeats("sample-twice")]
        found += [("row-twice", row, first, "") for row, first in self._repeats("row-twice", "asked")]
        flagged = {row for _, row, _, _ in found}
        found += [
            ("response-twice", row, first, "")
            for row, first in self._repeats("response-twice", "long")
            if row not in flagged
        ]
        places = tape.named({index for _, row, first, _ in found for index in (row, first)})
        hits: Hits = []
        for rule, row, first, more in found:
            (shard, at, name), (other, other_at, other_name) = places[row], places[first]
            what = _WHAT[rule].format(name=repr(name), other=repr(other_name))
            hits.append((rule, shard, at, name, f"{what} is also in {other}, row {other_at}{more}"))
        return hits

    def _repeats(self, rule: str, only: str | None = None) -> list[tuple[int, int]]:
        import numpy as np

        high, low = (self._tape.column(f"{rule} {half}") for half in (0, 1))
        if only is None:
            return repeats(high, low)
        rows = np.flatnonzero(self._tape.column(only))
        return [(int(rows[a]), int(rows[b])) for a, b in repeats(high[rows], low[rows])]


_WHAT = {
    "sample-id-twice": "sample id {name}",
    "sample-twice": "this sample of the same prompt",
    "row-twice": "this request with the same content ({other})",
    "response-twice": "this response, word for word ({other}),",
}


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
        self._codes: dict[tuple[Any, ...], int] = {}
        self._tape = Tape()

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame; remembers four bytes a row, and each tail once."""
        import numpy as np
        import polars as pl

        if not context.active(RULES["prompt-tail-differs"]):
            return
        names = ("thinking_mode", "template", "template_kwargs", "tail")
        tails = frame.select(
            "thinking_mode",
            pl.col("chat_template_sha256").cast(pl.String).alias("template"),
            "template_kwargs",
            pl.col("prompt_token_ids").list.tail(TAIL).cast(pl.List(pl.String)).list.join(",").alias("tail"),
        ).select(pl.struct(names).alias("key"))["key"]
        distinct = tails.unique()
        own = [self._codes.setdefault(tuple(key.values()), len(self._codes)) for key in distinct.to_list()]
        place = pl.DataFrame({"key": distinct, "code": pl.Series(own, dtype=pl.Int32)})
        codes = tails.to_frame("key").join(
            place, on="key", how="left", nulls_equal=True, maintain_order="left"
        )
        self._tape.add(
            context.shard, first_row, {"code": codes["code"].to_numpy().astype(np.int32)}, len(frame)
        )

    def merge(self, other: Self) -> None:
        """Take over what was seen of the shards that come after."""
        import numpy as np

        told = [self._codes.setdefault(key, len(self._codes)) for key in other._codes]
        renumber = np.array(told or [0], dtype=np.int32)
        other._tape.replace("code", lambda codes: renumber[codes])
        self._tape.merge(other._tape)

    def finish(self) -> Hits:
        """Return a hit per row whose tail is not the majority's, where there is a majority."""
        import numpy as np

        if len(self._codes) < 2:
            return []
        codes = self._tape.column("code")
        counts = np.bincount(codes, minlength=len(self._codes))
        groups: dict[tuple[Any, ...], list[tuple[str, int]]] = {}
        for (*group, tail), code in self._codes.items():
            groups.setdefault(tuple(group), []).append((tail, code))
        messages: dict[int, str] = {}
        for tails in groups.values():
            total = int(sum(counts[code] for _, code in tails))
            common, most = max(tails, key=lambda known: int(counts[known[1]]))
            if int(counts[most]) * 2 <= total:
                continue
            told = f"{counts[most]} of {total} end [{common}]"
            messages |= {code: f"it ends [{tail}]; {told}" for tail, code in tails if code != most}
        rows = np.flatnonzero(np.isin(codes, list(messages))).tolist() if messages else []
        return [
            ("prompt-tail-differs", shard, row, name, messages[int(codes[index])])
            for index, (shard, row, name) in self._tape.named(rows).items()
        ]
