"""The journal and the store: whatever byte a crash tears, what was committed is there, once.

Place in the flow: none; `harness.recording` on the disk, without a server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from contracts.errors import ShardgateError
from contracts.held import FolderHeld, FolderLock, LockLost
from contracts.shard import Row, ShardError, seal
from harness.recording.journal import JournalDamaged, Segment, frame, read_segment
from harness.recording.rows import Failure, Group, decode, encode, sample_id
from harness.recording.store import Limits, Store
from tests.bodies.recording_rows import failure, row


def stored(folder: Path) -> list[str]:
    """Return the sample ids of all shards that are visible, with repeats."""
    found: list[str] = []
    for path in sorted((folder / "shards").glob("*.parquet")):
        found += parquet.read_table(path, columns=["sample_id"])["sample_id"].to_pylist()
    return found


def test_rows_come_back_as_they_went_in() -> None:
    rows = (row("a"), row("b", 1, created_at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=3)))
    payload, table, failed = encode([Group(rows[:1]), Group(rows[1:], (failure("c"),))])
    again, failures = decode(payload)
    assert again is not None and again.equals(table) and failures == failed == [failure("c")]
    for sent, got in zip(rows, again.to_pylist(), strict=True):
        assert got["prompt_sha256"] == sent["prompt_sha256"] and got["created_at"] == sent["created_at"]
        assert seal(got)["content_sha256"] == sent["content_sha256"]


@pytest.mark.parametrize("wrong", [{"prompt_tokens": 1 << 40}, {"verdict": None}, {"content": "\ud800"}])
def test_a_row_that_fits_no_shard_is_refused_before_it_is_written(tmp_path: Path, wrong: Row) -> None:
    store = Store(tmp_path, "kimi")
    with pytest.raises(ShardError):
        store.commit([Group((row("a") | wrong,))])
    store.commit([Group((row("b"),))])
    store.close()
    assert Store(tmp_path, "kimi").done == {"b"}


@given(
    payloads=st.lists(st.binary(max_size=60), max_size=6),
    cut=st.integers(min_value=0, max_value=500),
    junk=st.binary(max_size=30),
)
def test_a_tail_torn_at_any_byte_is_cut_off(payloads: list[bytes], cut: int, junk: bytes) -> None:
    frames = [frame(payload) for payload in payloads]
    whole = b"".join(frames)
    cut = min(cut, len(whole))
    kept, end = 0, 0
    while kept < len(frames) and end + len(frames[kept]) <= cut:
        end += len(frames[kept])
        kept += 1
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "0.log")
        # A crash leaves the beginning of the last frame, or zeros and rubbish where its bytes should be.
        path.write_bytes(whole[:cut] + (junk if cut == end and not junk.startswith(b"SGJ1") else b""))
        segment = Segment(path)
        assert list(segment.payloads) == payloads[:kept] and segment.size == end
        segment.append(b"next")
        segment.close()
        assert list(read_segment(path).payloads) == [*payloads[:kept], b"next"]


def test_damage_in_the_middle_is_told_and_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    data = bytearray(frame(b"one") + frame(b"two") + frame(b"three"))
    data[len(frame(b"one")) + 13] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged) as caught:
        Segment(path)
    assert str(len(frame(b"one"))) in caught.value.where
    assert path.read_bytes() == data


class Crashes(RuleBasedStateMachine):
    """A store that is committed to, rolled, and killed in the middle of a frame, against a plain model."""

    @initialize(rows=st.integers(min_value=1, max_value=5))
    def begin(self, rows: int) -> None:
        self._home = tempfile.TemporaryDirectory()
        self.folder = Path(self._home.name)
        self.limits = Limits(rows=rows)
        self.rows: set[str] = set()
        self.failed: dict[str, Failure] = {}
        self.count = 0
        self.store = Store(self.folder, "kimi", self.limits)

    def teardown(self) -> None:
        if hasattr(self, "_home"):
            self.store.close()
            self._home.cleanup()

    @rule(turns=st.integers(min_value=1, max_value=3), fails=st.booleans(), more=st.booleans())
    def commit(self, turns: int, fails: bool, more: bool) -> None:
        groups = []
        for _ in range(1 + more):
            self.count += 1
            item = f"item{self.count}"
            if fails:
                lost = tuple(failure(item, turn) for turn in range(turns))
                self.failed.update((one.sample_id, one) for one in lost)
                groups.append(Group((), lost))
            else:
                groups.append(Group(tuple(row(item, turn) for turn in range(turns))))
                self.rows.update(sample_id(item, turn) for turn in range(turns))
        self.store.commit(groups)

    @rule()
    def retry_a_failure(self) -> None:
        if self.failed:
            item = next(iter(self.failed.values())).item
            self.store.forget_failures()
            turns = [one.turn_index for one in self.failed.values() if one.item == item]
            self.store.commit([Group(tuple(row(item, turn) for turn in turns))])
            for turn in turns:
                del self.failed[sample_id(item, turn)]
                self.rows.add(sample_id(item, turn))

    @rule()
    def roll(self) -> None:
        self.store.roll()

    @rule(torn=st.binary(min_size=0, max_size=40), cut=st.integers(min_value=1, max_value=5000))
    def crash(self, torn: bytes, cut: int) -> None:
        self.store.close()
        last = max((self.folder / "journal").glob("[0-9]*.log"))
        unfinished = frame(encode([Group((row("never"),))])[0])
        with last.open("ab") as file:
            file.write(unfinished[: min(cut, len(unfinished) - 1)])
        (self.folder / "shards" / ".part-00000.parquet.1.tmp").write_bytes(torn)
        self.store = Store(self.folder, "kimi", self.limits)

    @rule(step=st.sampled_from(["shard", "manifest"]))
    def crash_while_rolling(self, step: str) -> None:
        """Stop between two steps of a roll, by bringing back what the later ones removed or wrote."""
        journal = self.folder / "journal"
        last = max(journal.glob("[0-9]*.log"))
        kept = last.read_bytes()
        manifest = self.folder / "shards.json"
        before = manifest.read_bytes() if manifest.exists() else None
        self.store.roll()
        self.store.close()
        if not last.exists():
            last.write_bytes(kept)
            for newer in journal.glob("[0-9]*.log"):
                if newer != last:
                    newer.unlink()
            if step == "shard" and before is not None:
                manifest.write_bytes(before)
            elif step == "shard":
                manifest.unlink()
        self.store = Store(self.folder, "kimi", self.limits)

    @invariant()
    def nothing_is_lost_and_nothing_twice(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.store.captured == len(self.rows)
        assert {one.sample_id: one for one in self.store.failed} == self.failed
        visible = stored(self.folder)
        assert len(visible) == len(set(visible)) and set(visible) <= self.rows

    @rule()
    def look(self) -> None:
        self.store.close()
        self.store = Store(self.folder, "kimi", self.limits)
        items = {sample.rpartition("-")[0] for sample in (*self.rows, *self.failed)}
        assert self.store.done == items
        self.store.roll()
        assert sorted(stored(self.folder)) == sorted(self.rows)


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_failures_are_a_file_to_read(tmp_path: Path) -> None:
    store = Store(tmp_path, "kimi")
    store.commit([Group((), (failure("a"), failure("b", 2, "status-400")))])
    store.write_failed([replace(failure("line"), reason="no-prompt")])
    lines = [json.loads(line) for line in (tmp_path / "failed.jsonl").read_text("utf-8").splitlines()]
    assert [(one["item"], one["reason"]) for one in lines] == [
        ("line", "no-prompt"),
        ("a", "timeout"),
        ("b", "status-400"),
    ]
    store.close()


def test_a_shard_that_was_changed_or_is_gone_stops_the_run(tmp_path: Path) -> None:
    store = Store(tmp_path, "kimi")
    store.commit([Group((row("a"),))])
    store.roll()
    store.close()
    shard = tmp_path / "shards" / "part-00000.parquet"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(ShardgateError, match="gone or was changed"):
        Store(tmp_path, "kimi")
    shard.unlink()
    with pytest.raises(ShardgateError, match="gone or was changed"):
        Store(tmp_path, "kimi")


def test_a_full_disk_leaves_what_was_committed() -> None:
    """/dev/full takes no byte: the segment's own words about a full disk are the system's."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from harness.recording.journal import Segment, read_segment\n"
        "path = Path(sys.argv[1]); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "segment = Segment(path); segment.append(b'x' * 100)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (150, 150))\n"
        "try: segment.append(b'y' * 100)\n"
        "except OSError: pass\n"
        "else: raise SystemExit('a frame was written that does not fit')\n"
        "segment.append(b'z' * 10); assert read_segment(path).payloads == (b'x' * 100, b'z' * 10)\n"
    )
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run(
            [sys.executable, "-c", code, os.path.join(name, "0.log")],  # noqa: PTH118
            capture_output=True,
            text=True,
            timeout=60,
            cwd=Path(__file__).resolve().parents[2],
        )
    assert done.returncode == 0, done.stderr


