"""What the harness reports: one outcome per prompt and mode, one line per shard, one recommendation.

Place in the flow: after the judge, before the report. Imports `contracts.records` only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
