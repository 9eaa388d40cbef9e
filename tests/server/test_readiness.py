"""Readiness that can't be fooled: one real boot, stopped (SIGSTOP) at every phase, asked, and continued.

The server is told to answer 200 on `/health` whatever its scheduler does, so that nothing here can pass
because `/health` happened to be right. While it is stopped, attaching says that it is not ready, within the
patience given; after SIGCONT it becomes ready after all.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.server import (
    BootProgress,
    BootStalled,
    NotReady,
    Phase,
    ServerDied,
    ServerError,
    SGLangServer,
    Unreachable,
    attach,
)
from harness.server.failures import NoAnswer
from harness.server.guard import group_members
from harness.server.http import call
from harness.server.vitals import processes
from tests.bodies import server as bodies

pytestmark = pytest.mark.server

ALWAYS_HEALTHY = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}
PATIENCE = 3.0


def stop(pids: list[int]) -> None:
    """Stop processes and wait until the kernel says so."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + 10
    states: set[str] = set()
    while states != {"T"} and time.monotonic() < until:
        states = {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}
    assert states == {"T"}


def go_on(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def scheduler(server: SGLangServer) -> list[int]:
    found = [one.pid for one in processes(server.pid) if "scheduler" in one.name]
    assert found, "SGLang names its scheduler's process"
    return found


def refused(server: SGLangServer) -> ServerError:
    """What attaching says; it must say it, and soon."""
    with pytest.raises((NotReady, Unreachable)) as told:
        attach(server.base_url, patience=PATIENCE)
    return told.value


class Interrupted:
    """The boot's progress, which stops the server the first time that each phase comes, asks, and goes on."""

    def __init__(self) -> None:
        self.server: SGLangServer | None = None
        self.told: dict[Phase, ServerError] = {}
        self.steps: list[BootProgress] = []

    def __call__(self, now: BootProgress) -> None:
        self.steps.append(now)
        if now.phase in self.told or now.phase is Phase.READY or self.server is None:
            return
        members = group_members(self.server.pid)
        # By turns the whole group and the scheduler alone, which leaves the HTTP server answering.
        one = now.phase in (Phase.WARMUP, Phase.CHECKING)
        pids = scheduler(self.server) if one else members
        stop(pids)
        try:
            self.told[now.phase] = refused(self.server)
        finally:
            go_on(pids)


@pytest.fixture(scope="module")
def interrupted() -> Interrupted:
    return Interrupted()


@pytest.fixture(scope="module")
def server(interrupted: Interrupted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangServer]:
    from harness.models import tiny_model

    log = tmp_path_factory.mktemp("ready") / "server.log"
    server = SGLangServer(
        tiny_model(), device="cpu", log_path=log, env=ALWAYS_HEALTHY, on_progress=interrupted, grace=2.0
    )
    interrupted.server = server
    with server:
        yield server


def test_stopped_at_every_phase_it_is_never_ready(interrupted: Interrupted, server: SGLangServer) -> None:
    """And continued, it becomes so: the fixture has booted it."""
    phases = set(interrupted.told)
    assert {Phase.STARTING, Phase.WEIGHTS, Phase.WARMUP, Phase.CHECKING} <= phases
    for phase in (Phase.STARTING, Phase.WEIGHTS):
        assert isinstance(interrupted.told[phase], Unreachable), phase
    for phase in (Phase.WARMUP, Phase.CHECKING):
        # It answers, or, where the machine is busy, not in time; nobody refuses.
        assert isinstance(interrupted.told[phase], NotReady | NoAnswer), (phase, interrupted.told[phase])
    assert interrupted.steps[-1].phase is Phase.READY
    bodies.generates_exactly(server, 4)


def test_ready_with_a_stopped_scheduler_it_says_200_and_is_not_believed(server: SGLangServer) -> None:
    pids = scheduler(server)
    stop(pids)
    try:
        assert call(server.base_url, "/health").status == 200
        error = refused(server)
        assert isinstance(error, NotReady) and "does not generate" in error.what
        assert "scheduler" in error.remedy
    finally:
        go_on(pids)
    assert attach(server.base_url).facts.engine_version


def test_ready_and_stopped_as_a_whole_it_does_not_answer(server: SGLangServer) -> None:
    members = group_members(server.pid)
    stop(members)
    try:
        begun = time.monotonic()
        with pytest.raises(Unreachable, match="does not answer"):
            attach(server.base_url, patience=PATIENCE)
        assert time.monotonic() - begun < 60, "it says so instead of hanging"
    finally:
        go_on(members)
    bodies.generates_exactly(server, 4)


def test_ready_with_a_dead_detokenizer_it_is_told(server: SGLangServer) -> None:
    """Last of this server: it ends it. SGLang itself stays for 65 s, its port open; the log knows at once."""
    victim = next(one for one in processes(server.pid) if "detokenizer" in one.name)
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(ServerDied) as told:
        for _ in range(600):
            server.check()
            time.sleep(0.1)
    assert server.alive(), "the main process is still there"
    assert told.value.sign == "rank-killed"
    assert "detokenizer" in told.value.why and str(victim.pid) in told.value.why


def test_a_boot_that_stands_still_is_told_with_its_processes(tmp_path: Path) -> None:
    from harness.models import tiny_model

    server = SGLangServer(
        tiny_model(), device="cpu", log_path=tmp_path / "server.log", stall_timeout=15.0, grace=2.0
    )
    stopped: list[int] = []

    def look(now: BootProgress) -> None:
        if now.phase is Phase.RANKS and not stopped:
            stopped.extend(scheduler(server))
            stop(stopped)

    server._on_progress = look
    with pytest.raises(BootStalled) as told:
        server.start()
    error = told.value
    assert Phase.RANKS in error.what
    assert f"(pid {stopped[0]}) stopped" in error.why and "sglang" in error.why
    assert f"kill -CONT {stopped[0]}" in error.remedy
    assert group_members(server.pid) == []
