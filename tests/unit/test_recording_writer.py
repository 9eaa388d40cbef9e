"""The group commit: what is told as written is on the disk, a row that fits no shard fails alone.

Place in the flow: none; `harness.recording.writer` over a real store, without a server.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.held import FolderLock, LockLost
from harness.recording.rows import Group
from harness.recording.status import Status
from harness.recording.store import Limits, Store
from harness.recording.writer import Writer
from tests.bodies.recording_rows import failure, row


def write(folder: Path, groups: list[Group], limits: Limits | None = None) -> tuple[list[Group], Status]:
    """Hand groups to a writer and close it; returns what each became, and the counts."""
    became: list[Group] = []
    status = Status(total=len(groups))

    async def go() -> None:
        with FolderLock(folder / "journal") as lock:
            store = Store(folder, "kimi_k2", limits)
            writer = Writer(store, lock, status)
            task = asyncio.create_task(writer.run())
            for group in groups:
                await writer.room()
                writer.add(group, became.append)
                await asyncio.sleep(0)
            writer.close()
            await task
            store.close()

    asyncio.run(go())
    return became, status


def test_all_that_was_handed_over_is_there_when_it_closes(tmp_path: Path) -> None:
    groups = [Group((row(f"item{number}"),)) for number in range(700)] + [Group((), (failure("lost"),))]
    became, status = write(tmp_path, groups, Limits(rows=300))
    assert became == groups
    assert (status.captured, status.failed, status.tokens) == (700, 1, 700)
    assert status.causes == {"timeout": 1}
    again = Store(tmp_path, "kimi_k2")
    assert again.done == {*(f"item{number}" for number in range(700)), "lost"}
    assert sum(shard.rows for shard in again.shards) >= 300
    again.close()


def test_a_row_that_fits_no_shard_fails_alone(tmp_path: Path) -> None:
    odd = row("odd") | {"prompt_tokens": 1 << 40}
    became, status = write(tmp_path, [Group((row("a"),)), Group((odd,)), Group((row("b"),))])
    assert [len(group.rows) for group in became] == [1, 0, 1]
    assert status.causes == {"fits-no-shard": 1}
    again = Store(tmp_path, "kimi_k2")
    assert again.done == {"a", "b", "odd"} and [one.item for one in again.failed] == ["odd"]
    again.close()


def test_a_run_whose_folder_was_taken_over_writes_no_more(tmp_path: Path) -> None:
    async def go() -> None:
        with FolderLock(tmp_path / "journal", host="elsewhere", beat=3600) as lock:
            store = Store(tmp_path, "kimi_k2")
            writer = Writer(store, lock, Status(total=1))
            writer.add(Group((row("a"),)), lambda _: None)
            writer.close()
            with FolderLock(tmp_path / "journal", silence=0.3), pytest.raises(LockLost):
                await writer.run()
            store.close()

    asyncio.run(go())
    again = Store(tmp_path, "kimi_k2")
    assert again.done == set()
    again.close()


def test_a_full_disk_stops_the_writer_and_keeps_what_was_written(tmp_path: Path) -> None:
    """The limit on a file's size stands for the disk: the system refuses the write in the same way."""
    code = (
        "import asyncio, resource, signal, sys; from pathlib import Path\n"
        "from contracts.held import FolderLock; from harness.recording.rows import Group\n"
        "from harness.recording.status import Status\n"
        "from harness.recording.store import DiskRefused, Store\n"
        "from harness.recording.writer import Writer\n"
        "from tests.bodies.recording_rows import row\n"
        "folder = Path(sys.argv[1]); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "async def go():\n"
        "    with FolderLock(folder / 'journal') as lock:\n"
        "        store = Store(folder, 'kimi_k2'); store.commit([Group((row('kept'),))])\n"
        "        size = (folder / 'journal' / '00000.log').stat().st_size + 100\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))\n"
        "        writer = Writer(store, lock, Status(total=2))\n"
        "        writer.add(Group((row('lost'),)), lambda _: sys.exit('told as written'))\n"
        "        writer.close()\n"
        "        try: await writer.run()\n"
        "        except DiskRefused: return\n"
        "        sys.exit('nothing was told')\n"
        "asyncio.run(go())\n"
    )
    root = Path(__file__).resolve().parents[2]
    words = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=root)
    assert done.returncode == 0, done.stderr
    again = Store(tmp_path, "kimi_k2")
    assert again.done == {"kept"}
    again.close()
