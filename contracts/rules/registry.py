"""The rule registry: one frozen spec per rule, and the checks that are tied to it.

Place in the flow: under the audit. Imports `contracts.errors`, `contracts.formats.base`, `contracts.records`,
`contracts.thresholds` and `contracts.tokens`' protocol; polars only while a check runs. Help, docs, report
and the contract's fingerprint derive from this table.

A rule of your own, from Python:

    from contracts.rules.registry import RuleSpec, bulk

    @bulk(RuleSpec("short", "content too short", "generate again", column="content", kind="quality"))
    def short(ctx):
        return polars.col("content").str.len_bytes() >= 8
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from contracts.errors import ShardgateError
from contracts.formats.base import Format
from contracts.given import Given
from contracts.records import Finding, Profile, Severity
from contracts.thresholds import Thresholds
from contracts.tokens import Codec

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

Row = Mapping[str, Any]
Kind = Literal["fidelity", "quality"]
Scope = Literal["row", "file", "set"]
Strength = Literal["token", "text"]
Encode = Literal["all", "sample", "none"]
"""Of which ordinary rows the text is encoded again; the others' claim `tokens` is taken as stored."""
Hit = tuple[str, str | None, str]
"""What a row check yields: (rule id, column or None for the rule's own, message)."""


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """One rule: what it means when it fires, what to do, and how severe it is for each profile.

    `column` is the column a finding names. `report` points to the public report behind the rule. `message`
    is a template over the values that a bulk check shows. `severities` overrides the kind's own (fidelity:
    error, quality: warning); None there turns the rule off for that profile. `needs_tokenizer` rules stay
    unchecked without one; `strengths` are the contracts that have the rule.
    """

    id: str
    meaning: str
    remedy: str
    column: str | None = None
    kind: Kind = "fidelity"
    scope: Scope = "row"
    report: str = ""
    message: str = ""
    severities: Mapping[Profile, Severity | None] = field(default_factory=dict)
    needs_tokenizer: bool = False
    strengths: tuple[Strength, ...] = ("token", "text")

    def severity(self, profile: Profile) -> Severity | None:
        """Return the rule's severity for a profile; None: the rule is off."""
        default = Severity.ERROR if self.kind == "fidelity" else Severity.WARNING
        return self.severities.get(profile, default)


@dataclass(frozen=True, slots=True)
class Context:
    """What a check may know besides the rows: profile, format, tokenizer, thresholds, the file's own words.

    `constants` is what the shard's metadata repeats. `codec` is None where no tokenizer was given. `encode`
    says of which rows the text is encoded again; with `fast` False every check sees every row, as tests want.
    """

    profile: Profile
    shard: str
    format: Format | None
    codec: Codec | None
    strength: Strength = "token"
    constants: Mapping[str, str | None] = field(default_factory=dict)
    thresholds: Thresholds = field(default_factory=Thresholds)
    given: Given = field(default_factory=Given)
    encode: Encode = "all"
    fast: bool = True

    def ids_of(self, texts: Iterable[str]) -> list[int]:
        """Return the ids of those texts that are single marker tokens of the tokenizer."""
        if self.codec is None:
            return []
        return [found for text in texts if (found := self.codec.token_id(text)) is not None]

    def active(self, rule: RuleSpec) -> bool:
        """Return whether the rule is on for this profile and strength and has what it needs."""
        if severity_of(rule, self.profile, self.thresholds) is None or self.strength not in rule.strengths:
            return False
        return not rule.needs_tokenizer or (self.codec is not None and self.format is not None)


@dataclass(frozen=True, slots=True)
class BulkCheck:
    """A rule as one Boolean polars expression, true where the row keeps it; null counts as broken.

    `seen` gives the expressions whose values a failing row's message shows.
    """

    rule: RuleSpec
    holds: Callable[[Context], pl.Expr]
    seen: Callable[[Context], Mapping[str, pl.Expr]] | None = None


class SetCheck(Protocol):
    """A rule over all shards: fed the frames one by one, asked for its findings at the end.

    One per shard is filled, maybe in a process of its own (so it must pickle); they are merged in the order
    of the shards, and only the merged one is asked. Merged or fed in one go, the findings must be the same.
    """

    def add(self, context: Context, first_row: int, frame: pl.DataFrame) -> None: ...

    def merge(self, other: Self) -> None:
        """Take over what another check of this kind saw of the shards that come after."""
        ...

    def finish(self) -> list[tuple[str, str, int | None, str | None, str]]:
        """Return (rule id, shard, row or None, sample_id or None, message)."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of a shard in both forms, without a copy: an Arrow table, and a polars frame over it.

    `made` keeps what several checks need of these rows, by name (`contracts.columns`).
    """

    table: pa.Table
    frame: pl.DataFrame
    made: dict[str, Any] = field(default_factory=dict)


