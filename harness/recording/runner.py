"""The capture run: checks everything first, then asks, judges and writes until all is through.

Place in the flow: over every module of this package, under the command. Imports `contracts`,
`harness.capture` and `harness.server`.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime

from contracts.errors import ShardgateError
from contracts.formats import Format
from contracts.records import Capture, Judgement, ServerFacts
from contracts.tokens import Codec
from harness.capture import served_format
from harness.recording import rendering
from harness.recording.generate import Maker
from harness.recording.lock import FolderLock
from harness.recording.metrics import MetricsPort
from harness.recording.pacing import Pacer
from harness.recording.plan import NO_PROMPT, SHOWN_BAD, Plan, Summary, asked, bad_failure, refuse_bad
from harness.recording.prompts import Checked, Item, check, items
from harness.recording.rows import Group
from harness.recording.serving import OnEvent, OtherServer, Serving
from harness.recording.settings import differences, finish, pin, read_run, refuse_others, served_by
from harness.recording.status import Status, server_gauges
from harness.recording.store import Store
from harness.recording.tripwire import Tripped, Tripwire
from harness.recording.writer import Writer
from harness.wire_errors import ClientError

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
            serving = Serving(
                url=plan.url,
                deployment=plan.deployment,
                flags=plan.flags,
                log_folder=plan.folder,
                on_event=self._on_event,
                api_key=plan.api_key,
                restarts=plan.restarts,
                patience=plan.wait_server,
                health_seconds=plan.health_seconds,
            )
            try:
                return await self._with_server(serving, lock, checked)
            finally:
                await asyncio.shield(asyncio.ensure_future(serving.close()))

    async def _with_server(self, serving: Serving, lock: FolderLock, checked: Checked) -> Summary:
        plan = self._plan
        facts = await serving.begin()
        self._on_event("tokenizer", {"message": "loading"})
        folder = rendering.tokenizer_folder(plan.tokenizer, facts)
        codec = rendering.load(folder, trust_remote_code=plan.trust_remote_code)
        await asyncio.to_thread(rendering.refuse_foreign, folder, codec, facts, serving.api_key)
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

        def recorded(told: ServerFacts) -> ServerFacts:
            told = replace(told, tokenizer_sha256=told.tokenizer_sha256 or codec.sha256)
            # Over `generate` the server's own template takes no part: the one used is the one recorded.
            return replace(told, chat_template_sha256=renderer.template_sha256) if renderer else told

        facts = recorded(facts)
        pinned = {**asked(plan), **served_by(facts, fmt.name)}

        def adopt(told: ServerFacts) -> ServerFacts:
            told = recorded(told)
            if changed := differences(pinned, {**asked(plan), **served_by(told, fmt.name)}):
                raise OtherServer(
                    what="another server answers than the one that the run was begun with",
                    where=told.base_url,
                    why="; ".join(changed),
                    remedy="start it as it was, then give the same command to go on",
                )
            return told

        begun = pin(plan.folder, pinned, {"server": facts.base_url, "started": _now()})
        store = await asyncio.to_thread(Store, plan.folder, fmt.name, plan.limits)
        try:
            again = store.forget_failures() if begun and plan.retry_failed else 0
            if renderer and (again or store.captured + len(store.failed) < checked.generations):
                from harness.parsers import registered_parsers

                # Fields are derived by them; imported once, before any answer waits for it.
                await asyncio.to_thread(registered_parsers)
            await serving.open(facts, adopt)
            self._tripwire = Tripwire(facts, fmt, plan.cohort) if plan.tripwire else None
            return await self._recorded(serving, lock, checked, store, codec, fmt, renderer)
        finally:
            store.close()

    async def _recorded(
        self,
        serving: Serving,
        lock: FolderLock,
        checked: Checked,
        store: Store,
        codec: Codec,
        fmt: Format,
        renderer: rendering.Renderer | None,
    ) -> Summary:
        plan = self._plan
        status = Status(
            total=checked.generations + len(checked.bad),
            captured=store.captured,
            failed=len(store.failed),
            bad_rows=len(checked.bad),
            causes=Counter(one.reason for one in store.failed),
        )
        began = status.clock()
        pacer = Pacer(plan.concurrency, fixed=not plan.adapt)
        weights = {serving.client.facts.weight_version}

        def seen(number: int, capture: Capture, judgement: Judgement) -> None:
            weights.add(capture.server.weight_version)
            status.weight_updates = len(weights) - 1
            status.verdicts[str(judgement.verdict)] += 1
            status.losses.update({loss.name for loss in judgement.losses})
            status.finishes[str(capture.finish_reason)] += 1
            if self._tripwire is not None:
                self._tripwire.saw(number, capture, judgement)
                self._look()

        def retried(reason: str) -> None:
            status.retries += 1

        maker = Maker(
            serving,
            pacer,
            codec=codec,
            fmt=fmt,
            renderer=renderer,
            source=plan.source.name,
            patience=plan.patience,
            logprobs=plan.logprobs,
            seen=seen,
            retried=retried,
        )
        writer = Writer(store, lock, status)
        state, stopped = "finished", False
        with ExitStack() as around:
            if plan.metrics_port is not None:
                port = around.enter_context(MetricsPort(status.open_metrics, plan.metrics_port))
                self._on_event("metrics", {"message": f"http://127.0.0.1:{port.port}/metrics"})
            writing = asyncio.create_task(writer.run())
            asking = asyncio.create_task(self._ask(maker, writer, pacer, store.done))
            telling = asyncio.create_task(self._tell(serving, pacer, status))
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
            await writing  # raises what the disk or the lock said
            # All of it to shards: a run that was stopped can be audited as it stands.
            await asyncio.to_thread(store.roll)
            store.write_failed(map(bad_failure, checked.bad))
        status.outages = serving.outages
        tripped = self._tripwire.tripped if self._tripwire else None
        if tripped is not None and not stopped:
            state = "tripped"
        error = _first(results[0])
        if error is not None:
            state = "interrupted"
        summary = self._summary(state, store, status, tripped, status.clock() - began)
        finish(plan.folder, state, {**asdict(summary), "ended": _now()})
        if error is not None:
            raise error
        return summary

    def _look(self) -> None:
        if self._tripwire is not None and self._tripwire.tripped is not None:
            self._enough.set()

    async def _ask(self, maker: Maker, writer: Writer, pacer: Pacer, done: set[str]) -> None:
        """Ask for every item that is not done, in the source's order, each under the pacer's limit."""

        async def one(item: Item, number: int) -> None:
            try:
                group = await maker.make(item, number)
            finally:
                await pacer.release()

            def written(became: Group) -> None:
                if self._tripwire is not None:
                    reason = became.failed[0].reason if became.failed and not became.rows else None
                    self._tripwire.finished(number, reason)
                    self._look()

            writer.add(group, written)

        async with asyncio.TaskGroup() as group:
            number = 0
            for item in items(self._plan.source, self._plan.wanted):
                if item.name in done:
                    continue
                await writer.room()
                # Taken here, so that no more tasks are made than may ask: the source stays on the disk.
                await pacer.acquire()
                group.create_task(one(item, number))
                number += 1
            if self._tripwire is not None:
                self._tripwire.shrink(number)
                self._look()

    async def _tell(self, serving: Serving, pacer: Pacer, status: Status) -> None:
        looked = float("-inf")
        while True:
            status.in_flight, status.limit = pacer.under_way, pacer.limit
            status.outages = serving.outages
            if serving.away:
                # What is told now is the boot or the wait.
                await asyncio.sleep(TELL_EVERY)
                continue
            if status.clock() - looked >= LOOK_AT_SERVER:
                looked = status.clock()
                try:
                    async with asyncio.timeout(LOOK_AT_SERVER):
                        status.server = server_gauges((await serving.client.get("/metrics")).decode())
                except (ClientError, TimeoutError, UnicodeDecodeError):
                    status.server = {}  # booted without --enable-metrics, or busy: no numbers, no harm
            self._on_event("capture", status.progress())
            await asyncio.sleep(TELL_EVERY)

    def _summary(
        self, state: str, store: Store, status: Status, tripped: Tripped | None, seconds: float
    ) -> Summary:
        failed = len(store.failed) + status.bad_rows
        causes = Counter(one.reason for one in store.failed)
        if status.bad_rows:
            causes[NO_PROMPT] = status.bad_rows
        return Summary(
            state=state,
            run_folder=str(self._plan.folder),
            asked=status.total,
            captured=store.captured,
            failed=failed,
            left=status.total - store.captured - failed,
            shards=len(store.shards),
            tokens=status.tokens,
            seconds=round(seconds, 1),
            retries=status.retries,
            outages=status.outages,
            weight_updates=status.weight_updates,
            verdicts=dict(status.verdicts),
            losses=dict(status.losses.most_common()),
            finish_reasons=dict(status.finishes),
            failures=dict(causes.most_common()),
            cause=tripped.cause if tripped else "",
            recommendation=tripped.recommendation if tripped else None,
            signal=self._signal,
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _first(result: object) -> Exception | None:
    """Return the error that ended the asking; of several at once the first."""
    while isinstance(result, BaseExceptionGroup):
        result = result.exceptions[0]
    return result if isinstance(result, Exception) else None
