"""Data-set rule that needs no chat template: prompts of one shape have equally much around their messages.

Place in the flow: rules. Imports columns, registry and tape of `contracts`; numpy and polars while a check
runs. A prompt that was cut, doubled, or holds what no message says is longer or shorter than the others.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Self

from contracts.columns import vocabulary
from contracts.rules.registry import RULES, Context, RuleSpec, set_check
from contracts.rules.tape import Hits, Tape
from contracts.tokens import Codec, UndecodableToken

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

HEAD = 3
"""Prompt tokens at the beginning that are looked at; those before the first ordinary one are compared."""
SHARE = 0.9
"""The share of a shape's prompts that must agree before the others are told."""
NOT_COMPARED = -1


@set_check(
    RuleSpec(
        "prompt-shape",
        "the prompt has more or less text around its messages than the set's other prompts of its shape",
        "render the prompt again; it was cut, doubled, or holds what no message says",
        column="prompt_token_ids",
        scope="set",
        report="NeMo-Gym#1787, NeMo-RL#2821",
        strengths=("token",),
        needs_tokenizer=True,
    ),
    RuleSpec(
        "prompt-head",
        "the prompt begins with other markers than the set's other prompts of its template and first role",
        "render the prompt again; it was cut on the left, or something was put before it",
        column="prompt_token_ids",
        scope="set",
        report="DeepSeek-R1#151",
        strengths=("token",),
        needs_tokenizer=True,
    ),
)
class PromptShapes:
    """Remembers 8 bytes a row: its shape with what is around the messages, and its first tokens."""

    def __init__(self) -> None:
        self._codes: dict[str, dict[tuple[Any, ...], int]] = {"prompt-shape": {}, "prompt-head": {}}
        self._tape = Tape()
        self._least = 0

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame."""
        import polars as pl

        if not context.active(RULES["prompt-head"]):
            return
        self._least = context.thresholds.prompt_shape_rows
        roles = pl.col("messages").list.eval(pl.element().struct.field("role")).list
        group = [
            pl.col("chat_template_sha256").cast(pl.String).alias("template"),
            "template_kwargs",
            "thinking_mode",
            pl.col("tools").hash().alias("tools"),
        ]
        head = _heads(frame["prompt_token_ids"], context.codec)
        columns = {"prompt-head": self._coded("prompt-head", frame, [*group, roles.first()], head)}
        if context.active(RULES["prompt-shape"]):
            around = pl.Series("around", _around(frame, context))
            whole = [*group, roles.join(",").alias("roles")]
            columns["prompt-shape"] = self._coded("prompt-shape", frame, whole, around)
        else:
            columns["prompt-shape"] = columns["prompt-head"] * 0 + NOT_COMPARED
        self._tape.add(context.shard, first_row, columns, len(frame))

    def _coded(self, rule: str, frame: pl.DataFrame, group: list[Any], value: Any) -> np.ndarray[Any, Any]:
        import numpy as np
        import polars as pl

        keys = frame.select(*group, value.alias("value")).select(pl.struct(pl.all()).alias("key"))
        distinct = keys["key"].unique(maintain_order=True)
        known = self._codes[rule]
        own = []
        for key in distinct.to_list():
            told = tuple(key.values())
            compared = told[-1] is not None
            own.append(known.setdefault(told, len(known)) if compared else NOT_COMPARED)
        place = pl.DataFrame({"key": distinct, "code": pl.Series(own, dtype=pl.Int32)})
        codes = keys.join(place, on="key", how="left", nulls_equal=True, maintain_order="left")["code"]
        return codes.to_numpy().astype(np.int32)

    def merge(self, other: Self) -> None:
        """Take over what was seen of the shards that come after."""
        import numpy as np

        self._least = max(self._least, other._least)
        for rule, known in self._codes.items():
            told = [known.setdefault(key, len(known)) for key in other._codes[rule]]
            renumber = np.array([*told, NOT_COMPARED], dtype=np.int32)
            if other._tape.rows:
                other._tape.replace(rule, lambda codes, renumber=renumber: renumber[codes])  # type: ignore[misc]
        self._tape.merge(other._tape)

    def finish(self) -> Hits:
        """Return a hit per row that differs from nearly all others of its shape, where these are enough."""
        return [hit for rule in self._codes for hit in self._hits(rule)] if self._tape.rows else []

    def _hits(self, rule: str) -> Hits:
        import numpy as np

        codes, known = self._tape.column(rule), self._codes[rule]
        counts = np.bincount(codes[codes >= 0], minlength=len(known))
        groups: dict[tuple[Any, ...], list[tuple[Any, int]]] = {}
        for (*group, value), code in known.items():
            groups.setdefault(tuple(group), []).append((value, code))
        messages: dict[int, str] = {}
        for values in groups.values():
            total = int(sum(counts[code] for _, code in values))
            common, most = max(values, key=lambda pair: int(counts[pair[1]]))
            if len(values) < 2 or total < self._least or int(counts[most]) < SHARE * total:
                continue
            for value, code in values:
                if code != most:
                    messages[code] = _told(rule, value, common, int(counts[most]), total)
        rows = np.flatnonzero(np.isin(codes, list(messages))).tolist() if messages else []
        return [(rule, *place, messages[int(codes[row])]) for row, place in self._tape.named(rows).items()]


def _told(rule: str, value: Any, common: Any, most: int, total: int) -> str:
    if rule == "prompt-head":
        return f"it begins [{value}]; {most} of {total} begin [{common}]"
    return f"{value} bytes stand around the messages; {most} of {total} have {common}"


def _heads(ids: pl.Series, codec: Codec | None) -> pl.Series:
    """Return the markers that each prompt begins with, by id; what follows them is the message's own."""
    import polars as pl

    if codec is None:
        return pl.repeat(None, len(ids), dtype=pl.String, eager=True)
    names = [f"token {n}" for n in range(HEAD)]
    heads = pl.DataFrame({name: ids.list.get(n, null_on_oob=True) for n, name in enumerate(names)})
    kinds = heads.unique(maintain_order=True)
    runs = [
        ",".join(map(str, takewhile(lambda token: token is not None and _is_marker(token, codec), head)))
        for head in kinds.iter_rows()
    ]
    told = kinds.with_columns(pl.Series("head", runs, dtype=pl.String))
    return heads.join(told, on=names, how="left", nulls_equal=True, maintain_order="left")["head"]


