"""The audit: shards in, findings out; with a folder to certify into, a certificate and a quarantine too.

Place in the flow: the contract's entry, over scan, rules and certify. Imports them; pyarrow, polars and
pandera while it runs. Read-only unless `certify` is given.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.errors import ShardgateError
from contracts.formats import FORMATS
from contracts.given import Given, Rates
from contracts.parallel import scan_all
from contracts.records import Finding, Profile, Severity
from contracts.rules import RULES, Thresholds, own_rules
from contracts.rules.rates import check_rates, checked_rules, counted
from contracts.rules.registry import Encode, SetCheck, Strength, finding
from contracts.rules.severities import check_severities
from contracts.scan import Scan, ScanOptions
from contracts.shard import SCHEMA_VERSION, arrow_schema
from contracts.stats import Stats
from contracts.tokens import Codec

if TYPE_CHECKING:
    from contracts.replayed import Replay

Progress = Callable[[str, int], None]
"""Called with (shard, rows read since the last call)."""


class AuditError(ShardgateError):
    """The audit was asked for something that it can't do."""


@dataclass(frozen=True, slots=True)
class ShardResult:
    """One shard's fate. `refused` means that the file as a whole can't be certified."""

    shard: str
    rows: int
    certified: int
    quarantined: int
    refused: bool
    sha256: str | None
    rules_fired: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What the audit found. Without `certify`, `certified` counts the rows that would be.

    rows = certified + quarantined. `verdicts`, `claims`, `losses` and `rates` are counts over all rows read;
    claims are keyed by name, then by `true`, `false` or `null`. `waived` counts findings by waived rule.
    `measured` is what `contracts.given.write_rates` stores for a later audit to be held against.
    """

    rows: int
    certified: int
    quarantined: int
    findings: tuple[Finding, ...]
    shards: tuple[ShardResult, ...]
    contract: str
    fingerprint: str
    profile: Profile
    strength: str
    verdicts: Mapping[str, int] = field(default_factory=dict)
    claims: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    losses: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, int] = field(default_factory=dict)
    provenance: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    waivers: Mapping[str, str] = field(default_factory=dict)
    waived: Mapping[str, int] = field(default_factory=dict)
    measured: Rates | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)
    certificate: str | None = None
    note: str = ""

    @property
    def errors(self) -> int:
        """Return the number of findings that are errors."""
        return sum(found.severity is Severity.ERROR for found in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with `rows`, `certified`, `quarantined`, `findings` and the rest by name."""
        return json.loads(json.dumps(asdict(self), default=list))  # type: ignore[no-any-return]


def audit(
    paths: Iterable[Path | str],
    *,
    profile: Profile | str = Profile.DRAFT,
    codec: Codec | None = None,
    certify: Path | str | None = None,
    waivers: Mapping[str, str] | None = None,
    strength: Strength = "token",
    thresholds: Thresholds | None = None,
    given: Given | None = None,
    checked_by: str | None = None,
    on_progress: Progress | None = None,
    processes: int | None = None,
    encode: Encode = "all",
    fast: bool = True,
    replay: Replay | None = None,
) -> AuditResult:
    """Check shards against the contract.

    Args:
        paths: parquet files; a folder stands for its own shards (or its `shards/`), sorted by name.
        codec: the target model's tokenizer (`contracts.tokens.load_codec`). Without it the rules that
            compare ids with text and fields stay unchecked, which is a finding.
        certify: the folder to certify into; None reads only.
        waivers: rule id → reason; the rule's findings become warnings and the certificate says so.
        given: an eval set, a draft vocabulary, an earlier set's rates, the chat template (`contracts.given`).
        checked_by: who signs off; the user's name by default.
        processes: how many, one shard each; all cores by default where there is enough to check.
        encode: of which rows the text is encoded again: "all", a "sample", "none"; only "all" certifies.
        fast: False has every rule look at every row by itself; the findings are the same.
        replay: what the model said of these shards (`contracts.replayed`), for the certificate.

    Raises:
        AuditError: no path was given, or a waiver names no rule, a file rule, or lacks a reason.
        WorkerError: a process that checked a shard was killed.
        CertifyError: the folder to certify into holds another certificate or shards that were not audited.
        ReplayRefused: the replay was made over other shards, or denies these.
    """
    profile, thresholds, given = Profile(profile), thresholds or Thresholds(), given or Given()
    check_severities(thresholds)
    waivers = _checked_waivers(waivers or {})
    files = expand(paths)
    if not files:
        raise AuditError("no shard to audit", remedy="give parquet files, or a folder that holds some")
    if encode != "all" and certify is not None:
        raise AuditError(
            "only an audit that encodes every row can certify",
            why=f"with encode={encode!r} the claim `tokens` is taken as stored",
            remedy="leave `encode` at its default",
        )
    options = ScanOptions(profile, codec, strength, thresholds, given, encode=encode, fast=fast)
    scans, set_checks = scan_all(files, options, processes, on_progress)
    findings = _collect(scans, set_checks, profile, strength, thresholds, codec is None)
    measured = _measured(
        scans, findings, checked_rules(profile, strength, thresholds, with_tokenizer=codec is not None)
    )
    told = [
        finding(rule, profile, "", message, thresholds=thresholds)
        for rule, _, _, _, message in check_rates(measured, thresholds, given.stored_rates)
    ]
    findings = [*(found for found in told if found), *findings]
    findings, waived = _waive(findings, waivers)
    _mark_bad(scans, findings)
    rates = Counter(found.rule for found in findings if found.severity is Severity.RATE)
    blocked = any(found.severity is Severity.ERROR and found.shard == "" for found in findings)
    result = _result(
        scans,
        _fold_rates(findings, sum(scan.rows for scan in scans)),
        blocked=blocked,
        contract=_contract(scans, strength),
        fingerprint=fingerprint(thresholds, strength, given),
        profile=profile,
        strength=strength,
        rates=dict(sorted(rates.items())),
        waivers=waivers,
        waived=dict(sorted(waived.items())),
        measured=measured,
    )
    if certify is None:
        return result
    from contracts.certify import certify as write_certificate

    return write_certificate(
        Path(certify), result, scans, findings, blocked=blocked, checked_by=checked_by, replay=replay
    )


