"""The servers of a run: one, or several replicas that share the work, each with a limit of its own.

Place in the flow: under the runner and the maker, over `serving` and `pacing`. Imports `contracts`,
`harness.client`, `harness.server`, and pacing, serving and status of this package.

A request has a place at one server; work goes to the server with the most room. A server that is away is
taken out and looked at again while the others go on; its requests move. Only where none is left does the run
wait. One that comes back as another server (other weights, flags, tokenizer) gets no work until it is itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from enum import StrEnum

from contracts.errors import ShardgateError
from contracts.records import ServerFacts
from harness.client import Client
from harness.recording.pacing import Pacer
from harness.recording.serving import LOOK_AGAIN, Adopt, OnEvent, OtherServer, ServerLost, Serving
from harness.recording.status import ServerStatus, server_gauges
from harness.server import ServerError
from harness.wire_errors import ClientError

REFUSALS = 8
"""Refusals in a row after which a server that has been cut to one request is taken out."""

LONGEST_LOOK = 90.0
"""Seconds that one look at a server may take: its health, and a first answer."""


class State(StrEnum):
    """How a server stands: it gets work, is away, or answers as another one."""

    UP = "up"
    AWAY = "away"
    OTHER = "other"


class Member:
    """One server of the fleet, its limit, and what it did in this start."""

    def __init__(self, serving: Serving, pacer: Pacer) -> None:
        self.serving = serving
        self.pacer = pacer
        self.state = State.AWAY
        self.why = ""
        self.doubted = 0
        """Requests that wait for a look at its health; new ones go elsewhere, where there is an elsewhere."""
        self.refusals = 0
        self.answers = 0
        self.tokens = 0
        self.gauges: dict[str, float] = {}

    @property
    def name(self) -> str:
        """The server's URL."""
        return self.serving.name

    @property
    def up(self) -> bool:
        """Whether it gets work."""
        return self.state is State.UP

    @property
    def room(self) -> int:
        """How many more requests it may get now."""
        return self.pacer.limit - self.pacer.under_way if self.up else 0

    def answered(self, tokens: int) -> None:
        """Note a whole answer of so many tokens."""
        self.refusals = 0
        self.answers += 1
        self.tokens += tokens
        self.pacer.answered(tokens)


