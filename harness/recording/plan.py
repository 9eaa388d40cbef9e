"""What a capture run is asked to do, and what it came to.

Place in the flow: between the command and the runner. Imports `contracts`, `harness.outcomes`, and generate,
prompts, rows, settings and store of this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from harness.outcomes import Recommendation
from harness.recording.generate import Patience
from harness.recording.prompts import BadRow, Checked, Source, Wanted
from harness.recording.rows import Failure
from harness.recording.serving import HEALTH_SECONDS
from harness.recording.settings import asked_for
from harness.recording.store import Limits
from harness.server import Deployment

NO_PROMPT = "no-prompt"
SHOWN_BAD = 5
"""How many rows that are no prompts one error shows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run is asked to do; `url` or `deployment` is given.

    `replicas` are further servers of the same model, beside the one at `url`; `concurrency` is each one's.
    A server whose `/health` takes longer than `health_seconds`, after a request timed out, counts as hanging.
    """

    source: Source
    wanted: Wanted
    folder: Path
    url: str | None = None
    replicas: tuple[str, ...] = ()
    deployment: Deployment | None = None
    flags: tuple[str, ...] = ()
    tokenizer: Path | None = None
    chat_template: Path | None = None
    trust_remote_code: bool = False
    api_key: str | None = None
    concurrency: int = 256
    adapt: bool = True
    patience: Patience = field(default_factory=Patience)
    restarts: int = 3
    wait_server: float = 900.0
    health_seconds: float = HEALTH_SECONDS
    tripwire: bool = True
    max_drift: float | None = None
    """The share of the cohort's prompts that may be other ids than they should be; None: any."""
    cohort: int = 64
    limits: Limits = field(default_factory=Limits)
    logprobs: bool = False
    skip_bad: bool = False
    retry_failed: bool = False
    metrics_port: int | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """How the run stands: asked = captured + failed + left, always; `left` is 0 when it is through.

    `failed` counts rows that were no prompts too. `state` is finished, tripped, stopped (by a signal) or
    interrupted (by an error: the server was lost).
    Verdicts, losses, finish reasons, retries and tokens are those of this start.
    """

    state: str
    run_folder: str
    asked: int
    captured: int
    failed: int
    left: int
    shards: int
    tokens: int
    seconds: float
    retries: int
    outages: int
    weight_updates: int
    verdicts: Mapping[str, int]
    losses: Mapping[str, int]
    finish_reasons: Mapping[str, int]
    failures: Mapping[str, int]
    prompts: Mapping[str, int] = field(default_factory=dict)
    """Prompts that are the template's (`same`), and those that are not, by cause; of this start."""
    turns: Mapping[str, int] = field(default_factory=dict)
    """Turns whose prompt goes on from the turn before (`same`), and those that don't, by cause."""
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By URL: `state` (up, away, other), `why`, and of this start `answers`, `tokens`, `outages`."""
    cause: str = ""
    recommendation: Recommendation | None = None
    signal: int = 0


def asked(plan: Plan) -> dict[str, Any]:
    """Return the settings that the plan itself makes."""
    return asked_for(plan.source, plan.wanted, logprobs=plan.logprobs)


def refuse_bad(plan: Plan, checked: Checked) -> None:
    """Raise where rows are no prompts and are not to be passed over, or where nothing is to be done."""
    if checked.bad and not plan.skip_bad:
        more = " and maybe others" if len(checked.bad) >= SHOWN_BAD else ""
        raise ShardgateError(
            what=f"{len(checked.bad)} rows{more} are no prompts; nothing was sent",
            where=checked.bad[0].where,
            why="\n".join(f"{row.where}: {row.why}" for row in checked.bad),
            remedy="correct them, or record them as failed and go on with the others: --skip-bad",
        )
    if not checked.generations:
        raise ShardgateError(
            what="there is nothing to generate",
            where=str(plan.source.path),
            why=f"it has {checked.rows} rows, and none of them is a prompt",
        )


def bad_failure(row: BadRow) -> Failure:
    """Return how a row that is no prompt stands in `failed.jsonl`."""
    told = f"{row.where}: {row.why}"[:500]
    return Failure("", 0, NO_PROMPT, told, "", row.row, 0, 0, "")