def expand(paths: Iterable[Path | str]) -> list[Path]:
    """Return the files to audit: as given, folders replaced by the parquet files in them, none twice.

    Raises:
        AuditError: a folder holds no parquet file.
    """
    out: dict[Path, Path] = {}
    for given in map(Path, paths):
        inside = [given]
        if given.is_dir():
            folder = given / "shards" if (given / "shards").is_dir() else given
            inside = sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))
            if not inside and given.suffix == ".parquet":
                inside = [given]  # named as a shard: a finding among the others
            if not inside:
                raise AuditError(
                    "the folder holds no shards",
                    where=str(folder),
                    why="there is no *.parquet file in it; folders inside it are not looked into",
                    remedy="give the folder that the shards lie in, or the files themselves",
                )
        for path in inside:
            out.setdefault(path.resolve(), path)
    return list(out.values())


def fingerprint(
    thresholds: Thresholds | None = None, strength: str = "token", given: Given | None = None
) -> str:
    """Return the contract's fingerprint (SHA-256, hex): rules, thresholds, schema, formats and given data."""
    rules = [
        {**asdict(spec), "severities": {str(p): str(spec.severity(p)) for p in Profile}}
        for _, spec in sorted(RULES.items())
    ]
    formats = {name: repr(found) for name, found in sorted(FORMATS.items())}
    whole = [
        SCHEMA_VERSION,
        strength,
        rules,
        (thresholds or Thresholds()).to_json(),
        str(arrow_schema(strength)),
        formats,
        (given or Given()).digests(),
        sorted(own.sha256 for own in own_rules()),
    ]
    text = json.dumps(whole, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _contract(scans: Sequence[Scan], strength: str) -> str:
    formats = sorted({scan.format for scan in scans if scan.format})
    return f"{'+'.join(formats) or 'unknown'}/{strength}/v{SCHEMA_VERSION}"


def _checked_waivers(waivers: Mapping[str, str]) -> dict[str, str]:
    for rule, reason in waivers.items():
        if rule not in RULES:
            raise AuditError(
                f"no rule is named `{rule}`", remedy=f"the rules are: {', '.join(sorted(RULES))}"
            )
        if RULES[rule].scope == "file":
            raise AuditError(
                f"the rule `{rule}` can't be waived",
                why="it says that the file, or the means to check it, is not there",
                remedy=RULES[rule].remedy,
            )
        if not reason.strip():
            raise AuditError(
                f"the waiver of `{rule}` has no reason", remedy="say why; the certificate keeps it"
            )
    return dict(sorted(waivers.items()))


def _collect(
    scans: Sequence[Scan],
    set_checks: Sequence[SetCheck],
    profile: Profile,
    strength: Strength,
    thresholds: Thresholds,
    no_codec: bool,
) -> list[Finding]:
    """Return all findings: set first, then shard by shard in the order given, file, then row by row."""
    order = {scan.name: number for number, scan in enumerate(scans)}
    rank = {rule: number for number, rule in enumerate(RULES)}
    found = [finding for scan in scans for finding in scan.findings]
    if no_codec and strength == "token":
        told = finding(
            "tokenizer-missing",
            profile,
            "",
            "no tokenizer was given; text and fields were not checked",
            thresholds=thresholds,
        )
        found.extend([told] if told else [])
    for check in set_checks:
        for rule, shard, row, sample, message in check.finish():
            if strength not in RULES[rule].strengths:
                continue
            told = finding(rule, profile, shard, message, row=row, sample_id=sample, thresholds=thresholds)
            found.extend([told] if told else [])
    return sorted(
        found,
        key=lambda f: (order.get(f.shard, -1), -1 if f.row is None else f.row, rank[f.rule], f.message),
    )


def _measured(scans: Sequence[Scan], findings: Sequence[Finding], rules: Sequence[str]) -> Rates:
    """Count the rows that broke each rule, over the shards that were read as such."""
    read = {scan.name: scan for scan in scans if not scan.refused}
    rows = {(found.rule, found.shard, found.row) for found in findings if found.shard in read}
    broken = Counter(rule for rule, _, row in rows if row is not None)
    verdicts = sum((scan.verdicts for scan in read.values()), Counter[str]())
    return counted(rules, sum(scan.rows for scan in read.values()), broken, verdicts)


def _waive(findings: list[Finding], waivers: Mapping[str, str]) -> tuple[list[Finding], Counter[str]]:
    waived: Counter[str] = Counter()
    out = []
    for found in findings:
        if found.rule in waivers and found.severity is Severity.ERROR:
            waived[found.rule] += 1
            message = f"{found.message} (waived: {waivers[found.rule]})"
            found = replace(found, severity=Severity.WARNING, message=message)
        out.append(found)
    return out, waived


def _mark_bad(scans: Sequence[Scan], findings: Sequence[Finding]) -> None:
    """Set each scan's bad rows from the findings as they stand after waivers and data-set rules."""
    by_name = {scan.name: scan for scan in scans}
    for scan in scans:
        scan.bad.clear()
    for found in findings:
        if found.severity is Severity.ERROR and found.row is not None and found.shard in by_name:
            by_name[found.shard].bad.add(found.row)


def _fold_rates(findings: Sequence[Finding], rows: int) -> list[Finding]:
    """Replace the row findings of severity `rate` by one finding per rule over the set, put first."""
    rated: dict[str, list[Finding]] = {}
    for found in findings:
        if found.severity is Severity.RATE:
            rated.setdefault(found.rule, []).append(found)
    folded = [
        replace(
            cases[0],
            shard="",
            row=None,
            sample_id=None,
            message=f"{len(cases)} of {rows} rows ({100 * len(cases) / max(rows, 1):.3g} %): "
            f"{RULES[rule].meaning}; first {cases[0].shard}, row {cases[0].row}: {cases[0].message}",
        )
        for rule, cases in sorted(rated.items())
    ]
    return [*folded, *(found for found in findings if found.severity is not Severity.RATE)]


def _result(scans: Sequence[Scan], findings: Sequence[Finding], *, blocked: bool, **more: Any) -> AuditResult:
    shards = []
    fired: dict[str, dict[str, None]] = {}
    for found in findings:
        fired.setdefault(found.shard, {})[found.rule] = None
    for scan in scans:
        certified = 0 if scan.refused or blocked else scan.rows - len(scan.bad)
        shards.append(
            ShardResult(
                shard=scan.name,
                rows=scan.rows,
                certified=certified,
                quarantined=scan.rows - certified,
                refused=scan.refused,
                sha256=scan.digest.sha256 if scan.digest else None,
                rules_fired=tuple(fired.get(scan.name, ())),
            )
        )
    claims: dict[str, Counter[str]] = {}
    provenance: dict[str, set[str | None]] = {}
    stats = Stats()
    for scan in scans:
        stats.merge(scan.stats)
        for (name, value), count in scan.claims.items():
            claims.setdefault(name, Counter())[{True: "true", False: "false", None: "null"}[value]] += count
        for name, values in scan.provenance.items():
            provenance.setdefault(name, set()).update(values)
    return AuditResult(
        rows=sum(shard.rows for shard in shards),
        certified=sum(shard.certified for shard in shards),
        quarantined=sum(shard.quarantined for shard in shards),
        findings=tuple(findings),
        shards=tuple(shards),
        verdicts=dict(sorted(sum((scan.verdicts for scan in scans), Counter()).items())),
        claims={name: dict(sorted(counts.items())) for name, counts in sorted(claims.items())},
        losses=dict(sorted(sum((scan.losses for scan in scans), Counter()).items())),
        provenance={
            name: sorted(values, key=lambda v: (v is not None, v or ""))
            for name, values in sorted(provenance.items())
        },
        stats=stats.to_json(),
        **more,
    )
