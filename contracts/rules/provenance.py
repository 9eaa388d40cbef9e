"""Provenance rules: which model, tokenizer, template, engine and parsers made the rows, and what bent them.

Place in the flow: rules. Imports records, registry and sampling of `contracts`; polars while a check runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Self

from contracts.records import Profile
from contracts.rules.registry import Context, Hit, Row, RuleSpec, bulk, off_for_test, row_check, set_check
from contracts.rules.structural import parse
from contracts.rules.tape import Hits, Tape
from contracts.sampling import bent_by

if TYPE_CHECKING:
    import polars as pl


CHAT_ENDPOINTS = ("/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "unknown")
"""Where servers take messages; data from elsewhere does not tell."""


def constant_columns(profile: Profile) -> tuple[str, ...]:
    """Return the columns that must be one value over a set; an `rl` set changes its weights."""
    from contracts.shard import CONSTANT_COLUMNS, RUN_COLUMNS

    free = {"weight_version"} if profile is Profile.RL else set()
    return tuple(name for name in (*CONSTANT_COLUMNS, *RUN_COLUMNS) if name not in free)


@bulk(
    RuleSpec(
        "constants-differ",
        "a row's provenance is not what the shard's metadata repeats",
        "the row comes from another run, or was changed: take it out or take it from its source again",
        message="{columns}",
    ),
    seen=lambda ctx: {"columns": _differing(ctx)},
)
def constants_differ(ctx: Context) -> pl.Expr:
    """Hold where every column that the metadata calls constant has the metadata's value."""
    import polars as pl

    same = [_text(name).eq_missing(pl.lit(value, pl.String)) for name, value in ctx.constants.items()]
    return pl.all_horizontal([pl.lit(True), *same])


def _text(name: str) -> pl.Expr:
    import polars as pl

    return pl.col(name).cast(pl.String)


def _differing(ctx: Context) -> pl.Expr:
    import polars as pl

    return pl.concat_str(
        [
            pl.when(_text(name).ne_missing(pl.lit(value, pl.String))).then(
                pl.format(
                    "{} is {}, metadata says {}",
                    pl.lit(name),
                    _text(name).fill_null("null"),
                    pl.lit(str(value)),
                )
            )
            for name, value in ctx.constants.items()
        ]
        or [pl.lit("")],
        separator="; ",
        ignore_nulls=True,
    )


@bulk(
    RuleSpec(
        "provenance-empty",
        "a provenance column is empty",
        "record what the server reports; `none` says that the server ran without the part",
        message="empty: {columns}",
    ),
    seen=lambda ctx: {"columns": _empty_names()},
)
def provenance_empty(ctx: Context) -> pl.Expr:
    """Hold where no provenance column and no name of the row is the empty string."""
    import polars as pl

    return pl.all_horizontal([_text(name).str.strip_chars() != "" for name in _named()])


def _named() -> tuple[str, ...]:
    from contracts.shard import CONSTANT_COLUMNS

    return (*CONSTANT_COLUMNS, "sample_id", "conversation_id", "source_dataset", "endpoint")


def _empty_names() -> pl.Expr:
    import polars as pl

    return pl.concat_str(
        [pl.when(_text(name).str.strip_chars() == "").then(pl.lit(name)) for name in _named()],
        separator=", ",
        ignore_nulls=True,
    )


@bulk(
    RuleSpec(
        "numbers-bad",
        "a turn, a sample or a source row is counted below 0",
        "number turns, samples and source rows from 0",
        column="sample_index",
        message="turn {turn}, sample {sample}, source row {source}",
    ),
    seen=lambda ctx: {
        "turn": _text("turn_index"),
        "sample": _text("sample_index"),
        "source": _text("source_row_index"),
    },
)
def numbers_bad(ctx: Context) -> pl.Expr:
    """Hold where the three counters are 0 or more."""
    import polars as pl

    return pl.all_horizontal([pl.col(n) >= 0 for n in ("turn_index", "sample_index", "source_row_index")])


@bulk(
    RuleSpec(
        "endpoint-mismatch",
        "the endpoint is not one of the transport's",
        "record transport and endpoint from the request itself",
        column="endpoint",
        message="transport {transport}, endpoint {endpoint}",
    ),
    seen=lambda ctx: {"transport": _text("transport"), "endpoint": _text("endpoint")},
)
def endpoint_mismatch(ctx: Context) -> pl.Expr:
    """Hold where `generate` went to /generate, and `chat` to a chat endpoint, or where nobody knows."""
    import polars as pl

    endpoint = _text("endpoint").str.replace(r"\?.*$", "")
    chat = pl.any_horizontal([endpoint.str.ends_with(name) for name in CHAT_ENDPOINTS])
    asked = (
        pl.when(_text("transport") == "generate").then(endpoint.str.ends_with("/generate")).otherwise(chat)
    )
    return asked & ~endpoint.str.contains(r"\s")


