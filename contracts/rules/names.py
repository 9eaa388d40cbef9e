"""Rules about what names a row: ids that files and logs can't hold, turns that can't be, adapters, endpoints.

Place in the flow: rules. Imports registry and tape; numpy and polars while a check runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from contracts.rules.registry import RULES, Context, RuleSpec, bulk, column, set_check
from contracts.rules.tape import Hits, Tape, hashed

if TYPE_CHECKING:
    import polars as pl

NAMES = ("sample_id", "conversation_id", "source_dataset", "parent_sample_id", "request_id")
UNCLEAN = r"^\s|\s$|^$|^(?i:none|null|nan|undefined)$|[\x00-\x1f\x7f-\x9f\u2028\u2029]"
"""Blank, the word for none, space at an end, a control character: such names do not come back as written."""


@bulk(
    RuleSpec(
        "name-unclean",
        "a name of the row is blank, the word for none, ends in white space, or holds control characters",
        "name rows by plain words; such names do not survive logs, JSON lines and file names",
        column="sample_id",
        kind="quality",
        message="{names}",
    ),
    seen=lambda ctx: {"names": _unclean()},
)
def name_unclean(ctx: Context) -> pl.Expr:
    """Hold where each name that is there is a clean one."""
    import polars as pl

    return ~pl.any_horizontal([column(name).str.contains(UNCLEAN).fill_null(False) for name in NAMES])


def _unclean() -> pl.Expr:
    import polars as pl

    told = [
        pl.when(column(name).str.contains(UNCLEAN)).then(
            pl.format("{} is '{}'", pl.lit(name), column(name).str.replace_all(r"[\x00-\x1f\x7f-\x9f]", "·"))
        )
        for name in NAMES
    ]
    return pl.concat_str(told, separator=", ", ignore_nulls=True)


@bulk(
    RuleSpec(
        "turn-ahead",
        "the turn's number is greater than the number of answers before it",
        "number turns from 0, by the assistant's messages in the prompt",
        column="turn_index",
        kind="quality",
        message="turn {turn} after {answers} answers",
    ),
    seen=lambda ctx: {"turn": column("turn_index"), "answers": _answers()},
)
def turn_ahead(ctx: Context) -> pl.Expr:
    """Hold where so many turns can lie before the response."""
    return column("turn_index") <= _answers()


def _answers() -> pl.Expr:
    import polars as pl

    roles = column("messages").list.eval(pl.element().struct.field("role") == "assistant")
    return (roles.list.sum().cast(pl.Int64) - 1).clip(lower_bound=0)


@set_check(
    RuleSpec(
        "request-shared",
        "rows of different prompts name the same request",
        "record each response's own request id; the samples of one request share their prompt",
        column="request_id",
        scope="set",
        kind="quality",
        report="DeepSpec#29",
    ),
)
class RequestIds:
    """Remembers 16 bytes a row; rows of one request whose prompt is not the first one's are hits."""

    def __init__(self) -> None:
        self._tape = Tape()

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame; rows without a request are told apart by a key of 0."""
        import numpy as np

        if not context.active(RULES["request-shared"]):
            return
        asked = frame["request_id"].is_not_null().to_numpy()
        request = np.where(asked, hashed(frame, "request_id")[0], np.uint64(0))
        prompt = hashed(frame, "prompt_sha256")[0]
        self._tape.add(context.shard, first_row, {"request": request, "prompt": prompt}, len(frame))

    def merge(self, other: Self) -> None:
        """Take over what was seen of the shards that come after."""
        self._tape.merge(other._tape)

    def finish(self) -> Hits:
        """Return a hit per row whose request stands with another prompt in an earlier row."""
        import numpy as np

        tape = self._tape
        if not tape.rows:
            return []
        request, prompt = tape.column("request"), tape.column("prompt")
        order = np.argsort(request, kind="stable")
        ordered = request[order]
        first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        firsts = order[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]
        bad = (ordered != 0) & (prompt[order] != prompt[firsts])
        pairs = sorted(zip(order[bad].tolist(), firsts[bad].tolist(), strict=True))
        places = tape.named({index for pair in pairs for index in pair})
        hits: Hits = []
        for row, other in pairs:
            shard, at, _ = places[other]
            hits.append(("request-shared", *places[row], f"its request is that of {shard}, row {at}"))
        return hits