class Fleet:
    """The members; `patience` is how many seconds the run waits while none of them is there."""

    def __init__(self, members: Sequence[Member], *, patience: float, on_event: OnEvent) -> None:
        self.members = tuple(members)
        self._patience = patience
        self._on_event = on_event
        self._changed = asyncio.Condition()
        self._lost: Exception | None = None
        self._other: OtherServer | None = None
        self._none_since = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._adopt: Adopt | None = None
        self._turn = 0

    @property
    def away(self) -> bool:
        """Whether no server is there: the run waits."""
        return not any(member.up for member in self.members)

    @property
    def outages(self) -> int:
        """How often a server went away and came back, over all."""
        return sum(member.serving.outages for member in self.members)

    @property
    def limit(self) -> int:
        """How many requests may be under way at the servers that are there."""
        return sum(member.pacer.limit for member in self.members if member.up)

    @property
    def under_way(self) -> int:
        """How many requests are under way."""
        return sum(member.pacer.under_way for member in self.members)

    def statuses(self) -> tuple[ServerStatus, ...]:
        """Return how each server stands."""
        return tuple(
            ServerStatus(
                name=one.name,
                state=str(one.state),
                why=one.why,
                in_flight=one.pacer.under_way,
                limit=one.pacer.limit,
                answers=one.answers,
                tokens=one.tokens,
                outages=one.serving.outages,
                gauges=one.gauges if one.up else {},
            )
            for one in self.members
        )

    async def look_at_gauges(self, seconds: float) -> None:
        """Ask each server that is there for its own numbers, `seconds` at most."""

        async def one(member: Member) -> None:
            try:
                async with asyncio.timeout(seconds):
                    told = await member.serving.client.get("/metrics")
                member.gauges = server_gauges(told.decode())
            except (ClientError, TimeoutError, UnicodeDecodeError, RuntimeError):
                member.gauges = {}  # booted without --enable-metrics, busy, or just gone: no numbers, no harm

        await asyncio.gather(*(one(member) for member in self.members if member.up))

    async def begin(self) -> list[tuple[Member, ServerFacts]]:
        """Boot or attach; returns the members that are there with what they say of themselves, never none.

        Of several, one that is away is no error: it is told, and looked at again.

        Raises:
            ServerError: no server is there.
        """
        for member in self.members:
            if not member.serving.booted_here:
                self._on_event("attach", {"message": member.name})
        # Where others can begin, nobody is waited for.
        waits = [0.0, self._patience] if len(self.members) > 1 else [self._patience]
        for wait in waits:
            begun = await asyncio.gather(
                *(member.serving.begin(wait) for member in self.members), return_exceptions=True
            )
            there: list[tuple[Member, ServerFacts]] = []
            for member, found in zip(self.members, begun, strict=True):
                if isinstance(found, ServerFacts):
                    there.append((member, found))
                elif isinstance(found, ServerError):
                    member.why = found.what
                else:
                    raise found
            if there:
                return there
        raise next(error for error in begun if isinstance(error, BaseException))

    async def open(self, there: Sequence[tuple[Member, ServerFacts]], adopt: Adopt) -> None:
        """Give the members work that are there, with the facts to record; look for the others."""
        self._adopt = adopt
        for member, facts in there:
            if not member.serving.opened:
                await member.serving.open(facts)
            member.state = State.UP
        for member in self.members:
            if not member.up:
                self._on_event("server", {"message": f"{member.name} is away: {member.why}"})
                self._look_for(member)

    async def close(self) -> None:
        """Stop looking, close the clients, end a server that was booted here."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(member.serving.close() for member in self.members))

    async def acquire(self) -> Place:
        """Wait for room at a server and take a place there.

        Raises:
            ServerLost, OtherServer: no server is there, and none is waited for any longer.
        """
        return Place(self, await self.take(None))

    async def take(self, avoid: Member | None) -> Member:
        """Do what `acquire` does, for `Place`."""
        async with self._changed:
            while True:
                if self._lost is not None:
                    raise self._lost
                if (member := self.roomiest(avoid)) is not None:
                    member.pacer.under_way += 1
                    return member
                await self._changed.wait()

    def roomiest(self, avoid: Member | None = None) -> Member | None:
        """Return the server with the most room, None where none has any; `avoid` only for want of another."""
        count = len(self.members)
        self._turn += 1
        # Turned from call to call, so that of two with the same room each is first now and then.
        turned = [self.members[(self._turn + n) % count] for n in range(count)] if count > 1 else self.members
        free = [member for member in turned if member.room > 0]
        if not free:
            return None
        return max(free, key=lambda one: (one is not avoid, not one.doubted, one.room))

    def known(self, but: str) -> Client | None:
        """Return the client of a server that is there, another one than that of this URL."""
        found = (one for one in self.members if one.serving.opened and (one.up or self._adopt is None))
        return next((one.serving.client for one in found if one.serving.client.base_url != but), None)

    async def notify(self) -> None:
        """Have those that wait for room look again."""
        async with self._changed:
            self._changed.notify_all()

    async def gone(self, member: Member, generation: int) -> bool:
        """Say whether a server is away, after a request of that generation failed; then it is taken out."""
        failed_at = time.monotonic()
        if not member.up or member.serving.generation != generation:
            return True
        member.doubted += 1
        try:
            gone = await member.serving.gone(failed_at)
        finally:
            member.doubted -= 1
        if not member.up or member.serving.generation != generation:
            return True
        if gone:
            self._take_out(member, "it does not answer")
        return gone

    def refused(self, member: Member, sent_at: float) -> None:
        """Note that a server refused a request sent at `sent_at`; one of several that only refuses is out."""
        member.pacer.refused(sent_at)
        member.refusals += 1
        others = any(one.up for one in self.members if one is not member)
        if others and member.up and member.refusals >= REFUSALS and member.pacer.limit == 1:
            self._take_out(member, f"it refused {member.refusals} requests in a row")

    def _take_out(self, member: Member, why: str) -> None:
        member.state, member.why, member.refusals = State.AWAY, why, 0
        if self.away:
            self._none_since = time.monotonic()
        elif len(self.members) > 1:
            self._on_event("server", {"message": f"{member.name} is away: {why}; the others go on"})
        self._look_for(member)

    def _look_for(self, member: Member) -> None:
        task = asyncio.create_task(self._bring_back(member))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bring_back(self, member: Member) -> None:
        """Look at a server until it is there again and the same, or the run is given up."""
        assert self._adopt is not None
        serving = member.serving
        # What is under way there would wait for its deadline, request by request.
        await serving.cut()
        tries = 0
        while self._lost is None:
            left = self._none_since + self._patience - time.monotonic() if self.away else LONGEST_LOOK
            if self.away and not serving.booted_here and member is self._first_looked_for():
                many = "the server does" if len(self.members) == 1 else "the servers do"
                self._on_event("wait", {"message": f"{many} not answer; waiting {max(left, 0):.0f} s more"})
            # A boot has deadlines of its own.
            allowed = None if serving.booted_here else max(min(left, LONGEST_LOOK), 0.1)
            try:
                async with asyncio.timeout(allowed):
                    await serving.back(self._adopt)
            except OtherServer as error:
                self._is_other(member, error)
            except (ServerError, ClientError) as error:
                member.state, member.why = State.AWAY, error.what
            except TimeoutError:
                member.state, member.why = State.AWAY, "no answer in time"
            except Exception as error:
                # A server that may be booted no more; or a fault of ours, which must not end in a wait.
                await self._give_up(error)
                return
            else:
                member.state, member.why = State.UP, ""
                if len(self.members) > 1:
                    self._on_event("server", {"message": f"{member.name} is back"})
                await self.notify()
                return
            if (hopeless := self._hopeless()) is not None:
                await self._give_up(hopeless)
                return
            tries += 1
            await asyncio.sleep(LOOK_AGAIN * min(tries, 5))

    def _first_looked_for(self) -> Member | None:
        return next((one for one in self.members if one.state is State.AWAY), None)

    def _is_other(self, member: Member, error: OtherServer) -> None:
        self._other = error
        if member.state is not State.OTHER and not self.away:
            self._on_event(
                "server", {"message": f"{member.name} is taken out, another server answers: {error.why}"}
            )
        member.state, member.why = State.OTHER, error.why

    def _hopeless(self) -> ShardgateError | None:
        if not self.away:
            return None
        if self._other is not None and all(member.state is State.OTHER for member in self.members):
            return self._other
        if time.monotonic() - self._none_since < self._patience:
            return None
        told = "; ".join(f"{one.name}: {one.why or 'it does not answer'}" for one in self.members)
        one = len(self.members) == 1
        return ServerLost(
            what="the server did not come back" if one else "none of the servers came back",
            where=self.members[0].name,
            why=f"{self.members[0].why or 'it does not answer'}, for {self._patience:.0f} seconds"
            if one
            else f"for {self._patience:.0f} seconds; {told}",
            remedy="start it again, then give the same command to go on from here",
        )

    async def _give_up(self, error: Exception) -> None:
        self._lost = error
        await self.notify()


class Place:
    """Where one item of work is asked: a place under one server's limit, moved when the server goes away."""

    def __init__(self, fleet: Fleet, member: Member) -> None:
        self.fleet = fleet
        self._member: Member | None = member

    @property
    def member(self) -> Member:
        """The server; between two servers there is none, and nobody asks."""
        assert self._member is not None
        return self._member

    async def move(self) -> None:
        """Give the place up and take one, at another server if there is one, waiting as `acquire` does."""
        before = self._member
        await self.release()
        self._member = await self.fleet.take(before)

    async def elsewhere(self) -> None:
        """Move to another server if one has room now; else stay."""
        found = self.fleet.roomiest(self._member)
        if found is not None and found is not self._member:
            await self.release()
            found.pacer.under_way += 1
            self._member = found

    async def release(self) -> None:
        """Give the place back; once, whoever calls."""
        member, self._member = self._member, None
        if member is not None:
            member.pacer.under_way -= 1
            await self.fleet.notify()
