"""What the harness reports: one outcome per prompt and mode, one line per shard, one recommendation.

Place in the flow: after the judge, before the report. Imports `contracts.records` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from contracts.records import Divergence, Loss, Mode, ServerFacts, Transport, Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """One golden prompt in one mode: what came back and whether it is what the fixture expects.

    `expected` is None for a prompt whose fixture states nothing for this mode. `server` is a short label
    (`parsers`, `no parsers`, or the URL's host:port). `fault` is set when no capture could be judged.
    """

    prompt: str
    mode: Mode
    transport: Transport
    stream: bool
    server: str
    scripted: bool
    verdict: Verdict
    losses: tuple[Loss, ...]
    divergence: Divergence | None
    expected: bool | None
    expectation: str = ""
    fault: str | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class ShardLine:
    """One shard's fate: rows in, certified, quarantined, and the contract that decided."""

    shard: str
    rows: int
    certified: int
    quarantined: int
    contract: str
    rules_fired: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FieldTrust:
    """Whether one field of the response can be trained on, and why."""

    name: str
    trusted: bool
    why: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which flags to boot with to record training data, which fields can be trusted, and why."""

    headline: str
    flags: tuple[str, ...]
    record_with: str
    fields: tuple[FieldTrust, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GatewayFinding:
    """One thing that a gateway loses on the way.

    `name` is like `field-dropped: return_token_ids`; `side` is request, answer, stream or endpoint. `direct`
    and `through` say what was seen. `needed`: recording for training goes wrong without it.
    """

    name: str
    side: str
    direct: str
    through: str
    consequence: str
    remedy: str
    needed: bool


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """The same requests asked of a server and through a gateway in front of it.

    `same_greedy`: both gave the same tokens at temperature 0; if not, generated values are not compared.
    `checked` names what was compared, `unseen` what could not be told, with the reason.
    """

    direct: str
    through: str
    findings: tuple[GatewayFinding, ...]
    same_greedy: bool
    checked: tuple[str, ...]
    unseen: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The whole answer about one server; `gateway` where it was asked through one."""

    server: ServerFacts
    results: tuple[Outcome, ...]
    recommendation: Recommendation
    notes: tuple[str, ...] = ()
    gateway: GatewayReport | None = None


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The main job, end to end: what was booted, what came back, what was certified."""

    servers: tuple[ServerFacts, ...]
    results: tuple[Outcome, ...]
    shards: tuple[ShardLine, ...]
    recommendation: Recommendation
    certificate: str | None
    run_folder: str
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MatrixLoss:
    """One loss of a pair of parsers: how many of the disturbed streams have it, and the smallest one.

    `streamed` tells that it was seen in the streamed answer only. `text` is the example's text, `ids` its
    tokens in the family's test vocabulary (its markers over a small real one).
    """

    name: str
    verdict: Verdict
    count: int
    streamed: bool
    thinking_mode: str
    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """What one pair of parsers loses: `exact` of `safe` streams inside the family's safe grammar, and losses.

    `exact_streamed` counts the safe streams that came out exact when streamed as well; `stream_equal` the
    disturbed ones whose streamed fields equal the unstreamed ones. `broken` is the smallest safe stream that
    was not exact: a fault of the family's safe grammar, or a change in SGLang.
    """

    family: str
    reasoning_parser: str | None
    tool_parser: str | None
    safe: int
    exact: int
    exact_streamed: int
    disturbed: int
    stream_equal: int
    losses: tuple[MatrixLoss, ...]
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """Every mapped pair of the installed SGLang; the names that no family is mapped to, with the reason."""

    engine_version: str
    examples: int
    rows: tuple[MatrixRow, ...]
    unmapped_reasoning: dict[str, str]
    unmapped_tools: dict[str, str]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class BankOutcome:
    """One counterexample replayed: what it showed on this SGLang, and what its record says.

    What is recorded is None for a case that was never accepted; that counts as changed. `details` are the
    losses' own words.
    """

    name: str
    format: str
    version: str
    verdict: Verdict
    losses: tuple[str, ...]
    recorded_version: str | None
    recorded_verdict: str | None
    recorded_losses: tuple[str, ...] | None
    changed: bool
    streamed: bool
    raw_text: str
    rebuilt_text: str
    details: tuple[str, ...] = ()
    report: str = ""


def matrix_of(decoded: Mapping[str, Any]) -> MatrixReport:
    """Return the report that `shardgate matrix --json` printed, from its decoded JSON."""
    rows = []
    for row in decoded["rows"]:
        losses = tuple(
            MatrixLoss(**{**loss, "verdict": Verdict(loss["verdict"]), "ids": tuple(loss["ids"])})
            for loss in row["losses"]
        )
        rows.append(MatrixRow(**{**row, "losses": losses}))
    return MatrixReport(**{**decoded, "rows": tuple(rows)})
