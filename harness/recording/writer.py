"""The group commit: what is finished goes to the disk many at a time, a few times a second.

Place in the flow: between the runner and the store. Imports `contracts.held`, and rows, status and store of
this package.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from contracts.held import FolderLock
from contracts.shard import Row, ShardError
from harness.recording.rows import Failure, Group, item_of
from harness.recording.status import Status
from harness.recording.store import Store, disk_told

EVERY = 0.1
"""Seconds that a finished capture waits for others at most before it is written."""
MANY = 256
"""Groups that are written without waiting."""
TOO_MANY = 4096
"""Groups not written yet beyond which nothing more is asked for: the disk is slower than the server."""


class Writer:
    """Collects groups and commits them from a task of its own; one thread at a time touches the store."""

    def __init__(self, store: Store, lock: FolderLock, status: Status) -> None:
        self._store = store
        self._lock = lock
        self._status = status
        self._waiting: list[tuple[Group, Callable[[Group], None]]] = []
        self._came = asyncio.Event()
        self._wrote = asyncio.Event()
        self._closing = False

    async def room(self) -> None:
        """Wait until the disk has caught up, as far as it lags at all."""
        while len(self._waiting) > TOO_MANY:
            self._wrote.clear()
            await self._wrote.wait()

    def add(self, group: Group, written: Callable[[Group], None]) -> None:
        """Hand over a finished group; `written` is called when it is lasting, with what it became."""
        self._waiting.append((group, written))
        self._came.set()

    def close(self) -> None:
        """Let `run` end when everything is written."""
        self._closing = True
        self._came.set()

    async def run(self) -> None:
        """Write until closed.

        Raises:
            DiskRefused: the disk is full or gone. What was committed stays; what waited is asked again.
            LockLost: another run took the folder over.
        """
        while True:
            await self._came.wait()
            if not self._closing and len(self._waiting) < MANY:
                await asyncio.sleep(EVERY)
            batch, self._waiting = self._waiting, []
            self._came.clear()
            if self._closing:
                self._came.set()
            if batch:
                groups = await asyncio.to_thread(self._commit, [group for group, _ in batch])
                for group, (_, written) in zip(groups, batch, strict=True):
                    self._count(group)
                    written(group)
                self._wrote.set()
            elif self._closing:
                return

    def _commit(self, groups: list[Group]) -> list[Group]:
        with disk_told(self._store.folder):
            self._lock.check()
            try:
                self._store.commit(groups)
                return groups
            except ShardError:
                # One of them fits no shard: alone, the others do.
                return [self._commit_one(group) for group in groups]

    def _commit_one(self, group: Group) -> Group:
        try:
            self._store.commit([group])
            return group
        except ShardError as error:
            why = f"{error.what}: {error.why}"[:500]
            lost = Group((), (*(_unfit(row, why) for row in group.rows), *group.failed))
            self._store.commit([lost])
            return lost

    def _count(self, group: Group) -> None:
        tokens = sum(len(row["response_token_ids"] or ()) for row in group.rows)
        self._status.count(len(group.rows), len(group.failed), tokens)
        self._status.captured = self._store.captured
        if self._store.failures != self._status.failed:
            self._status.failed = self._store.failures
            self._status.causes = Counter(one.reason for one in self._store.failed)


def _unfit(row: Row, why: str) -> Failure:
    return replace(
        Failure("", row["turn_index"], "fits-no-shard", why, "", 0, 0, 1, ""),
        item=item_of(row["sample_id"]),
        prompt=row["conversation_id"],
        source_row_index=row["source_row_index"],
        sample_index=row["sample_index"],
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
