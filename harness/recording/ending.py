"""How a run ends: what there is becomes shards, failures are written, and the summary says how it stands.

Place in the flow: after the runner's work, and in place of it where nothing is left. Imports plan, settings,
standing, status, store and tripwire of this package. Everything here blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from harness.recording.plan import NO_PROMPT, Plan, Summary, bad_failure
from harness.recording.prompts import Checked
from harness.recording.settings import finish
from harness.recording.standing import note_start
from harness.recording.status import Status
from harness.recording.store import Store, disk_told
from harness.recording.tripwire import Tripped


def now() -> str:
    """Return the time as `run.json` has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def status_of(store: Store, checked: Checked) -> Status:
    """Return the counts that a start begins with."""
    return Status(
        total=checked.generations + len(checked.bad),
        captured=store.captured,
        failed=len(store.failed),
        bad_rows=len(checked.bad),
        causes=Counter(one.reason for one in store.failed),
    )


def nothing_left(plan: Plan, earlier: Mapping[str, Any], checked: Checked) -> Summary | None:
    """Return how a run stands that has nothing left to ask, None where it has; no server is needed for that.

    `earlier` is its `run.json`.
    """
    named = earlier["settings"].get("format")
    told = earlier.get("summary") if earlier.get("state") != "running" else None
    if not isinstance(named, str) or (isinstance(told, Mapping) and told.get("left")):
        return None
    store = Store(plan.folder, named, plan.limits)
    try:
        if store.captured + len(store.failed) < checked.generations:
            return None
        if plan.retry_failed and store.forget_failures():
            return None
        return ended(plan, "finished", store, status_of(store, checked), checked)
    finally:
        store.close()


def ended(
    plan: Plan,
    state: str,
    store: Store,
    status: Status,
    checked: Checked,
    *,
    tripped: Tripped | None = None,
    signal: int = 0,
) -> Summary:
    """Make shards of all there is, and write how the run stands."""
    with disk_told(plan.folder):
        # All of it to shards: a run that was stopped can be audited as it stands.
        store.roll()
        store.write_failed(map(bad_failure, checked.bad))
        summary = _summary(plan, state, store, status, tripped, signal)
        finish(plan.folder, state, {**asdict(summary), "ended": now()})
        note_start(plan.folder, now())
    return summary


def _summary(
    plan: Plan, state: str, store: Store, status: Status, tripped: Tripped | None, signal: int
) -> Summary:
    failed = len(store.failed) + status.bad_rows
    causes = Counter(one.reason for one in store.failed)
    if status.bad_rows:
        causes[NO_PROMPT] = status.bad_rows
    return Summary(
        state=state,
        run_folder=str(plan.folder),
        asked=status.total,
        captured=store.captured,
        failed=failed,
        left=status.total - store.captured - failed,
        shards=len(store.shards),
        tokens=status.tokens,
        seconds=round(status.seconds, 3),
        retries=status.retries,
        outages=status.outages,
        weight_updates=status.weight_updates,
        verdicts=dict(status.verdicts),
        losses=dict(status.losses.most_common()),
        finish_reasons=dict(status.finishes),
        failures=dict(causes.most_common()),
        prompts=dict(status.prompts.most_common()),
        turns=dict(status.turns.most_common()),
        servers={
            one.name: {
                "state": one.state,
                **({"why": one.why} if one.why else {}),
                "answers": one.answers,
                "tokens": one.tokens,
                "outages": one.outages,
            }
            for one in status.servers
        },
        cause=tripped.cause if tripped else "",
        recommendation=tripped.recommendation if tripped else None,
        signal=signal,
    )
