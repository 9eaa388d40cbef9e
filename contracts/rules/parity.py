"""Prompt parity: the stored prompt ids are what the model's own chat template renders.

Place in the flow: rules. Imports rendering, registry and tokens; polars while a check runs. They need the
template (`Given.template`) and the tokenizer. Each distinct prompt of a batch is rendered once.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from contracts.records import Profile, Severity
from contracts.rendering import Unrenderable, renderings
from contracts.rules.registry import RULES, Batch, Context, Hit, Row, RuleSpec, row_check, set_check
from contracts.rules.structural import parse
from contracts.rules.tape import Hits
from contracts.tokens import UndecodableToken

if TYPE_CHECKING:
    import polars as pl

SHOWN = 30
ENCODED_IN_CODE = ("deepseek_v32", "deepseek_v4", "deepseek_v41")
"""Families whose prompts SGLang writes by code of its own, whatever template the model's folder holds."""


def _suspects(batch: Batch, ctx: Context) -> pl.Series:
    """Return the rows whose prompt is no rendering, or could not be compared; each prompt is tried once."""
    import polars as pl

    frame = batch.frame
    if ctx.given.template is None or ctx.codec is None:
        return pl.repeat(False, len(frame), eager=True, dtype=pl.Boolean)
    field = pl.element().struct.field
    names = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")
    message = pl.concat_str([field(name).fill_null("\x00") for name in names], separator="\x01")
    before = pl.col("messages").list.head(pl.col("messages").list.len() - 1)
    told = frame.select(
        before.list.eval(message).list.join("\x02").hash().alias("said"),
        "prompt_sha256",
        "tools",
        "template_kwargs",
        pl.col("chat_template_sha256").cast(pl.String),
    ).select(pl.struct(pl.all()).alias("key"))
    firsts = told.with_row_index().group_by("key", maintain_order=True).agg(pl.col("index").first())
    bad = [fault(row, ctx) is not None for row in batch.table.take(firsts["index"].to_list()).to_pylist()]
    known = firsts.select("key", bad=pl.Series(bad, dtype=pl.Boolean))
    return told.join(known, on="key", how="left", nulls_equal=True, maintain_order="left")["bad"]


@row_check(
    RuleSpec(
        "prompt-differs",
        "the prompt's ids are not what the chat template renders from the messages",
        "render the messages again, with the template and switches that the row names; do not patch the ids",
        column="prompt_token_ids",
        report="verl#3960, NeMo-Gym#1787, NeMo-RL#2821",
        strengths=("token",),
        needs_tokenizer=True,
    ),
    RuleSpec(
        "prompt-unrendered",
        "the prompt was not compared: the chat template at hand is not the recorded one, or refuses it",
        "pass the folder of the model revision that generated the rows",
        column="chat_template_sha256",
        kind="quality",
        severities=dict.fromkeys(Profile, Severity.RATE),
        strengths=("token",),
        needs_tokenizer=True,
    ),
    suspects=_suspects,
)
def prompt_rendered(row: Row, ctx: Context) -> Iterator[Hit]:
    """Compare one row's prompt with the renderings of its messages."""
    told = fault(row, ctx)
    if told is not None:
        yield told[0], None, told[1]


def fault(row: Row, ctx: Context) -> tuple[str, str] | None:
    """Return (rule, message) of a prompt that differs or could not be compared; None for a rendering."""
    from contracts.shard import UNKNOWN

    template, codec, ids = ctx.given.template, ctx.codec, row["prompt_token_ids"]
    if template is None or codec is None or ctx.format is None or not ids:
        return None
    if ctx.format.name.partition("+")[0] in ENCODED_IN_CODE:
        return None
    recorded = row["chat_template_sha256"]
    if recorded not in (UNKNOWN, template.sha256):
        return "prompt-unrendered", f"recorded {str(recorded)[:16]}…, at hand {template.sha256[:16]}…"
    tools, kwargs = parse(row["tools"] or "null"), parse(row["template_kwargs"] or "{}")
    if not isinstance(kwargs, Mapping) or not (tools is None or isinstance(tools, list)):
        return None  # other rules tell that
    messages = [dict(message) for message in (row["messages"] or ())[:-1]]
    shown, texts = "", []
    try:
        for text in renderings(template, messages, tools, kwargs, row["created_at"]):
            texts.append(text)
            if codec.encode(text) == ids:
                return None
        shown = codec.decode_bytes(ids).decode("utf-8", "replace")
    except Unrenderable as error:
        return "prompt-unrendered", str(error)
    except UndecodableToken as error:
        return "prompt-differs", str(error)
    for text in texts:
        if _same(text) == _same(shown):
            return _split(ids, codec.encode(text), ctx)
    return "prompt-differs", _difference(shown, texts[0])


def _same(text: str) -> str:
    """Normalise what tokenizers normalise, so that the comparison does not see it."""
    return unicodedata.normalize("NFC", text)


def _split(ids: list[int], canonical: list[int], ctx: Context) -> tuple[str, str] | None:
    """Return the fault of a prompt with the rendering's text in other tokens: its markers must be tokens."""
    fmt = ctx.format
    for text in (*fmt.markers, *fmt.end_tokens) if fmt is not None else ():
        for marker in ctx.ids_of([text]):
            seen, wanted = ids.count(marker), canonical.count(marker)
            if seen != wanted:
                told = f"{text} is {seen} times a token of its own, rendered it is {wanted} times"
                return "prompt-differs", told
    return None


def _difference(stored: str, made: str) -> str:
    pairs: Any = zip(stored, made, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(stored), len(made)))
    parts = [repr(text[at : at + SHOWN]) for text in (stored, made)]
    return f"they part at character {at}: stored {parts[0]}, rendered {parts[1]}"


@set_check(
    RuleSpec(
        "prompts-uncompared",
        "prompts were not held against the chat template: none is at hand, or another than was recorded",
        "pass the folder of the model revision that generated the rows, with its chat template",
        column="chat_template_sha256",
        scope="set",
        kind="quality",
        report="verl#3960, NeMo-Gym#1787, NeMo-RL#2821",
        strengths=("token",),
        needs_tokenizer=True,
    ),
)
class Uncompared:
    """Counts the rows whose prompt no template at hand can be held against; one finding for the set."""

    def __init__(self) -> None:
        self._rows = self._all = 0
        self._why = ""

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame."""
        import polars as pl

        from contracts.shard import UNKNOWN

        template, fmt = context.given.template, context.format
        wanted = template is not None or context.given.untemplated
        if not wanted or fmt is None or not context.active(RULES["prompts-uncompared"]):
            return
        self._all += len(frame)
        if template is None:
            self._rows, self._why = self._rows + len(frame), context.given.untemplated
        elif fmt.name.partition("+")[0] in ENCODED_IN_CODE:
            self._rows += len(frame)
            self._why = f"the engine writes the prompts of {fmt.name} in code"
        else:
            known = frame["chat_template_sha256"].cast(pl.String).is_in([UNKNOWN, template.sha256])
            if not known.all():
                self._rows += int((~known).sum())
                self._why = f"the template at hand is {template.sha256[:16]}…"

    def merge(self, other: Self) -> None:
        """Take over what was seen of the shards that come after."""
        self._rows, self._all = self._rows + other._rows, self._all + other._all
        self._why = other._why or self._why

    def finish(self) -> Hits:
        """Return one hit where any prompt was not compared."""
        if not self._rows:
            return []
        told = f"{self._rows} of {self._all} prompts were not compared: {self._why}"
        return [("prompts-uncompared", "", None, None, told)]
