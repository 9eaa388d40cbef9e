"""One server over two nodes, both on this machine: each boots as its own rank, node 0 generates, both go.

Place in the flow: boots the deployment `tiny-two-nodes` twice, side by side.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.server import Phase, ServerDied, SGLangServer, Unreachable, load_deployment
from harness.server.hardware import free_port
from harness.server.http import call
from harness.server.ready import info
from tests.bodies import server as bodies
from tests.conftest import need

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def nodes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[SGLangServer, SGLangServer, list[Phase]]]:
    need("sglang")
    folder = tmp_path_factory.mktemp("nodes")
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    passed: list[Phase] = []
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEAD_ADDR", address)
        for rank in ("0", "1"):
            patch.setenv("NODE_RANK", rank)
            made.append(
                load_deployment("tiny-two-nodes").server(
                    log_path=folder / f"node{rank}.log",
                    on_progress=(lambda now: passed.append(now.phase)) if rank == "1" else None,
                )
            )
    head, follower = made
    try:
        with ThreadPoolExecutor(2) as pool:
            for booted in [pool.submit(node.start) for node in made]:
                booted.result()
        yield head, follower, passed
    finally:
        follower.stop()
        head.stop()


def test_node_0_generates_with_the_weights_of_both(
    nodes: tuple[SGLangServer, SGLangServer, list[Phase]],
) -> None:
    head, _, _ = nodes
    first = bodies.generates_exactly(head, 8)
    assert bodies.generates_exactly(head, 8) == first
    facts = head.facts()
    assert facts.flags["nnodes"] == 2 and facts.flags["tp_size"] == 2
    assert facts.reasoning_parser == facts.tool_parser == "kimi_k2"


def test_the_other_node_is_up_and_serves_no_api(
    nodes: tuple[SGLangServer, SGLangServer, list[Phase]],
) -> None:
    _, follower, passed = nodes
    follower.check()
    assert passed[-1] is Phase.READY
    assert call(follower.base_url, "/health").status == 200
    assert call(follower.base_url, "/generate", {"input_ids": [1]}).status == 404
    with pytest.raises(Unreachable, match="no SGLang server"):
        info(follower.base_url, "model_info")


def test_a_node_that_goes_takes_the_other_with_it_and_nothing_is_left(
    nodes: tuple[SGLangServer, SGLangServer, list[Phase]],
) -> None:
    """Last in the file: it ends both."""
    head, follower, _ = nodes
    pids = head.pid, follower.pid
    follower.stop()
    until = time.monotonic() + 60
    while head.alive() and time.monotonic() < until:
        time.sleep(0.2)
    with pytest.raises(ServerDied) as told:
        head.check()
    assert Path(head.log_path).name in told.value.where
    head.stop()
    for pid in pids:
        bodies.is_gone(pid)
