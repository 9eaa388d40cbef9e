"""What sites do to a run's folder: full disks at any write, folders that are read-only or go away, readers.

Place in the flow: none; store, writer and the run's files on a real disk, without a server.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from contracts.held import FolderLock, LockLost
from harness.recording.rows import Group
from harness.recording.status import Status
from harness.recording.store import Limits, Store
from harness.recording.writer import Writer
from tests.bodies.recording_rows import row

ROOT = Path(__file__).resolve().parents[2]

FULL = """
import json, resource, signal, sys
from pathlib import Path
from contracts.errors import ShardgateError
from harness.recording.rows import Group
from harness.recording.settings import finish, pin
from harness.recording.standing import note_start, read_standing
from harness.recording.store import DiskRefused, Limits, Store, disk_told
from harness.report.run_html import write_run_report
from tests.bodies.recording_rows import failure, row

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
refused = 0
for limit in (0, 10, 60, 200, 700, 2000, 4000, 5000, 6000, 8000, 12000, 16000, 24000, 40000, 1 << 30):
    folder = Path(sys.argv[1], str(limit))
    pin(folder, {"model": "m"}, {})
    store = Store(folder, "kimi_k2", Limits(rows=2))
    kept, lost = set(), set()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with disk_told(folder):
            for number in range(5):
                store.commit([Group((row(f"item{number}"),)), Group((), (failure(f"lost{number}"),))])
                kept.add(f"item{number}")
                lost.add(f"lost{number}")
            store.roll()
            store.write_failed([])
            finish(folder, "finished", {"asked": 10})
            note_start(folder, "now")
            write_run_report(read_standing(folder))
    except ShardgateError as error:
        refused += 1
        assert isinstance(error, DiskRefused) or "could not be written" in error.what, error
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    store.close()
    assert not [*folder.rglob("*.tmp")], "nothing half is left"
    run = json.loads((folder / "run.json").read_text("utf-8"))
    assert run["settings"] == {"model": "m"}
    again = Store(folder, "kimi_k2", Limits(rows=2))
    # The commit that the disk refused may be there or not; what was told as written is, once.
    assert kept | lost <= again.done and len(again.done - kept - lost) <= 2, (limit, again.done)
    again.roll()
    assert again.captured == sum(shard.rows for shard in again.shards)
    assert again.captured + len(again.failed) == len(again.done)
    again.close()
    write_run_report(read_standing(folder))
assert 5 <= refused < 15, refused
"""


def test_a_disk_that_is_full_at_any_write_loses_nothing_that_was_told(tmp_path: Path) -> None:
    """The limit on a file's size stands for the disk: the system refuses the write in the same way."""
    words = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_a_folder_that_is_renamed_under_the_run_stops_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    told: list[Group] = []

    async def go() -> None:
        with FolderLock(folder / "journal") as lock:
            store = Store(folder, "kimi_k2")
            writer = Writer(store, lock, Status(total=2))
            store.commit([Group((row("kept"),))])
            folder.rename(tmp_path / "elsewhere")
            writer.add(Group((row("late"),)), told.append)
            writer.close()
            with pytest.raises(LockLost, match="the folder is gone"):
                await writer.run()
            store.close()

    asyncio.run(go())
    assert not told
    again = Store(tmp_path / "elsewhere", "kimi_k2")
    assert again.done == {"kept"}
    again.close()


@pytest.mark.parametrize("where", ["/sys/shardgate-run", "{tmp}/file/run"])
def test_a_folder_that_cant_be_made_is_told_before_anything_is_asked(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    if where.startswith("/sys") and not Path("/sys").is_dir():
        pytest.skip("no /sys here")
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"prompt": "x"}) + "\n", "utf-8")
    words = [sys.executable, "-m", "harness", "capture", str(prompts), "-o", where.format(tmp=tmp_path)]
    words += ["--base-url", "http://127.0.0.1:1", "--wait-server", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert where.format(tmp=tmp_path).split("/run")[0] in done.stderr and "127.0.0.1:1" not in done.stderr


def test_whoever_reads_while_it_writes_sees_whole_shards_only(tmp_path: Path) -> None:
    store = Store(tmp_path, "kimi_k2", Limits(rows=3))
    faults: list[BaseException] = []
    ended = threading.Event()

    def write() -> None:
        try:
            for number in range(120):
                store.commit([Group((row(f"item{number}"),))])
        except BaseException as fault:
            faults.append(fault)
        finally:
            ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    looked = 0
    while not ended.is_set() or not looked:
        seen: list[str] = []
        for path in sorted((tmp_path / "shards").glob("*.parquet")):
            if not path.name.startswith("."):
                seen += parquet.read_table(path, columns=["sample_id"])["sample_id"].to_pylist()
        assert len(seen) % 3 == 0 and len(seen) == len(set(seen))
        manifest = tmp_path / "shards.json"
        if manifest.exists():
            named = sum(shard["rows"] for shard in json.loads(manifest.read_text("utf-8"))["shards"])
            assert named >= len(seen) - 3
        looked += 1
    thread.join()
    store.close()
    assert not faults
