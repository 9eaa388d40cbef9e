"""Servers from asynchronous code, for real: two at once, one that fails, cancellations, Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from harness.server import (
    BootFailed,
    BootProgress,
    CannotBoot,
    ServerDied,
    SGLangServer,
    attach_async,
    load_deployment,
    together,
)
from harness.server.guard import group_members
from tests.conftest import need

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def model() -> Path:
    need("sglang")
    from harness.models import tiny_model

    return tiny_model()


class Booting:
    """A server of the tiny model, and an event for the loop that its process runs."""

    def __init__(self, model: Path, log: Path, *flags: str) -> None:
        self.runs = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell(now: BootProgress) -> None:
            loop.call_soon_threadsafe(self.runs.set)

        self.server = SGLangServer(model, flags=flags, device="cpu", log_path=log, on_progress=tell)


def gone(server: SGLangServer) -> bool:
    return group_members(server.pid) == [] and not server.alive()


def test_one_that_fails_ends_its_sibling(model: Path, tmp_path: Path) -> None:
    async def go() -> None:
        good = Booting(model, tmp_path / "good.log")
        bad = Booting(model, tmp_path / "bad.log", "--reasoning-parser", "nosuch")
        with pytest.raises(BootFailed, match="exit code 2"):
            async with together(good.server, bad.server):
                pytest.fail("the bad one can't have booted")
        assert good.runs.is_set(), "the sibling was under way"
        assert gone(good.server) and gone(bad.server)

    asyncio.run(go())


def test_refused_before_anything_starts(tmp_path: Path) -> None:
    async def go() -> None:
        with pytest.raises(CannotBoot, match="model path"):
            async with SGLangServer(tmp_path / "nothing", device="cpu"):
                pytest.fail("it can't have booted")

    asyncio.run(go())


async def by_cancel(booting: Booting) -> None:
    async def boot() -> None:
        async with booting.server:
            pytest.fail("too soon to be ready")

    task = asyncio.create_task(boot())
    await booting.runs.wait()
    task.cancel()
    # A second one must not make it let go before the group is gone.
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_timeout(booting: Booting) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0), booting.server:
            pytest.fail("too soon to be ready")


async def by_task_group(booting: Booting) -> None:
    async def fails() -> None:
        await booting.runs.wait()
        raise LookupError("the sibling's own fault")

    with pytest.raises(ExceptionGroup) as told:
        async with asyncio.TaskGroup() as group:
            group.create_task(booting.server.start_async())
            group.create_task(fails())
    assert told.group_contains(LookupError)


async def at_once(booting: Booting) -> None:
    """Cancelled before the process is there: the boot's thread must not start one that stays."""
    task = asyncio.create_task(booting.server.start_async())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("cancel", [by_cancel, by_timeout, by_task_group, at_once])
def test_cancelled_in_the_middle(
    cancel: Callable[[Booting], Awaitable[None]], model: Path, tmp_path: Path
) -> None:
    async def go() -> None:
        booting = Booting(model, tmp_path / "server.log")
        await cancel(booting)
        assert gone(booting.server), "the group is ended before the cancellation goes on"

    asyncio.run(go())


OWNER = """
import asyncio, sys
from harness.server import SGLangServer
async def main():
    server = SGLangServer(sys.argv[1], device="cpu", log_path=sys.argv[2],
                          on_progress=lambda now: print(server.pid, flush=True))
    try:
        async with server:
            pass
    except asyncio.CancelledError:
        from harness.server.guard import group_members
        print("left:", group_members(server.pid), flush=True)
        raise
asyncio.run(main())
"""


def test_ctrl_c(model: Path, tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(model), str(tmp_path / "server.log")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where a suite runs in the background SIGINT is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert owner.stdout is not None
    assert int(owner.stdout.readline())
    owner.send_signal(signal.SIGINT)
    said, error = owner.communicate(timeout=60)
    assert said.splitlines()[-1] == "left: []"
    assert error.rstrip().endswith("KeyboardInterrupt")


def test_a_whole_life(tmp_path: Path) -> None:
    """One boot: ready, asked beside the loop's other work, watched, and dead by a kill."""
    need("sglang")

    async def go() -> None:
        server = load_deployment("tiny-plain").server(log_path=tmp_path / "server.log")
        turns = 0

        async def other_work() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.05)

        beside = asyncio.create_task(other_work())
        async with server:
            assert turns > 10, "the loop went on while the server booted"
            await server.check_async()
            facts: Any = await server.facts_async()
            assert facts.model == server.model_path
            attached = await attach_async(server.base_url)
            assert attached.facts == facts
            watch = asyncio.create_task(server.watch())
            await asyncio.sleep(0)
            assert not watch.done()
            os.kill(server.pid, signal.SIGKILL)
            with pytest.raises(ServerDied, match="SIGKILL"):
                await asyncio.wait_for(watch, 30)
        beside.cancel()
        assert gone(server)

    asyncio.run(go())
