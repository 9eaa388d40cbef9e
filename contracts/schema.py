"""The contract as pandera sees it: the shard's columns in polars types, and a row's verdicts, one per rule.

Place in the flow: between the rules and the audit. Imports pandera and polars at the top, so only the audit
imports it, and only when it runs.

Traps of pandera 0.35 that this module keeps clear of: a failing frame check serialises whole rows (so values
are checked over Boolean columns only), a null check result passes (so nulls become False first), a LazyFrame
gets schema checks only (so frames are eager). Rows are located from the Boolean columns, never from
pandera's failure cases.
"""

from __future__ import annotations

from functools import lru_cache

import pandera.polars as pa
import polars as pl
from pandera.errors import SchemaError, SchemaErrors

from contracts.contract import columns_model
from contracts.rules.registry import RULES, Strength

ALL = "all-rules"


def shard_schema(strength: Strength = "token") -> pa.DataFrameSchema:
    """Return the pandera schema of a shard's frame: the base contract's, columns in order, no others."""
    return columns_model(strength).to_schema()


@lru_cache(maxsize=8)
def verdict_schema(rule_ids: tuple[str, ...]) -> pa.DataFrameSchema:
    """Return the pandera schema of a shard's Boolean frame: a column per rule, true where a row keeps it."""
    columns = {
        rule_id: pa.Column(
            pl.Boolean,
            pa.Check.eq(True, error=RULES[rule_id].meaning, raise_warning=False),
            nullable=False,
            description=RULES[rule_id].meaning,
        )
        for rule_id in rule_ids
    }
    return pa.DataFrameSchema(columns, strict=True, name="verdicts")


@lru_cache(maxsize=1)
def _all_schema() -> pa.DataFrameSchema:
    """Return the pandera schema of what several rules say together."""
    kept = pa.Check.eq(True, error="every rule is kept", raise_warning=False)
    return pa.DataFrameSchema({ALL: pa.Column(pl.Boolean, kept, nullable=False)}, strict=True, name=ALL)


def type_faults(frame: pl.DataFrame, strength: Strength = "token") -> list[str]:
    """Return what pandera says against a frame's columns and types; empty where it is a shard's."""
    return list(_type_faults(tuple(frame.schema.items()), strength))


@lru_cache(maxsize=64)
def _type_faults(columns: tuple[tuple[str, pl.DataType], ...], strength: Strength) -> tuple[str, ...]:
    """Validate an empty frame of these columns: the answer depends on nothing else."""
    try:
        shard_schema(strength).validate(pl.DataFrame(schema=dict(columns)), lazy=True)
    except (SchemaErrors, SchemaError) as error:
        return tuple(str(case) for case in error.failure_cases["failure_case"].to_list())
    return ()


def broken_rules(verdicts: pl.DataFrame) -> set[str]:
    """Return the rules that pandera finds broken in a Boolean frame.

    The audit holds this against its own reading of the frame, so that neither can pass a row alone.
    """
    if verdicts.is_empty():
        return set()
    doubtful = [rule for rule in verdicts.columns if not verdicts[rule].all()]
    kept = verdicts.drop(doubtful)
    together = pl.all_horizontal(pl.all()).alias(ALL)
    if not (kept.width and _broken(kept.select(together), _all_schema())):
        verdicts = verdicts.select(doubtful)  # a column costs a millisecond
    return _broken(verdicts, verdict_schema(tuple(verdicts.columns))) if verdicts.width else set()


def _broken(verdicts: pl.DataFrame, schema: pa.DataFrameSchema) -> set[str]:
    try:
        schema.validate(verdicts, lazy=True)
    except (SchemaErrors, SchemaError) as error:
        return set(error.failure_cases["column"].to_list())
    return set()