@lru_cache(maxsize=200_000)
def _is_marker(token: int, codec: Codec) -> bool:
    """Return whether a token is spelled as markers are: in brackets."""
    try:
        text = codec.decode_bytes([token])
    except (UndecodableToken, OverflowError):
        return False
    return len(text) > 2 and (text[:1], text[-1:]) in ((b"<", b">"), (b"[", b"]"))


def _around(frame: pl.DataFrame, context: Context) -> list[int | None]:
    """Return how many bytes of each prompt are no message's text; None where templates may change the texts.

    Compared are prompts of plain messages: no calls, results, reasoning or names, no white space at the ends,
    no markers, and no text that a tokenizer's normaliser would change.
    """
    import numpy as np
    import polars as pl
    import pyarrow.compute as pc

    codec, fmt = context.codec, context.format
    laid = vocabulary(codec) if codec is not None else None
    if laid is None or fmt is None:
        return [None] * len(frame)
    sizes = pc.binary_length(laid[0]).to_numpy(zero_copy_only=False)
    ids = frame["prompt_token_ids"]
    lengths = ids.list.len().fill_null(0).to_numpy().astype(np.int64)
    values = ids.explode(empty_as_null=False, keep_nulls=False).to_numpy()
    inside = (values >= 0) & (values < len(sizes))
    sums = np.concatenate([[0], np.cumsum(np.where(inside, sizes[np.where(inside, values, 0)], 0))])
    ends = np.cumsum(lengths)
    before = (
        frame.select(
            row=pl.int_range(pl.len()), said=pl.col("messages").list.head(pl.col("messages").list.len() - 1)
        )
        .explode("said")
        .unnest("said")
    )
    text = pl.col("content").fill_null("")
    plain = (
        pl.col("role").is_in(["system", "developer", "user", "assistant"])
        & (pl.col("reasoning_content").fill_null("") == "")
        & (pl.col("tool_calls").fill_null("") == "")
        & pl.col("name").is_null()
        & (text != "")
        & (text == text.str.strip_chars())
        & ~(text.str.contains_any(list(fmt.markers)) if fmt.markers else pl.lit(False))
    )
    told = before.select("row", text, size=text.str.len_bytes().cast(pl.Int64), plain=plain)
    changing = told["content"].str.len_chars() != told["size"]
    if changing.any():
        texts = told.filter(changing)["content"]
        kept = told["plain"].scatter(
            changing.arg_true(), told.filter(changing)["plain"] & (texts == texts.str.normalize("NFC"))
        )
        told = told.with_columns(kept)
    told = told.drop("content").group_by("row").agg(pl.col("size").sum(), pl.col("plain").all())
    size = np.zeros(len(frame), dtype=np.int64)
    compared = np.zeros(len(frame), dtype=bool)
    size[told["row"].to_numpy()] = told["size"].to_numpy()
    compared[told["row"].to_numpy()] = told["plain"].fill_null(False).to_numpy()
    around = sums[ends] - sums[ends - lengths] - size
    return [int(value) if told_of else None for value, told_of in zip(around, compared, strict=True)]
