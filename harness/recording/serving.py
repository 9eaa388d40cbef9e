"""One server of a run: booted here and booted again when it dies, or attached and looked at again.

Place in the flow: under the fleet, which waits where waiting is to be done. Imports `contracts`,
`harness.client` and `harness.server`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.records import ServerFacts
from harness.client import Client
from harness.server import BootProgress, Deployment, ServerError, SGLangServer, attach_async
from harness.server.flags import text_of
from harness.wire_errors import ClientError

OnEvent = Callable[[str, dict[str, Any]], None]
Adopt = Callable[[ServerFacts], Awaitable[ServerFacts]]
"""Checks a server's facts, raises `OtherServer`, and returns the facts to record."""

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
    """One server and the client that talks to it: `gone` looks whether it is away, `back` has it back.

    `restarts` bounds the boots after the first.
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
        health_seconds: float = HEALTH_SECONDS,
    ) -> None:
        self._url = url
        self._deployment = deployment
        self._flags = flags
        self._log_folder = log_folder
        self._on_event = on_event
        self.api_key = api_key
        self._restarts = restarts
        self._health_seconds = health_seconds
        self._server: SGLangServer | None = None
        self._looking = asyncio.Lock()
        self._looked = float("-inf")
        self._was_gone = False
        self._client: Client | None = None
        self._cut = False
        self.generation = 0
        """Goes up by one with each recovery; tells a request that failed before it from one after."""
        self.outages = 0
        self.boots = 0

    @property
    def booted_here(self) -> bool:
        """Whether this run boots the server itself."""
        return self._deployment is not None

    @property
    def name(self) -> str:
        """What the server is called in messages: its URL, or the deployment until it has one."""
        if self._url is not None:
            return self._url
        if self._client is not None:
            return self._client.base_url
        return self._deployment.name if self._deployment else ""

    @property
    def client(self) -> Client:
        """The client of the server as it is now; another one after each recovery."""
        assert self._client is not None
        return self._client

    @property
    def opened(self) -> bool:
        """Whether there is a client: the server was there once."""
        return self._client is not None

    async def begin(self, wait: float = 0.0) -> ServerFacts:
        """Boot or attach, and return what the server says of itself; `wait` seconds for one that warms up.

        Raises:
            ServerError: it can't be booted, or nobody answers.
        """
        if self._deployment is not None:
            return await self._boot()
        assert self._url is not None
        return (await attach_async(self._url, api_key=self.api_key, wait=wait)).facts

    async def open(self, facts: ServerFacts) -> None:
        """Open a client, in place of the one before: what was under way on that is cut."""
        await self.cut()
        client = Client(
            facts.base_url, facts=facts, concurrency=1 << 16, timeout=REQUEST_LIMIT, api_key=self.api_key
        )
        self._client = await client.__aenter__()
        self._cut = False

    async def cut(self) -> None:
        """End what is under way: the server is away, and nobody waits for its answers."""
        self._cut = True
        if self._client is not None:
            await self._client.__aexit__(None, None, None)

    async def close(self) -> None:
        """Close the client and end a server that was booted here."""
        await self.cut()
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

    async def gone(self, since: float) -> bool:
        """Say whether the server is away, for a request that failed at `since` (monotonic seconds).

        One that generates has cut, or not answered, that request alone. Many requests come here at once; the
        first looks, the others share what it saw.
        """
        async with self._looking:
            if self._looked < since:
                self._looked = time.monotonic()
                self._was_gone = not await self._stands()
            # Taken out by a look before this one: until it is back there is nothing to ask.
            return self._was_gone or self._cut

    async def back(self, adopt: Adopt) -> None:
        """Have the server back: boot it again, or look once whether it answers.

        Raises:
            ServerError: it does not answer as yet.
            ServerLost: it was booted as often as it may be.
            OtherServer: see `Adopt`.
        """
        facts = await (self._restarted() if self.booted_here else self.begin())
        adopted = await adopt(facts)
        await self.open(adopted)
        self.outages += 1
        self.generation += 1

    async def _stands(self) -> bool:
        if self._server is None:
            return not self._cut and await self._answers()
        # A process that is about to go still stands for a moment after it cut the connections.
        for _ in range(3):
            if self._cut:
                return False
            try:
                await self._server.check_async()
            except ServerError:
                return False
            if await self._answers():
                return True
            await asyncio.sleep(LOOK_AGAIN)
        return False

    async def _restarted(self) -> ServerFacts:
        assert self._server is not None
        why: ServerError | None = None
        try:
            await self._server.check_async()
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


def _unused(path: Path) -> Path:
    """Return the path, or one numbered after it: a log of an earlier start is kept."""
    number = 1
    found = path
    while found.exists():
        found = path.with_name(f"{path.stem}.{number}{path.suffix}")
        number += 1
    return found
