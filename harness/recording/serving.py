"""The server of a run: booted here and booted again when it dies, or attached and waited for.

Place in the flow: under the runner. Imports `contracts`, `harness.client` and `harness.server`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.records import ServerFacts
from harness.client import Client
from harness.server import BootProgress, Deployment, ServerError, SGLangServer, Unreachable, attach_async
from harness.server.flags import text_of
from harness.wire_errors import ClientError

OnEvent = Callable[[str, dict[str, Any]], None]

REQUEST_LIMIT = 1 << 20
"""Seconds that the client itself allows: each request has a deadline of its own."""

HEALTH_SECONDS = 30.0
"""Seconds that `/health` may take before the server counts as hanging."""

LOOK_AGAIN = 2.0
"""Seconds between two looks at a server that does not answer."""


class ServerLost(ShardgateError):
    """The server is gone and did not come back in the time, or as often, as was allowed."""


class OtherServer(ShardgateError):
    """What answers now is not the server that the run was begun with."""


class Serving:
    """The run's server and the client that talks to it; `recover` after a request found it gone.

    `restarts` bounds the boots after the first, `patience` the seconds that an attached server may be away.
    """

    def __init__(
        self,
        *,
        url: str | None,
        deployment: Deployment | None,
        flags: tuple[str, ...] = (),
        log_folder: Path,
        on_event: OnEvent,
        api_key: str | None = None,
        restarts: int = 3,
        patience: float = 900.0,
        health_seconds: float = HEALTH_SECONDS,
    ) -> None:
        self._url = url
        self._deployment = deployment
        self._flags = flags
        self._log_folder = log_folder
        self._on_event = on_event
        self.api_key = api_key
        self._restarts = restarts
        self._patience = patience
        self._health_seconds = health_seconds
        self._server: SGLangServer | None = None
        self._recovering = asyncio.Lock()
        self._client: Client | None = None
        self._adopt: Callable[[ServerFacts], ServerFacts] = lambda facts: facts
        self.generation = 0
        """Goes up by one with each recovery; tells a request that failed before it from one after."""
        self.outages = 0
        self.boots = 0

    @property
    def client(self) -> Client:
        """The client of the server as it is now; another one after each recovery."""
        assert self._client is not None
        return self._client

    @property
    def away(self) -> bool:
        """Whether the server is being waited for, or booted again."""
        return self._recovering.locked()

    async def begin(self) -> ServerFacts:
        """Boot or attach, and return what the server says of itself.

        Raises:
            ServerError: it can't be booted, or nobody answers.
        """
        if self._deployment is not None:
            return await self._boot()
        assert self._url is not None
        self._on_event("attach", {"message": self._url})
        return (await attach_async(self._url, api_key=self.api_key, wait=self._patience)).facts

    async def open(self, facts: ServerFacts, adopt: Callable[[ServerFacts], ServerFacts]) -> None:
        """Open the client. `adopt` checks a server's facts after a recovery and returns those to record."""
        self._adopt = adopt
        await self._open(facts)

    async def _open(self, facts: ServerFacts) -> None:
        if self._client is not None:
            await self._client.__aexit__(None, None, None)
        client = Client(
            facts.base_url, facts=facts, concurrency=1 << 16, timeout=REQUEST_LIMIT, api_key=self.api_key
        )
        self._client = await client.__aenter__()

    async def close(self) -> None:
        """Close the client and end a server that was booted here."""
        if self._client is not None:
            await self._client.__aexit__(None, None, None)
            self._client = None
        if self._server is not None:
            await self._server.stop_async()

    async def _boot(self) -> ServerFacts:
        assert self._deployment is not None
        name = "server.log" if not self.boots else f"server-{self.boots}.log"
        self.boots += 1

        def told(progress: BootProgress) -> None:
            self._on_event("boot", {"message": progress.phase, **progress.facts()})

        self._server = self._deployment.server(
            extra_flags=self._flags, log_path=_unused(self._log_folder / name), on_progress=told
        )
        # A deployment may set the key that its server asks for.
        self.api_key = self.api_key or text_of(self._server.flags, "api_key")
        await self._server.start_async()
        return await self._server.facts_async()

    async def recover(self, seen: int) -> bool:
        """Have the server back after a request of generation `seen` found it gone.

        Returns whether it was away at all: one that answers has cut that request alone. Many requests come
        here at once; the first does the work, the others wait for it.

        Raises:
            ServerLost: it is gone for good, as far as this run goes.
            OtherServer: see `adopt`.
        """
        async with self._recovering:
            if self.generation != seen:
                return True
            facts = await (self._restarted() if self._deployment is not None else self._returned())
            if facts is None:
                return False
            self.outages += 1
            await self._open(self._adopt(facts))
            self.generation += 1
            return True

    async def _restarted(self) -> ServerFacts | None:
        assert self._server is not None
        why: ServerError | None = None
        try:
            # A process that is about to go still stands for a moment after it cut the connections.
            for _ in range(3):
                await self._server.check_async()
                if await self._answers():
                    return None
                await asyncio.sleep(LOOK_AGAIN)
        except ServerError as error:
            why = error
        await self._server.stop_async()
        while True:
            if self.boots > self._restarts:
                raise ServerLost(
                    what="the server died too often",
                    where=str(self._server.log_path),
                    why=(str(why.what) if why else "it stopped answering")
                    + f"; it was booted {self.boots} times",
                    remedy="read the end of its log; give the same command again to go on from here",
                ) from why
            self._on_event("boot", {"message": "the server died; booting it again"})
            try:
                return await self._boot()
            except ServerError as error:
                why = error

    async def _answers(self) -> bool:
        """Say whether the server generates: `/health` has its scheduler make a token."""
        try:
            async with asyncio.timeout(self._health_seconds):
                await self.client.get("/health")
        except (ClientError, TimeoutError):
            return False
        return True

    async def _returned(self) -> ServerFacts | None:
        if await self._answers():
            return None
        assert self._url is not None
        until = time.monotonic() + self._patience
        why = ""
        while (left := until - time.monotonic()) > 0:
            self._on_event("wait", {"message": f"the server does not answer; waiting {left:.0f} s more"})
            with suppress(TimeoutError):
                try:
                    async with asyncio.timeout(left):
                        found = await attach_async(self._url, api_key=self.api_key, wait=left)
                    return found.facts
                except ServerError as error:
                    why = error.what
                    if not isinstance(error, Unreachable):
                        self._on_event("wait", {"message": error.what})
            await asyncio.sleep(min(LOOK_AGAIN, max(left, 0.0)))
        raise ServerLost(
            what="the server did not come back",
            where=self._url,
            why=f"{why or 'it does not answer'}, for {self._patience:.0f} seconds",
            remedy="start it again, then give the same command to go on from here",
        )


def _unused(path: Path) -> Path:
    """Return the path, or one numbered after it: a log of an earlier start is kept."""
    number = 1
    found = path
    while found.exists():
        found = path.with_name(f"{path.stem}.{number}{path.suffix}")
        number += 1
    return found
