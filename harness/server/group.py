"""A group of servers behind one router: all booted at once, ended together, the dead one named.

Place in the flow: above the servers and the router, for deployments that are a group. Imports the stage's own
modules and `contracts.records`.

    with ServerGroup(load_deployment("tiny-router")) as group:
        ... group.base_url

Members on a URL are attached to and never ended. Where members say `--disaggregation-mode prefill` and
`decode`, the router is told which are which, and each prefill server that is booted here gets a bootstrap
port of its own unless its flags name one. (With the extra `cpu` no such pair runs: SGLang 0.5.23's prefill
server refuses the transfer backend `fake`, and the others come in packages of their own.)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from contracts.records import ServerFacts
from harness.server.attach import AttachedServer
from harness.server.deployments import Deployment
from harness.server.failures import CannotBoot, ServerError
from harness.server.flags import text_of
from harness.server.hardware import free_port
from harness.server.launch import SGLangServer
from harness.server.progress import BootProgress
from harness.server.ready import info
from harness.server.router import Router

DEFAULT_BOOTSTRAP_PORT = 8998
"""SGLang's, for a prefill server that does not say its own."""

BOOTSTRAP_FLAG = "--disaggregation-bootstrap-port"

Member = SGLangServer | AttachedServer


class ServerGroup:
    """The servers of a group deployment and the router in front of them; a context manager.

    `attached` are running servers to use in place of booting the deployment's members. `log_folder` takes a
    log per server and the router's. `on_progress` gets each member's number and name with its steps.
    Whatever ends the boot of one, Ctrl-C included, ends all. Errors are `ServerError`s.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        attached: Sequence[AttachedServer] = (),
        extra_flags: Sequence[str] = (),
        host: str = "127.0.0.1",
        port: int | None = None,
        log_folder: str | os.PathLike[str] | None = None,
        on_progress: Callable[[str, BootProgress], None] | None = None,
        api_key: str | None = None,
    ) -> None:
        if not deployment.servers and not attached:
            raise CannotBoot(
                f"deployment {deployment.name!r} is no group",
                where=str(deployment.file or ""),
                why="it names no 'servers'",
                remedy="boot it as a server (Deployment.server), or attach to its URL",
            )
        self.deployment = deployment
        self._attached = tuple(attached)
        self._extra_flags = tuple(extra_flags)
        self._host, self._port = host, port
        self._log_folder = None if log_folder is None else Path(log_folder)
        self._on_progress = on_progress
        self._api_key = api_key
        self.members: tuple[Member, ...] = ()
        self.router: Router | None = None

    @property
    def base_url(self) -> str:
        """Where the group answers: the router's."""
        if self.router is None:
            raise RuntimeError("the group was not started")
        return self.router.base_url

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await self.start_async()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def start(self) -> None:
        """Boot all members at once, then the router; return when a generation came through it."""
        asyncio.run(self.start_async())

    async def start_async(self) -> None:
        """`start` without blocking the loop."""
        if self.router is not None:
            raise RuntimeError("the group was started already")
        try:
            self.members = self._attached or await asyncio.to_thread(self._make)
            booted = [one for one in self.members if isinstance(one, SGLangServer)]
            try:
                async with asyncio.TaskGroup() as boots:
                    for one in booted:
                        boots.create_task(one.start_async())
            except BaseExceptionGroup as failed:
                raise failed.exceptions[0] from None
            self.router = await asyncio.to_thread(self._make_router)
            await asyncio.to_thread(self.router.start)
        except BaseException:
            self.stop()
            self.router = None
            raise

    def _make(self) -> tuple[Member, ...]:
        """The members, not started; those on a URL are attached to first of all."""
        found: list[Member] = []
        for number, one in enumerate(self.deployment.members()):
            if one.url is not None:
                found.append(one.attach(api_key=self._api_key))
                continue
            found.append(self._server(number, one))
        return tuple(found)

    def _server(self, number: int, one: Deployment) -> SGLangServer:
        flags = self._extra_flags
        if role_of(one.flags) == "prefill" and text_of(one.flags, _name(BOOTSTRAP_FLAG)) is None:
            # Two of them on one machine would take the same one.
            flags = (*flags, BOOTSTRAP_FLAG, str(free_port(self._host)))
        log = None if self._log_folder is None else self._log_folder / f"{number}-{one.name}.log"
        return one.server(extra_flags=flags, log_path=log, on_progress=self._teller(number, one.name))

    def plan(self) -> tuple[tuple[SGLangServer | str, ...], Router]:
        """What `start` would boot, with ports: servers, URLs of those attached to, the router in front.

        Nothing is started and no running server is asked, so one by URL is taken for a whole server.
        """
        members: list[SGLangServer | str] = []
        places: list[_Place] = []
        keys = {self._api_key}
        for number, one in enumerate(self.deployment.members()):
            if one.url is not None:
                url = one.filled().url or ""
                members.append(url)
                places.append(_Place(url))
                continue
            server = self._server(number, one)
            server.port = free_port(server.host)
            members.append(server)
            places.append(_place(server))
            keys.add(text_of(server.flags, "api_key"))
        return tuple(members), self._router(places, keys)

    def _teller(self, number: int, name: str) -> Callable[[BootProgress], None] | None:
        told = self._on_progress
        return None if told is None else lambda now: told(f"{number}-{name}", now)

    def _make_router(self) -> Router:
        keys = {self._api_key, *(text_of(flags, "api_key") for flags in self._flags())}
        return self._router([_place(one) for one in self.members], keys)

    def _router(self, places: Sequence[_Place], given: set[str | None]) -> Router:
        keys = given - {None}
        if len(keys) > 1:
            raise CannotBoot(
                "the group's servers have different API keys",
                where=f"deployment {self.deployment.name!r}",
                why="the router sends one key to all of them",
                remedy="give every member the same --api-key",
            )
        return Router(
            [one.url for one in places if one.role is None],
            prefill=[(one.url, one.bootstrap) for one in places if one.role == "prefill"],
            decode=[one.url for one in places if one.role == "decode"],
            flags=self.deployment.filled().router_flags,
            host=self._host,
            port=self._port,
            log_path=None if self._log_folder is None else self._log_folder / "router.log",
            api_key=next(iter(keys), None),
        )

    def _flags(self) -> tuple[tuple[str, ...], ...]:
        return tuple(one.flags for one in self.members if isinstance(one, SGLangServer))

    def facts(self) -> ServerFacts:
        """What the first member reports about itself, at the router's URL: the router tells none of it."""
        first = self.members[0]
        facts = first.facts if isinstance(first, AttachedServer) else first.facts()
        return replace(facts, base_url=self.base_url)

    def alive(self) -> bool:
        """Whether the router and every member run."""
        return self.router is not None and self.router.alive() and all(one.alive() for one in self.members)

    def check(self) -> None:
        """Raise what is wrong with the first member, or the router, that is gone; all others are ended."""
        if self.router is None:
            raise RuntimeError("the group was not started")
        for name, one in (*self._named(), ("the router", self.router)):
            try:
                one.check()
            except ServerError as error:
                error.what = f"{name} of the group {self.deployment.name!r}: {error.what}"
                self.stop()
                raise

    def _named(self) -> tuple[tuple[str, Member], ...]:
        names = self.deployment.servers or tuple(one.base_url for one in self.members)
        return tuple(
            (f"server {number} ({name})", one)
            for number, (name, one) in enumerate(zip(names, self.members, strict=True))
        )

    def stop(self) -> None:
        """End the router and every member that was booted. Safe to call again."""
        with contextlib.ExitStack() as ends:
            for one in self.members:
                if isinstance(one, SGLangServer):
                    ends.callback(one.stop)
            # Last in, first out: nothing is sent to a server that is going away.
            if self.router is not None:
                ends.callback(self.router.stop)


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def role_of(flags: Sequence[str]) -> str | None:
    """`prefill` or `decode` for half of a disaggregated pair, None for a server that does both."""
    role = text_of(flags, "disaggregation_mode")
    return None if role in (None, "null") else role


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a member answers, and its half of a disaggregated pair."""

    url: str
    role: str | None = None
    bootstrap: int | None = None


def _place(member: Member) -> _Place:
    role = member_role(member)
    return _Place(member.base_url, role, bootstrap_port(member) if role == "prefill" else None)


def member_role(member: Member) -> str | None:
    """The role that a member was started in, or reports."""
    if isinstance(member, SGLangServer):
        return role_of(member.flags)
    role = member.facts.flags.get("disaggregation_mode")
    return None if role in (None, "null") else str(role)


def bootstrap_port(member: Member) -> int:
    """The port at which a prefill server tells decode servers where its cache lies."""
    if isinstance(member, SGLangServer):
        return int(text_of(member.flags, _name(BOOTSTRAP_FLAG)) or DEFAULT_BOOTSTRAP_PORT)
    reported = info(member.base_url, "server_info", api_key=member.api_key)
    return int(reported.get(_name(BOOTSTRAP_FLAG)) or DEFAULT_BOOTSTRAP_PORT)
