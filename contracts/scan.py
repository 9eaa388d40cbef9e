"""One shard through the rules: opened, read row group by row group, every broken rule told with its row.

Place in the flow: inside the audit. Imports rules, segments and shard of `contracts`; pyarrow, polars and
pandera while it runs. Whatever is wrong with a file is a finding; the run goes on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.batch_digests import name_lines, names_digest
from contracts.batches import read_batches
from contracts.formats import FORMATS, format_named
from contracts.given import Given
from contracts.records import Finding, Profile, Severity
from contracts.rowwise import one_line, row_hits
from contracts.rules import BUILT_IN, BULK, RULES, Context, Thresholds
from contracts.rules.footer import Footer
from contracts.rules.own import used
from contracts.rules.registry import Batch, BulkCheck, Encode, SetCheck, Strength, finding
from contracts.segments import CheckedFile, FileDigest
from contracts.shard import METADATA_PREFIX, NAMES_KEY, SCHEMA_VERSION, arrow_schema
from contracts.stats import Stats
from contracts.tokens import Codec

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

MAX_FAULTS_SHOWN = 4


@dataclass(slots=True)
class Scan:
    """What one pass over a shard found. `rows` is 0 where the file could not be read.

    `refused` tells that the file as a whole is not a shard of its contract: none of its rows can be
    certified. `bad` holds the rows that broke an error rule.
    """

    path: Path
    name: str
    digest: FileDigest | None = None
    rows: int = 0
    refused: bool = False
    format: str | None = None
    strength: str | None = None
    findings: list[Finding] = field(default_factory=list)
    bad: set[int] = field(default_factory=set)
    verdicts: Counter[str] = field(default_factory=Counter)
    claims: Counter[tuple[str, bool | None]] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    provenance: dict[str, set[str | None]] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """What a scan needs to know: profile, tokenizer, strength, thresholds, and a callback for progress.

    `encode` and `fast` are the context's (`contracts.rules.registry`).
    """

    profile: Profile
    codec: Codec | None
    strength: Strength = "token"
    thresholds: Thresholds = field(default_factory=Thresholds)
    given: Given = field(default_factory=Given)
    on_rows: Callable[[int], None] | None = None
    encode: Encode = "all"
    fast: bool = True


def scan_shard(path: Path, name: str, options: ScanOptions, set_checks: Sequence[SetCheck]) -> Scan:
    """Run all rules over one shard and feed the data-set rules with its frames."""
    scan = Scan(path, name)

    def refuse(rule: str, message: str) -> None:
        told = finding(rule, options.profile, name, message, thresholds=options.thresholds)
        if told is not None:
            scan.findings.append(told)
            scan.refused = scan.refused or told.severity is Severity.ERROR

    if not path.exists():
        refuse("shard-missing", "there is no such file")
        return scan
    if path.is_dir():
        refuse("shard-unreadable", "it is a folder, not a file")
        return scan
    if not path.is_file():
        refuse("shard-unreadable", "it is a pipe, a socket or a device, not a file")
        return scan
    import pyarrow as pa

    try:
        _scan_file(scan, options, set_checks, refuse)
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        refuse("shard-unreadable", one_line(error))
    except BaseException as error:
        # A panic inside a Rust library is no `Exception`; it must not end the run over the other shards.
        if type(error).__name__ != "PanicException":
            raise
        refuse("shard-unreadable", one_line(error))
    return scan


def _scan_file(
    scan: Scan, options: ScanOptions, set_checks: Sequence[SetCheck], refuse: Callable[[str, str], None]
) -> None:
    import polars as pl
    import pyarrow.parquet as pq

    from contracts.schema import broken_rules, type_faults

    checked = CheckedFile(scan.path)
    scan.digest = checked.whole
    with checked.open() as handle, pq.ParquetFile(handle) as parquet:
        rows = parquet.metadata.num_rows
        if rows < 0 or rows > checked.whole.size:
            refuse("shard-unreadable", f"the footer tells {rows} rows in {checked.whole.size} bytes")
            return
        scan.rows = rows
        if rows == 0:
            refuse("shard-empty", "the footer tells no rows")
        schema = parquet.schema_arrow
        readable = _check_schema(schema, options.strength, refuse)
        context = _context(scan, schema.metadata or {}, options, refuse)
        if not readable or rows == 0:
            return
        checks: dict[str, pl.Expr] = {}
        verdicts: list[pl.DataFrame] = []
        names: list[bytes] | None = []
        first = 0
        footer = Footer(parquet.metadata)
        for table in read_batches(parquet):
            table.validate(full=True)  # polars takes texts and offsets as they are, and panics later
            footer.add(table)
            frame = pl.DataFrame(pl.from_arrow(table))
            if first == 0 and (faults := type_faults(frame, options.strength)):
                refuse("schema-mismatch", "; ".join(faults[:MAX_FAULTS_SHOWN]))
                return
            checks = checks or _expressions(context, frame)
            verdicts.append(_bulk(scan, context, checks, frame, first))
            for at, rule, column, message, sample in row_hits(Batch(table, frame), context):
                _hit(scan, context, rule, first + at, column, message, sample)
            names = _with_names(names, frame)
            if not scan.refused:  # a file that is no shard must not make good rows look doubled
                for check in set_checks:
                    check.add(context, first, frame)
            _count(scan, frame)
            scan.stats.add(scan.name, first, frame)
            first += table.num_rows
            if options.on_rows is not None:
                options.on_rows(table.num_rows)
        stated = (schema.metadata or {}).get(NAMES_KEY.encode())
        if stated is not None and stated.decode() != (None if names is None else names_digest(names)):
            refuse("names-changed", f"the digest that `{NAMES_KEY}` repeats is another one")
        if false := footer.faults():
            refuse("statistics-false", "; ".join(false[:MAX_FAULTS_SHOWN]))
        whole = pl.concat(verdicts)
        if first != rows:
            refuse("shard-unreadable", f"the footer tells {rows} rows, {first} were there")
            return
        own = {name for name in whole.columns if not whole[name].all()}
        if own != broken_rules(whole):
            raise AssertionError(f"pandera and the audit read the verdicts of {scan.name} differently")
    digest = checked.digest()
    if digest is None:
        refuse("shard-unreadable", "it was changed while it was read")
    else:
        scan.digest = digest


def _with_names(lines: list[bytes] | None, frame: pl.DataFrame) -> list[bytes] | None:
    """Return the lines with the frame's; None where a null keeps a row's line from being made."""
    try:
        return None if lines is None else [*lines, *name_lines(frame)]
    except TypeError:
        return None


def _check_schema(schema: pa.Schema, strength: str, refuse: Callable[[str, str], None]) -> bool:
    """Compare with the shard schema; return whether the rows can still be checked one by one."""
    expected = arrow_schema(strength)
    if schema.equals(expected):
        return True
    faults, readable = [], True
    for wanted in expected:
        at = schema.get_all_field_indices(wanted.name)
        if len(at) != 1:
            faults.append(f"column {wanted.name} is {'missing' if not at else 'there twice'}")
            readable = False
            continue
        got = schema.field(at[0])
        if not got.equals(wanted):
            faults.append(f"{wanted.name} is {_said(got)}, not {_said(wanted)}")
            readable = readable and _unnulled(got) == _unnulled(wanted)
    extra = [name for name in schema.names if name not in expected.names]
    if extra:
        faults.append(f"unknown columns {', '.join(extra)}")
        readable = False
    if not faults:
        faults.append("the columns are in another order")
        readable = False
    more = len(faults) - MAX_FAULTS_SHOWN
    told = "; ".join(faults[:MAX_FAULTS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    refuse("schema-mismatch", told)
    return readable


def _said(field_: pa.Field) -> str:
    return f"{field_.type}{'' if field_.nullable else ' not null'}"


def _unnulled(field_: pa.Field) -> str:
    return str(field_.type).replace(" not null", "")


def _context(
    scan: Scan, metadata: Mapping[bytes, bytes], options: ScanOptions, refuse: Callable[[str, str], None]
) -> Context:
    said = {
        key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in metadata.items()
    }
    values = {
        key.removeprefix(METADATA_PREFIX): v for key, v in said.items() if key.startswith(METADATA_PREFIX)
    }
    missing = [key for key in ("schema_version", "format", "strength", "constants") if key not in values]
    constants: dict[str, str | None] = {}
    if missing:
        refuse("metadata-missing", f"missing: {', '.join(METADATA_PREFIX + key for key in missing)}")
    elif values["schema_version"] != SCHEMA_VERSION or values["strength"] != options.strength:
        refuse(
            "metadata-missing",
            f"schema version {values['schema_version']!r} and strength {values['strength']!r}; "
            f"this contract is version {SCHEMA_VERSION!r}, strength {options.strength!r}",
        )
    else:
        constants = _constants(values["constants"], refuse)
    scan.format, scan.strength = values.get("format"), values.get("strength")
    found = format_named(scan.format or "")
    if found is None and "format" in values:
        refuse("format-unknown", f"format {scan.format!r}; known: {', '.join(FORMATS)}")
    if found is not None and options.codec is not None:
        lacking = [marker for marker in found.markers if options.codec.token_id(marker) is None]
        if lacking:
            refuse("marker-not-token", f"{found.name}: {', '.join(lacking)}")
        stated, given = constants.get("tokenizer_sha256"), options.codec.sha256
        if stated not in (None, "unknown") and given is not None and stated != given:
            refuse("tokenizer-mismatch", f"rows: {stated[:16]}…, given: {given[:16]}…")
    return Context(
        profile=options.profile,
        shard=scan.name,
        format=found,
        codec=options.codec,
        strength=options.strength,
        constants=constants,
        thresholds=options.thresholds,
        given=options.given,
        encode=options.encode,
        fast=options.fast,
    )


def _constants(text: str, refuse: Callable[[str, str], None]) -> dict[str, str | None]:
    from contracts.shard import CONSTANT_COLUMNS, RUN_COLUMNS

    try:
        value = json.loads(text)
    except ValueError:
        value = None
    known = {*CONSTANT_COLUMNS, *RUN_COLUMNS}
    fits = isinstance(value, dict) and all(
        key in known and (item is None or isinstance(item, str)) for key, item in value.items()
    )
    if not fits:
        refuse("metadata-missing", f"`{METADATA_PREFIX}constants` is no object of the provenance columns")
        return {}
    return dict(value)


def _expressions(context: Context, frame: pl.DataFrame) -> dict[str, pl.Expr]:
    """Return the expression of each rule that has one and is on, for all of a shard's frames."""
    return {
        rule: (check.holds(context) if rule in BUILT_IN else _own(check, context, frame)).fill_null(False)
        for rule, check in BULK.items()
        if context.active(RULES[rule])
    }