RowCheck = Callable[[Row, Context], Iterable[Hit]]
Suspects = Callable[[Batch, Context], "pl.Series"]
"""Which rows of a batch a row check must look at: Boolean, null counts as true.

It may leave out only rows in which the check finds nothing.
"""

RULES: dict[str, RuleSpec] = {}
BULK: dict[str, BulkCheck] = {}
ROW_CHECKS: list[RowCheck] = []
SUSPECTS: dict[RowCheck, Suspects] = {}
"""The row checks that need not look at every row."""
DISTINCT: dict[RowCheck, tuple[str, ...]] = {}
"""The row checks that read these columns only: each distinct combination of values is checked once."""
SET_CHECKS: list[Callable[[], SetCheck]] = []


def declare(*specs: RuleSpec) -> None:
    """Enter rules into the registry.

    Raises:
        ShardgateError: a rule of that id is there already.
    """
    for spec in specs:
        if spec.id in RULES:
            raise ShardgateError(
                what=f"the rule `{spec.id}` is declared twice", remedy="give your own rule another id"
            )
        RULES[spec.id] = spec


def bulk(
    spec: RuleSpec, *, seen: Callable[[Context], Mapping[str, pl.Expr]] | None = None
) -> Callable[[Callable[[Context], pl.Expr]], Callable[[Context], pl.Expr]]:
    """Declare a rule whose check is one Boolean polars expression (true: the row keeps the rule)."""
    declare(spec)

    def tie(holds: Callable[[Context], pl.Expr]) -> Callable[[Context], pl.Expr]:
        BULK[spec.id] = BulkCheck(spec, holds, seen)
        return holds

    return tie


def row_check(
    *specs: RuleSpec, suspects: Suspects | None = None, reads: tuple[str, ...] = ()
) -> Callable[[RowCheck], RowCheck]:
    """Declare rules that one function checks row by row, yielding a hit per broken rule.

    Without more it is called for every row, which is slow. `suspects` says which rows of a batch it must
    look at. `reads` names all columns that it reads, where these hold few distinct values: it is called once
    for each combination of them.
    """
    declare(*specs)

    def tie(check: RowCheck) -> RowCheck:
        ROW_CHECKS.append(check)
        if suspects is not None:
            SUSPECTS[check] = suspects
        if reads:
            DISTINCT[check] = reads
        return check

    return tie


def set_check(*specs: RuleSpec) -> Callable[[type], type]:
    """Declare rules that one class checks over the whole set."""
    declare(*(replace(spec, scope="set") if spec.scope == "file" else spec for spec in specs))

    def tie(check: type) -> type:
        SET_CHECKS.append(check)
        return check

    return tie


def finding(
    rule_id: str,
    profile: Profile,
    shard: str,
    message: str,
    *,
    row: int | None = None,
    column: str | None = None,
    sample_id: str | None = None,
    thresholds: Thresholds | None = None,
) -> Finding | None:
    """Return the finding of a broken rule; None where profile or thresholds have the rule turned off."""
    spec = RULES[rule_id]
    severity = severity_of(spec, profile, thresholds)
    if severity is None:
        return None
    return Finding(
        rule=rule_id,
        severity=severity,
        shard=shard,
        row=row,
        column=column or spec.column,
        message=message,
        remedy=spec.remedy,
        sample_id=sample_id,
    )


def severity_of(rule: RuleSpec, profile: Profile, thresholds: Thresholds | None = None) -> Severity | None:
    """Return a rule's severity for a profile, as the thresholds override it; None: the rule is off."""
    if thresholds is not None:
        own = thresholds.severities.get(profile, {})
        if rule.id in own:
            return own[rule.id]
    return rule.severity(profile)


def off_for_test(severity: Severity | None = None) -> dict[Profile, Severity | None]:
    """Return severities that differ in the profile `test` only."""
    return {Profile.TEST: severity}


RATE_BUT_SFT: Mapping[Profile, Severity | None] = dict.fromkeys(
    (Profile.DRAFT, Profile.RL, Profile.TEST), Severity.RATE
)
"""For what the model really said: a rate, but where texts are trained on a warning."""


def column(name: str) -> pl.Expr:
    """Return the expression of a column; polars is imported only now, when a check runs."""
    import polars as pl

    return pl.col(name)


def blank(name: str) -> pl.Expr:
    """Return whether a text column is null, empty, or white space."""
    return column(name).fill_null("").str.strip_chars() == ""