def test_a_folder_is_one_runs_at_a_time(tmp_path: Path) -> None:
    with FolderLock(tmp_path) as first:
        first.check()
        with pytest.raises(FolderHeld, match="another run works in this folder"), FolderLock(tmp_path):
            pass
    with FolderLock(tmp_path) as second:
        second.check()
    assert not list(tmp_path.glob("lock.*"))


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from contracts.held import FolderLock\n"
        "FolderLock(Path(sys.argv[1])).__enter__(); os.kill(os.getpid(), 9)\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60, cwd=root, check=False)
    assert (tmp_path / "lock.0").exists()
    with FolderLock(tmp_path) as lock:
        lock.check()
        assert not (tmp_path / "lock.0").exists()


def test_a_holder_elsewhere_lives_while_its_count_moves(tmp_path: Path) -> None:
    with FolderLock(tmp_path, beat=0.05, host="elsewhere") as far:
        with pytest.raises(FolderHeld), FolderLock(tmp_path, silence=2.0):
            pass
        far.check()


def test_a_holder_elsewhere_that_stands_still_is_dead_and_finds_out(tmp_path: Path) -> None:
    slow = FolderLock(tmp_path, beat=3600, host="elsewhere")
    with slow, FolderLock(tmp_path, silence=0.5) as next_one:
        next_one.check()
        with pytest.raises(LockLost):
            slow.check()
    assert not list(tmp_path.glob("lock.*"))
