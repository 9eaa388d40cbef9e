"""The capture run: checks everything first, then asks, judges and writes until all is through.

Place in the flow: over every module of this package, under the command. Imports `contracts`,
`harness.capture` and `harness.server`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.records import Capture, Judgement, ServerFacts
from contracts.rules.parity import ENCODED_IN_CODE
from contracts.tokens import Codec
from harness.capture import served_format
from harness.recording import rendering
from harness.recording.ending import ended, nothing_left, now, status_of
from harness.recording.fleet import Fleet, Member, Place
from harness.recording.generate import Maker
from harness.recording.identity import Identity
from harness.recording.lock import FolderLock
from harness.recording.metrics import MetricsPort
from harness.recording.pacing import Pacer
from harness.recording.parity import NOT_COMPARED, PARITY_FILE, SAME, Kind, Parity, ParityFile
from harness.recording.plan import SHOWN_BAD, Plan, Summary, asked, bad_failure, refuse_bad
from harness.recording.prompts import Checked, Item, check, items
from harness.recording.rows import Group
from harness.recording.serving import OnEvent, OtherServer, Serving
from harness.recording.settings import pin, read_run, refuse_others
from harness.recording.status import Status, all_gauges
from harness.recording.store import Store
from harness.recording.tripwire import Tripwire
from harness.recording.writer import Writer
from harness.server import ServerError

TELL_EVERY = 1.0
LOOK_AT_SERVER = 5.0


def capture(plan: Plan, on_event: OnEvent) -> Summary:
    """Run until every generation is captured or failed, the tripwire trips, or a signal comes.

    A signal (SIGINT, SIGTERM, SIGHUP) ends the requests under way and flushes what is finished; the next
    call with the same plan goes on from there. Call it from the main thread.

    Raises:
        ShardgateError, ServerError: nothing was begun (wrong prompts, other settings, no server, another run
            in the folder), or the server or the disk was lost on the way; what was committed stays.
    """
    return asyncio.run(_Run(plan, on_event).until_stopped())


class _Run:
    def __init__(self, plan: Plan, on_event: OnEvent) -> None:
        self._plan = plan
        self._on_event = on_event
        self._signal = 0
        self._tripwire: Tripwire | None = None
        self._enough = asyncio.Event()
        self._drifts = ParityFile(plan.folder / PARITY_FILE)

    async def until_stopped(self) -> Summary:
        work = asyncio.create_task(self._work())
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            # Once: what follows is a flush of a second or so, and a second signal must not break it off.
            if not self._signal:
                self._signal = number
                work.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                with suppress(NotImplementedError, RuntimeError):
                    loop.add_signal_handler(number, stop, number)
        try:
            return await work
        except asyncio.CancelledError:
            if self._signal:
                # Before the first request: nothing to flush, and nothing to sum up.
                raise SystemExit(128 + self._signal) from None
            raise

    async def _work(self) -> Summary:
        plan = self._plan
        self._on_event("prompts", {"message": str(plan.source.path)})
        checked = check(plan.source, plan.wanted, keep=None if plan.skip_bad else SHOWN_BAD)
        refuse_bad(plan, checked)
        earlier = read_run(plan.folder)
        plan.folder.mkdir(parents=True, exist_ok=True)
        with FolderLock(plan.folder / "journal") as lock:
            if earlier is not None:
                # Now, and not after a boot of an hour.
                refuse_others(plan.folder, earlier["settings"], asked(plan))
                # A boot may take an hour, and nothing may be left to ask.
                if plan.deployment is not None and (summary := await self._nothing_left(earlier, checked)):
                    return summary
            fleet = self._fleet()
            try:
                try:
                    there = await fleet.begin()
                except ServerError:
                    if earlier is not None and (summary := await self._nothing_left(earlier, checked)):
                        return summary
                    raise
                return await self._with_servers(fleet, there, lock, checked, earlier)
            finally:
                await asyncio.shield(asyncio.ensure_future(fleet.close()))

    def _fleet(self) -> Fleet:
        plan = self._plan
        urls = [None] if plan.url is None else [plan.url, *plan.replicas]
        members = [
            Member(
                Serving(
                    url=url,
                    deployment=plan.deployment,
                    flags=plan.flags,
                    log_folder=plan.folder,
                    on_event=self._on_event,
                    api_key=plan.api_key,
                    restarts=plan.restarts,
                    health_seconds=plan.health_seconds,
                ),
                Pacer(plan.concurrency, fixed=not plan.adapt),
            )
            for url in urls
        ]
        return Fleet(members, patience=plan.wait_server, on_event=self._on_event)

    async def _nothing_left(self, earlier: Mapping[str, Any], checked: Checked) -> Summary | None:
        summary = await asyncio.to_thread(nothing_left, self._plan, earlier, checked)
        if summary is not None:
            self._on_event("done", {"message": "nothing is left to ask"})
        return summary

    async def _with_servers(
        self,
        fleet: Fleet,
        there: list[tuple[Member, ServerFacts]],
        lock: FolderLock,
        checked: Checked,
        earlier: Mapping[str, Any] | None,
    ) -> Summary:
        plan = self._plan
        first, facts = there[0]
        self._on_event("tokenizer", {"message": "loading"})
        folder = rendering.tokenizer_folder(plan.tokenizer, facts)
        codec = rendering.load(folder, trust_remote_code=plan.trust_remote_code)
        fmt = served_format(facts, codec)
        if fmt is None:
            raise ShardgateError(
                what="the model's format is not known to shardgate",
                where=facts.base_url,
                why="neither its parsers nor the markers of its vocabulary belong to a mapped format",
                remedy="add the family (docs/adding-a-format.md)",
            )
        renderer = None
        if not plan.wanted.chat:
            renderer = rendering.Renderer(
                folder, codec, template=plan.chat_template, trust_remote_code=plan.trust_remote_code
            )
        identity = Identity(
            asked(plan),
            before={} if earlier is None else earlier["settings"],
            known=fleet.known,
            folder=folder,
            codec=codec,
            fmt=fmt,
            renderer=renderer,
            api_key=lambda: first.serving.api_key,
        )
        facts = await identity.begin(facts)
        await first.serving.open(facts)
        there = [(first, facts), *[(one, await self._same(identity, told, facts)) for one, told in there[1:]]]
        names = [member.name for member in fleet.members]
        told = {"server": facts.base_url, "servers": names, "started": now()}
        begun = pin(plan.folder, identity.pinned, told)
        store = await asyncio.to_thread(Store, plan.folder, fmt.name, plan.limits)
        store.bad = tuple(map(bad_failure, checked.bad))
        try:
            again = store.forget_failures() if begun and plan.retry_failed else 0
            if renderer and (again or store.captured + len(store.failed) < checked.generations):
                from harness.parsers import registered_parsers

                # Fields are derived by them; imported once, before any answer waits for it.
                await asyncio.to_thread(registered_parsers)
            expected = renderer or self._expected(folder, codec)
            parity = Parity(codec, fmt, expected.template if expected else None)
            await fleet.open(there, identity.adopt)
            if plan.tripwire:
                self._tripwire = Tripwire(facts, fmt, plan.cohort, max_drift=plan.max_drift)
            maker = Maker(
                codec=codec,
                fmt=fmt,
                renderer=renderer,
                parity=parity,
                expected=None if fmt.name.partition("+")[0] in ENCODED_IN_CODE else expected,
                source=plan.source.name,
                patience=plan.patience,
                logprobs=plan.logprobs,
            )
            return await self._recorded(fleet, lock, checked, store, maker)
        finally:
            store.close()

    def _expected(self, folder: Path, codec: Codec) -> rendering.Renderer | None:
        """Return what says which prompts a server should make over chat; None where nothing can."""
        plan = self._plan
        try:
            return rendering.Renderer(
                folder, codec, template=plan.chat_template, trust_remote_code=plan.trust_remote_code
            )
        except ShardgateError as error:
            self._on_event("prompts", {"message": f"not held against the chat template: {error.what}"})
            return None

    async def _same(self, identity: Identity, told: ServerFacts, first: ServerFacts) -> ServerFacts:
        """Return the facts to record of a server that is as the first one; nothing was sent yet."""
        try:
            return await identity.adopt(told)
        except OtherServer as error:
            raise OtherServer(
                what="the servers are not the same; nothing was sent",
                where=told.base_url,
                why=f"held against {first.base_url}: {error.why}",
                remedy="start it as the others are, or leave its URL out",
            ) from None

    async def _recorded(
        self,
        fleet: Fleet,
        lock: FolderLock,
        checked: Checked,
        store: Store,
        maker: Maker,
    ) -> Summary:
        plan = self._plan
        status = status_of(store, checked)
        weights = {one.serving.client.facts.weight_version for one in fleet.members if one.up}

        def seen(number: int, capture: Capture, judgement: Judgement) -> None:
            weights.add(capture.server.weight_version)
            status.weight_updates = len(weights) - 1
            status.verdicts[str(judgement.verdict)] += 1
            status.losses.update({loss.name for loss in judgement.losses})
            status.finishes[str(capture.finish_reason)] += 1
            if self._tripwire is not None:
                self._tripwire.saw(number, capture, judgement)
                self._look()

        def compared(number: int, kind: Kind, cause: str) -> None:
            (status.prompts if kind == "prompts" else status.turns)[cause] += 1
            if self._tripwire is not None and cause != NOT_COMPARED:
                self._tripwire.compared(number, None if cause == SAME else cause)

        def retried(reason: str) -> None:
            status.retries += 1

        maker.seen, maker.compared, maker.retried = seen, compared, retried
        writer = Writer(store, lock, status)
        state, stopped = "finished", False
        with ExitStack() as around:
            if plan.metrics_port is not None:
                port = around.enter_context(MetricsPort(status.open_metrics, plan.metrics_port))
                self._on_event("metrics", {"message": f"http://127.0.0.1:{port.port}/metrics"})
            writing = asyncio.create_task(writer.run())
            asking = asyncio.create_task(self._ask(maker, writer, fleet, store.done))
            telling = asyncio.create_task(self._tell(fleet, status))
            enough = asyncio.create_task(self._enough.wait())
            try:
                await asyncio.wait({writing, asking, enough}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                state, stopped = "stopped", True
                if (task := asyncio.current_task()) is not None:
                    task.uncancel()
            for one in (asking, telling, enough):
                one.cancel()
            results = await asyncio.gather(asking, telling, enough, return_exceptions=True)
            writer.close()
            try:
                await writing  # raises what the disk or the lock said
            finally:
                self._drifts.flush()
        self._note_servers(fleet, status)
        tripped = self._tripwire.tripped if self._tripwire and not stopped else None
        error = _first(results[0])
        if error is not None:
            state = "interrupted"
        elif tripped is not None:
            state = "tripped"
        summary = await asyncio.to_thread(
            ended, plan, state, store, status, checked, tripped=tripped, signal=self._signal
        )
        if error is not None:
            raise error
        return summary

    def _look(self) -> None:
        if self._tripwire is not None and self._tripwire.tripped is not None:
            self._enough.set()

    async def _ask(self, maker: Maker, writer: Writer, fleet: Fleet, done: set[str]) -> None:
        """Ask for every item that is not done, in the source's order, each in a place at a server."""

        async def one(item: Item, number: int, place: Place) -> None:
            try:
                made = await maker.make(item, number, place)
            finally:
                await place.release()

            def written(became: Group) -> None:
                if became.rows:
                    self._drifts.add(made.drifts)
                if self._tripwire is not None:
                    reason = became.failed[0].reason if became.failed and not became.rows else None
                    self._tripwire.finished(number, reason)
                    self._look()

            writer.add(made.group, written)

        async with asyncio.TaskGroup() as group:
            number = 0
            for item in items(self._plan.source, self._plan.wanted):
                if item.name in done:
                    continue
                await writer.room()
                # Taken here, so that no more tasks are made than may ask: the source stays on the disk.
                place = await fleet.acquire()
                group.create_task(one(item, number, place))
                number += 1
            if self._tripwire is not None:
                self._tripwire.shrink(number)
                self._look()

    async def _tell(self, fleet: Fleet, status: Status) -> None:
        looked = float("-inf")
        while True:
            self._note_servers(fleet, status)
            if fleet.away:
                # What is told now is the boot or the wait.
                await asyncio.sleep(TELL_EVERY)
                continue
            if status.clock() - looked >= LOOK_AT_SERVER:
                looked = status.clock()
                await fleet.look_at_gauges(LOOK_AT_SERVER)
                self._note_servers(fleet, status)
                self._drifts.flush()
            self._on_event("capture", status.progress())
            await asyncio.sleep(TELL_EVERY)

    def _note_servers(self, fleet: Fleet, status: Status) -> None:
        status.in_flight, status.limit, status.outages = fleet.under_way, fleet.limit, fleet.outages
        status.servers = fleet.statuses()
        status.server = all_gauges(status.servers)


def _first(result: object) -> Exception | None:
    """Return the error that ended the asking; of several at once the first."""
    while isinstance(result, BaseExceptionGroup):
        result = result.exceptions[0]
    return result if isinstance(result, Exception) else None