def _bulk(
    scan: Scan, context: Context, checks: Mapping[str, pl.Expr], frame: pl.DataFrame, first: int
) -> pl.DataFrame:
    """Run the expression rules; return the Boolean frame, one column per rule."""
    import polars as pl

    verdicts = frame.select(**checks)
    if verdicts.height == 1 and frame.height > 1:
        verdicts = pl.concat([verdicts] * frame.height)
    for rule in checks:
        check, column = BULK[rule], verdicts[rule]
        if column.all():
            continue
        places = (~column).arg_true()
        seen = check.seen(context) if check.seen else {}
        # Only what is shown is copied: where every row is bad, whole rows would be all of the batch again.
        read = {"sample_id", *(name for value in seen.values() for name in value.meta.root_names())}
        failing = frame.select(sorted(read))[places]
        shown = failing.select("sample_id", **{f"seen_{key}": value for key, value in seen.items()})
        for offset, values in zip(places.to_list(), shown.rows(), strict=True):
            words = {key: _word(value) for key, value in zip(seen, values[1:], strict=True)}
            message = check.rule.message.format(**words) if check.rule.message else check.rule.meaning
            _hit(scan, context, check.rule.id, first + offset, None, message, values[0])
    return verdicts


def _own(check: BulkCheck, context: Context, frame: pl.DataFrame) -> pl.Expr:
    """Return the expression of a user's rule, once it has shown on one row that it is one."""
    import polars as pl

    with used(check.rule.id):
        found = check.holds(context)
        if not isinstance(found, pl.Expr):
            raise TypeError(f"it returned {type(found).__name__}, not an expression")
        kind = frame.head(1).select(found.alias("holds"))["holds"].dtype
        if kind not in (pl.Boolean, pl.Null):
            raise TypeError(f"its expression gives {kind}, not Boolean")
    return found


def _word(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _hit(
    scan: Scan, context: Context, rule: str, row: int, column: str | None, message: str, sample: str | None
) -> None:
    told = finding(
        rule,
        context.profile,
        scan.name,
        message,
        row=row,
        column=column,
        sample_id=sample,
        thresholds=context.thresholds,
    )
    if told is None:
        return
    scan.findings.append(told)
    if told.severity is Severity.ERROR:
        scan.bad.add(row)


def _count(scan: Scan, frame: pl.DataFrame) -> None:
    import polars as pl

    from contracts.shard import CONSTANT_COLUMNS, RUN_COLUMNS

    scan.verdicts.update(_counts(frame["verdict"].drop_nulls()))
    scan.losses.update(_counts(frame["losses"].explode().drop_nulls()))
    for name in ("captured", "text", "rebuilt", "tokens"):
        values = _counts(frame["claims"].struct.field(name))
        scan.claims.update({(name, value): count for value, count in values.items()})
    for name in (*CONSTANT_COLUMNS, *RUN_COLUMNS):
        scan.provenance.setdefault(name, set()).update(frame[name].cast(pl.String).unique().to_list())


def _counts(values: pl.Series) -> dict[Any, int]:
    return dict(values.value_counts().iter_rows())
