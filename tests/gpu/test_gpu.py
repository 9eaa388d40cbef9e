"""The deployments on real GPUs: `pytest -m gpu [--deployment NAME] [--gpus N] [--model PATH]`.

The bodies are those of the CPU suite. Without the GPUs that the deployment asks for everything is skipped,
and the reason says how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.server import BootProgress, Deployment, SGLangServer, gpu_count, load_deployment
from tests.bodies import server as bodies

pytestmark = pytest.mark.gpu

DEFAULT = "kimi-k2.5"


@pytest.fixture(scope="module")
def deployment(pytestconfig: pytest.Config) -> Deployment:
    chosen = load_deployment(pytestconfig.getoption("--deployment") or DEFAULT)
    if model := pytestconfig.getoption("--model"):
        chosen = replace(chosen, model=model)
    allowed = pytestconfig.getoption("--gpus")
    there = gpu_count() if allowed is None else min(gpu_count(), allowed)
    if there < chosen.gpus:
        pytest.skip(f"deployment {chosen.name!r} asks for {chosen.gpus} GPUs, {there} are there to use")
    return chosen


@pytest.fixture(scope="module")
def told() -> list[BootProgress]:
    return []


@pytest.fixture(scope="module")
def server(
    deployment: Deployment, told: list[BootProgress], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SGLangServer]:
    log = Path(tmp_path_factory.mktemp("server")) / "server.log"
    with deployment.server(log_path=log, on_progress=told.append) as booted:
        yield booted


def test_it_generates_what_it_is_asked(server: SGLangServer) -> None:
    bodies.generates_exactly(server, 32)


def test_it_reports_what_was_asked(server: SGLangServer, deployment: Deployment) -> None:
    bodies.reports_what_was_asked(server, deployment.reasoning_parser, deployment.tool_parser)


def test_other_wishes_are_a_mismatch(server: SGLangServer) -> None:
    bodies.refuses_another(server)


def test_it_can_be_attached(server: SGLangServer) -> None:
    bodies.can_be_attached(server)


def test_progress_came_from_the_log(server: SGLangServer, told: list[BootProgress]) -> None:
    bodies.progressed([now.phase for now in told])


def test_it_ends_without_a_trace(server: SGLangServer) -> None:
    """Last in the file: it ends the server."""
    pid = server.pid
    server.stop()
    bodies.is_gone(pid)
