"""One writer at a time: two that come at the same instant, holders that died, folders that went away.

Place in the flow: none; `contracts.held` by itself.
"""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from contracts.held import FolderHeld, FolderLock, LockLost, folder_held

RACES = 50
DEAD = json.dumps({"token": "gone", "host": "here", "boot": "another boot", "pid": 1, "count": "0"}) + "\n"


def race(folder: Path, inside: Path) -> bool:
    """Take the lock if it can be had; fail when somebody else is inside. Returns whether it was had."""
    try:
        with FolderLock(folder, host="here") as lock:
            inside.touch(exist_ok=False)
            time.sleep(0.002)
            lock.check()
            inside.unlink()
            return True
    except FolderHeld:
        return False


@pytest.mark.parametrize("left", [0, 1, 3])
def test_of_several_that_come_at_once_one_works_at_a_time(tmp_path: Path, left: int) -> None:
    """Threads are enough to race: each lock has a token of its own. `left` dead holders' locks lie there."""
    for number in range(RACES):
        folder = tmp_path / str(number)
        folder.mkdir()
        for dead in range(left):
            (folder / f"lock.{dead}").write_text(DEAD, "utf-8")
        barrier = threading.Barrier(4)
        had: list[bool] = []
        faults: list[BaseException] = []

        def one(folder: Path = folder, barrier: Any = barrier, had: Any = had, faults: Any = faults) -> None:
            barrier.wait()
            try:
                had.append(race(folder, folder / "inside"))
            except BaseException as fault:
                faults.append(fault)

        threads = [threading.Thread(target=one) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults and any(had), (number, faults)
        assert not list(folder.iterdir()), "nothing is left, the dead ones' locks neither"


def racer(home: str, barrier: Any, told: Any) -> None:
    for number in range(RACES):
        folder = Path(home, str(number))
        barrier.wait()
        try:
            told.put(race(folder, Path(home, f"inside-{number}")))
        except BaseException as fault:
            told.put(repr(fault))


def test_two_processes_that_start_at_the_same_instant(tmp_path: Path) -> None:
    for number in range(RACES):
        (tmp_path / str(number)).mkdir()
        if number % 2:
            (tmp_path / str(number) / "lock.0").write_text(DEAD, "utf-8")
    context = multiprocessing.get_context("spawn")
    barrier, told = context.Barrier(2), context.Queue()
    racers = [context.Process(target=racer, args=(str(tmp_path), barrier, told)) for _ in range(2)]
    for one in racers:
        one.start()
    answers = [told.get(timeout=120) for _ in range(2 * RACES)]
    for one in racers:
        one.join(30)
    assert not [answer for answer in answers if not isinstance(answer, bool)]
    assert sum(answers) >= RACES


def test_a_name_that_was_a_dead_ones_is_not_taken_from_the_living(tmp_path: Path) -> None:
    """Between looking and taking, another one takes the dead lock over, ends, and a third one begins anew."""
    (tmp_path / "lock.0").write_text(DEAD, "utf-8")
    late = FolderLock(tmp_path, host="here")
    dead = late._dead_holders()
    (tmp_path / "lock.0").unlink()
    with FolderLock(tmp_path, host="here") as third:
        assert (tmp_path / "lock.0").exists()
        assert not late._take(dead)
        third.check()


def test_a_folder_that_goes_away_is_told_and_not_written_into(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with FolderLock(folder) as lock:
        lock.check()
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(LockLost, match="the folder is gone"):
            lock.check()
        shutil.rmtree(tmp_path / "elsewhere")
    assert not folder.exists()


def test_where_the_kernel_locks_no_folder_a_file_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS refuses an exclusive lock on a folder: the system's own answer there, said here."""

    def refused(handle: int, operation: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refused)
    with folder_held(tmp_path):
        assert (tmp_path / "lock.0").exists()
        with pytest.raises(FolderHeld, match="another process is writing"), folder_held(tmp_path):
            pass
    assert not list(tmp_path.iterdir())
    with folder_held(tmp_path):
        pass
