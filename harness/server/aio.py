"""Servers from asynchronous code: boots in threads, ended before a cancellation goes on, several at once.

Place in the flow: mixed into the launcher's server. Imports the standard library and the stage's own modules.

    async with SGLangServer(path) as server: ...
    async with together(SGLangServer(path), SGLangServer(other)) as (first, second): ...

Cancelled in the middle (`task.cancel()`, `asyncio.timeout`, the failure of a sibling in a `TaskGroup`, Ctrl-C
under `asyncio.run`), a boot ends the whole process group first; the cancellation goes on when nothing of the
server is left. `on_progress` is called in the boot's thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from contracts.records import ServerFacts
from harness.server.attach import AttachedServer, attach
from harness.server.failures import CannotBoot

if TYPE_CHECKING:
    from harness.server.launch import SGLangServer
    from harness.server.process import GuardedProcess
    from harness.server.progress import BootProgress

T = TypeVar("T")

WATCH_SECONDS = 1.0
"""How often `watch` looks whether the server lives."""


class _BrokenOff(Exception):
    """Ends a boot from inside its thread; never leaves this module."""


class AsyncServer:
    """What `SGLangServer` offers to asynchronous code beside its blocking methods."""

    if TYPE_CHECKING:
        _on_progress: Callable[[BootProgress], None] | None
        _process: GuardedProcess | None

        def start(self) -> None: ...
        def stop(self) -> None: ...
        def check(self) -> None: ...
        def facts(self) -> ServerFacts: ...

    async def __aenter__(self) -> Self:
        await self.start_async()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop_async()

    async def start_async(self) -> None:
        """`start` without blocking the loop. Cancelled, it ends the server and only then lets go."""
        broken_off = threading.Event()
        boot = asyncio.wrap_future(_in_thread(lambda: self._boot(broken_off)))
        try:
            await asyncio.wait([boot])
        except asyncio.CancelledError:
            broken_off.set()
            await _to_the_end(self._end_with(boot))
            raise
        boot.result()

    async def stop_async(self) -> None:
        """`stop` without blocking the loop; goes through to the end even when it is cancelled."""
        await _to_the_end(_asyncly(self.stop))

    async def check_async(self) -> None:
        """`check` without blocking the loop."""
        await _asyncly(self.check)

    async def facts_async(self) -> ServerFacts:
        """`facts` without blocking the loop."""
        return await _asyncly(self.facts)

    async def watch(self) -> None:
        """Never returns; raises `ServerDied` when the server is gone. For a `TaskGroup` beside the work."""
        while True:
            await self.check_async()
            await asyncio.sleep(WATCH_SECONDS)

    def _boot(self, broken_off: threading.Event) -> None:
        """Boot, and give up at the next step of progress once the event is set: one comes every second, and
        one right after the process was started."""
        told = self._on_progress

        def step(now: BootProgress) -> None:
            if broken_off.is_set():
                raise _BrokenOff
            if told is not None:
                told(now)

        self._on_progress = step
        try:
            self.start()
        finally:
            self._on_progress = told

    async def _end_with(self, boot: asyncio.Future[None]) -> None:
        # The thread may not have started the process yet: it then breaks off by itself as soon as it has.
        while not boot.done():
            if self._process is not None:
                await _asyncly(self.stop)
            await asyncio.wait([boot], timeout=0.1)
        if boot.exception() is None:
            # Ready at the very moment of the cancellation.
            await _asyncly(self.stop)


@asynccontextmanager
async def together(*servers: SGLangServer) -> AsyncIterator[tuple[SGLangServer, ...]]:
    """Boot several servers at once and end them all on the way out, whatever the way.

    When one can't boot, the others are ended, and its error is raised. `CannotBoot`, before any boot, when
    two are given one port.
    """
    _refuse_shared_port(servers)
    try:
        try:
            async with asyncio.TaskGroup() as group:
                for server in servers:
                    group.create_task(server.start_async())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        yield servers
    finally:
        await _to_the_end(_end_all(servers))


def _refuse_shared_port(servers: tuple[SGLangServer, ...]) -> None:
    # Each alone would find the port free: the one that binds second dies minutes later.
    taken: dict[int, str] = {}
    for server in servers:
        port = server.asked_port
        if port is None:
            continue
        if port in taken:
            raise CannotBoot(
                f"two servers are given port {port}",
                where=f"{taken[port]} and {server.model_path}",
                why="one port is one server's",
                remedy="give each its own, or leave the ports out and free ones are found",
            )
        taken[port] = server.model_path


async def _end_all(servers: tuple[SGLangServer, ...]) -> None:
    for failed in await asyncio.gather(*(_asyncly(one.stop) for one in servers), return_exceptions=True):
        if isinstance(failed, BaseException):
            raise failed


async def attach_async(
    url: str, *, api_key: str | None = None, wait: float = 0.0, prove: bool = True
) -> AttachedServer:
    """`attach` without blocking the loop: a running server, with `wait` one that is still warming up."""
    return await _asyncly(lambda: attach(url, api_key=api_key, wait=wait, prove=prove))


def _in_thread(work: Callable[[], T]) -> concurrent.futures.Future[T]:
    """Run `work` in a thread of its own: the loop's few shared ones could all be held by boots of hours, and
    a process that is told to go would wait for them. A daemon is dropped, and the guard ends its server."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="sglang", daemon=True).start()
    return future


async def _asyncly(work: Callable[[], T]) -> T:
    return await asyncio.wrap_future(_in_thread(work))


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end through any number of cancellations; the last of them is raised after it."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
