"""The contracts as pandera models: the shard's columns, and a family's rules as checks on them.

Place in the flow: beside the audit, which runs the same rules over whole files. Imports pandera and polars at
the top, so only who asks for a contract imports them; rules, rowwise, formats and shard of `contracts`.

    from contracts.contract import contract_for

    contract_for("kimi_k2", "token", codec=codec).validate(polars.read_parquet("shards/00000.parquet"))

raises pandera's own `SchemaError` (`SchemaErrors` with `lazy=True`), whose failure cases are the sample ids
of the rows that break a rule. Rules of the severity `warning` are pandera's warnings. Rates, which say
nothing of one row, and rules over files and whole sets are left to the audit.

Traps of pandera 0.35 that this module keeps clear of, each held by a test: a check over the whole frame
serialises every failing row, tokens and all (so each check stands on the column `sample_id`); a null check
result passes (so it becomes False first); a LazyFrame gets schema checks only (so it is collected); rows are
never dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, ClassVar

import pandera.polars as pa
import polars as pl

from contracts.errors import ShardgateError
from contracts.formats import FORMATS, format_named
from contracts.given import Given
from contracts.records import Profile, Severity, ThinkingMode
from contracts.rowwise import row_hits
from contracts.rules import BULK, RULES, Thresholds
from contracts.rules.registry import Batch, Context, RuleSpec, Strength, severity_of
from contracts.shard import SCHEMA_VERSION, arrow_schema

Memory = dict[str, Any]
_memory: ContextVar[Memory | None] = ContextVar("rows", default=None)
"""What the row rules found in the frame that is being validated: they run once for all of them."""


class ShardModel(pa.DataFrameModel):
    """What every contract is: the shard's columns in order, nothing else, and some rules as checks.

    Nulls are the rule `null-value`'s, which names the row; so every column is nullable to pandera.
    """

    class Config:
        strict = True
        ordered = True
        metadata: ClassVar[dict[str, Any]] = {}

    @classmethod
    def facts(cls) -> Mapping[str, Any]:
        """Return what the contract is made for: strength, rules, the family's parsers, switch and ends."""
        return dict(cls.Config.metadata)

    @classmethod
    def validate(cls, check_obj: Any, *args: Any, **options: Any) -> Any:
        """Validate a frame and return it; a LazyFrame is collected, since pandera would check types only."""
        lazy = isinstance(check_obj, pl.LazyFrame)
        token = _memory.set({})
        try:
            checked = super().validate(check_obj.collect() if lazy else check_obj, *args, **options)
        finally:
            _memory.reset(token)
        return checked.lazy() if lazy else checked


@lru_cache(maxsize=2)
def columns_model(strength: Strength = "token") -> type[ShardModel]:
    """Return the base contract of a strength: every column of the shard and its type, no rules."""
    empty = pl.DataFrame(pl.from_arrow(arrow_schema(strength).empty_table()))
    return _model(
        f"Shard{strength.title()}",
        ShardModel,
        {name: pa.Field(nullable=True) for name in empty.schema},
        annotations=dict(empty.schema),
        metadata={"schema_version": SCHEMA_VERSION, "strength": strength, "rules": ()},
    )


def contract_for(
    family: str,
    strength: Strength = "token",
    *,
    profile: Profile | str = Profile.DRAFT,
    codec: Any = None,
    thresholds: Thresholds | None = None,
    given: Given | None = None,
    constants: Mapping[str, str | None] | None = None,
) -> type[ShardModel]:
    """Return the contract of a format family as a pandera model.

    `codec` (`contracts.tokens.load_codec`) is what the rules need that compare ids with text and fields:
    without it the model does not have them; `facts()["rules"]` lists those it has. `constants` is what a
    shard's metadata repeats.

    Raises:
        ShardgateError: no family has this name, or there is no such strength.
    """
    found = format_named(family)
    if found is None or strength not in ("token", "text"):
        raise ShardgateError(
            what=f"there is no contract for `{family}`, strength `{strength}`",
            remedy=f"the families are {', '.join(sorted(FORMATS))}; the strengths are token and text",
        )
    context = Context(
        profile=Profile(profile),
        shard="",
        format=found,
        codec=codec,
        strength=strength,
        constants=constants or {},
        thresholds=thresholds or Thresholds(),
        given=given or Given(),
    )
    rules = {
        rule: spec
        for rule, spec in RULES.items()
        if spec.scope == "row" and _severity(spec, context) is not None
    }
    checks = {f"rule_{rule.replace('-', '_')}": _check(spec, context) for rule, spec in rules.items()}
    return _model(
        f"{found.name.title().replace('_', '').replace('+', '')}{strength.title()}",
        columns_model(strength),
        checks,
        metadata={
            "schema_version": SCHEMA_VERSION,
            "strength": strength,
            "format": found.name,
            "profile": str(context.profile),
            "reasoning_parsers": found.reasoning_parsers,
            "tool_parsers": found.tool_parsers,
            "thinking_modes": tuple(map(str, ThinkingMode)) if found.thinks else (str(found.default_mode),),
            "template_switch": found.template_switch,
            "end_tokens": found.end_tokens,
            "rules": tuple(rules),
        },
    )


def _model(
    name: str,
    base: type[ShardModel],
    parts: Mapping[str, Any],
    *,
    metadata: Mapping[str, Any],
    annotations: Mapping[str, Any] | None = None,
) -> type[ShardModel]:
    config = type("Config", (base.Config,), {"name": name, "metadata": dict(metadata)})
    return type(
        name,
        (base,),
        {
            "__annotations__": dict(annotations or {}),
            "__module__": __name__,
            "__doc__": f"The contract {name}; `facts()` tells what it is made for.",
            "Config": config,
            **parts,
        },
    )


def _severity(spec: RuleSpec, context: Context) -> Severity | None:
    """Return what a rule is to pandera: an error, a warning, or None where it is no check of one row's."""
    if not context.active(spec):
        return None
    severity = severity_of(spec, context.profile, context.thresholds)
    return None if severity is Severity.RATE else severity


def _check(spec: RuleSpec, context: Context) -> Any:
    """Return a rule as pandera's check on the column `sample_id`."""
    holds = BULK[spec.id].holds if spec.id in BULK else None

    def check(cls: type[ShardModel], data: pa.PolarsData) -> pl.LazyFrame:
        if holds is not None:
            # A rule over a constant gives one value for the whole frame.
            kept = holds(context).fill_null(False).alias("kept")
            return data.lazyframe.select(pl.col(data.key), kept).select("kept")
        return pl.LazyFrame({"kept": ~_broken_rows(data.lazyframe, context, spec.id)})

    wrap: Callable[..., Any] = pa.check(
        "sample_id",
        name=spec.id,
        error=f"{spec.id}: {spec.meaning}; {spec.remedy}",
        raise_warning=_severity(spec, context) is Severity.WARNING,
        ignore_na=False,
    )
    return wrap(check)


def _broken_rows(rows: pl.LazyFrame, context: Context, rule: str) -> pl.Series:
    """Return per row whether it breaks a rule that looks at one row at a time."""
    memory = _memory.get()
    memory = {} if memory is None else memory
    if "broken" not in memory:
        frame = rows.collect()
        table = frame.to_arrow().cast(arrow_schema(context.strength))
        broken: dict[str, set[int]] = {}
        for at, name, *_ in row_hits(Batch(table, frame), context):
            broken.setdefault(name, set()).add(at)
        memory["broken"], memory["rows"] = broken, frame.height
    return pl.Series([at in memory["broken"].get(rule, ()) for at in range(memory["rows"])], dtype=pl.Boolean)