@row_check(
    RuleSpec(
        "sampling-bent",
        "something bent the sampling: a grammar, a forced tool choice, a logit bias, a penalty, a script",
        "leave the row out: it is no sample of the target model",
        column="constraint",
        severities=off_for_test(),
    ),
    reads=("constraint", "sampling_params", "tools"),
)
def sampling_bent(row: Row, ctx: Context) -> Iterator[Hit]:
    """Check the column `constraint`, and the request's own parameters for what it leaves out."""
    if row["constraint"] is not None:
        yield "sampling-bent", None, f"constraint {row['constraint'][:120]}"
        return
    sampling = parse(row["sampling_params"])
    bent = bent_by(sampling, tools=row["tools"] is not None) if isinstance(sampling, Mapping) else {}
    if bent:
        yield "sampling-bent", "sampling_params", f"the request set {', '.join(sorted(bent))}"


@bulk(
    RuleSpec(
        "parser-foreign",
        "a parser is not one of the format's",
        "boot the server with the format's own parsers; the judge goes by how those cut the text",
        column="reasoning_parser",
        kind="quality",
        message="reasoning parser {reasoning}, tool-call parser {tools}",
    ),
    seen=lambda ctx: {"reasoning": _text("reasoning_parser"), "tools": _text("tool_parser")},
)
def parser_foreign(ctx: Context) -> pl.Expr:
    """Hold where both parsers are the format's, or none; without known calls any tool parser will do."""
    import polars as pl

    from contracts.shard import NONE, UNKNOWN

    if ctx.format is None:
        return pl.lit(True)
    told = (NONE, UNKNOWN)  # what is unknown is told for the set
    own = _text("reasoning_parser").is_in([*ctx.format.reasoning_parsers, *told])
    if not ctx.format.tool_parsers:
        return own
    return own & _text("tool_parser").is_in([*ctx.format.tool_parsers, *told])


@set_check(
    RuleSpec(
        "provenance-not-constant",
        "a column that the profile calls constant has several values in one set",
        "certify the runs apart, one set each",
        scope="set",
        severities=off_for_test(),
    ),
    RuleSpec(
        "provenance-unknown",
        "the server did not tell part of its provenance",
        "record it: boot the server through shardgate, or pass what you know of it",
        scope="set",
        kind="quality",
        severities=off_for_test(),
    ),
)
class Provenance:
    """Remembers, column by column, where in the order of the rows the value changes."""

    def __init__(self) -> None:
        self._rows = Tape()
        self._runs: dict[str, list[tuple[str | None, int, int]]] = {}

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None:
        """Look at one frame; the set's first row sets each column's value."""
        import polars as pl

        if frame.is_empty():
            return
        start = self._rows.add(context.shard, first_row, {}, len(frame))
        for name in constant_columns(context.profile):
            for run in frame[name].cast(pl.String).rle().to_list():
                self._append(name, run["value"], start, run["len"])
                start += run["len"]
            start -= len(frame)

    def _append(self, name: str, value: str | None, start: int, length: int) -> None:
        runs = self._runs.setdefault(name, [])
        if runs and runs[-1][0] == value:
            runs[-1] = (value, runs[-1][1], runs[-1][2] + length)
        else:
            runs.append((value, start, length))

    def merge(self, other: Self) -> None:
        """Take over what was seen of the shards that come after."""
        before = self._rows.merge(other._rows)
        for name, runs in other._runs.items():
            for value, start, length in runs:
                self._append(name, value, before + start, length)

    def finish(self) -> Hits:
        """Return a hit per differing value, and one for each column that is unknown somewhere."""
        from contracts.shard import UNKNOWN

        differing = [
            (name, value, row)
            for name, runs in self._runs.items()
            for value, start, length in runs[1:]
            if value != runs[0][0]
            for row in range(start, start + length)
        ]
        places = self._rows.named({0, *(row for _, _, row in differing)}) if differing else {}
        hits: Hits = []
        for name, value, row in differing:
            shard, at, sample = places[row]
            told = f"it is {self._runs[name][0][0]!r} in {places[0][0]}, row {places[0][1]}"
            hits.append(("provenance-not-constant", shard, at, sample, f"{name} is {value!r}; {told}"))
        unknown = {name for name, runs in self._runs.items() if any(value == UNKNOWN for value, _, _ in runs)}
        hits += [("provenance-unknown", "", None, None, f"{name} is unknown") for name in sorted(unknown)]
        return hits
