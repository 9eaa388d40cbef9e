"""Sets that were tampered with, killed half way, or written by two at once: never certified by accident."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contracts import CertificateError, CertificateMissing, audit, open_certified, verify
from contracts.accounting import row_set
from contracts.certify import CertifyError
from contracts.deriving import Derivation, derive
from contracts.held import FolderHeld, folder_held
from fixtures.corruptions.rows import codec
from tests.bodies.certified import EACH, certified_set, rows_in, write_grouped

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def certified(tmp_path: Path) -> Path:
    return certified_set(tmp_path / "set", 3, bad=True)


def kinds(folder: Path) -> set[str]:
    return {problem["kind"] for problem in verify(folder).problems}


def swap(folder: Path) -> None:
    one, other = folder / "shards" / "0.parquet", folder / "shards" / "1.parquet"
    one.rename(folder / "x")
    other.rename(one)
    (folder / "x").rename(other)


TAMPERINGS = {
    "swapped": (swap, {"ShardAltered"}),
    "renamed": (
        lambda d: (d / "shards" / "0.parquet").rename(d / "shards" / "9.parquet"),
        {"ShardMissing", "ShardUncertified"},
    ),
    "emptied": (lambda d: (d / "shards" / "0.parquet").write_bytes(b""), {"ShardAltered"}),
    "added": (
        lambda d: shutil.copy(d / "shards" / "0.parquet", d / "certified" / "z.PARQUET"),
        {"ShardUncertified"},
    ),
    "linked in": (
        lambda d: (d / "shards" / "z.parquet").symlink_to(d / "quarantine" / "2.parquet"),
        {"ShardUncertified"},
    ),
    "linked twice": (
        lambda d: (d / "shards" / "z.parquet").symlink_to("0.parquet"),
        {"ShardUncertified"},
    ),
    "linked away": (
        lambda d: (
            (d / "shards" / "0.parquet").unlink(),
            (d / "shards" / "0.parquet").symlink_to("1.parquet"),
        ),
        {"ShardAltered"},
    ),
    "dangling": (
        lambda d: ((d / "shards" / "0.parquet").unlink(), (d / "shards" / "0.parquet").symlink_to("nowhere")),
        {"ShardMissing"},
    ),
    "folder": (
        lambda d: ((d / "shards" / "0.parquet").unlink(), (d / "shards" / "0.parquet").mkdir()),
        {"ShardMissing"},
    ),
    "added hidden": (
        lambda d: shutil.copy(d / "shards" / "0.parquet", d / "certified" / ".z.parquet"),
        {"ShardUncertified"},
    ),
    "added deeper": (
        lambda d: shutil.copytree(d / "shards", d / "certified" / "x" / "y"),
        {"ShardUncertified"},
    ),
    "folder linked in": (
        lambda d: (
            shutil.copytree(d / "shards", d.parent / "others"),
            (d / "certified" / "lnk").symlink_to(d.parent / "others"),
        ),
        {"ShardUncertified"},
    ),
    "own folder linked in": (
        lambda d: (d / "certified" / "lnk").symlink_to(d / "shards"),
        {"ShardUncertified"},
    ),
    "quarantine added": (
        lambda d: shutil.copy(d / "shards" / "0.parquet", d / "quarantine" / "z.parquet"),
        {"ShardUncertified"},
    ),
    "pipe": (
        lambda d: ((d / "shards" / "0.parquet").unlink(), os.mkfifo(d / "shards" / "0.parquet")),
        {"ShardMissing"},
    ),
    "no quarantine": (lambda d: shutil.rmtree(d / "quarantine"), {"QuarantineMissing"}),
    "quarantine edited": (
        lambda d: (d / "quarantine" / "2.findings.jsonl").write_text("{}\n"),
        {"QuarantineAltered"},
    ),
}


@pytest.mark.parametrize("name", sorted(TAMPERINGS))
def test_each_tampering_has_its_word(certified: Path, name: str) -> None:
    tamper, expected = TAMPERINGS[name]
    assert kinds(certified) == set()
    tamper(certified)
    assert kinds(certified) == expected
    assert all(problem["remedy"] for problem in verify(certified).problems)
    if "quarantine" not in name:
        with pytest.raises(CertificateError):
            open_certified(certified)


def test_what_is_no_shard_of_the_set_is_let_be(certified: Path, tmp_path: Path) -> None:
    """Links in a circle, files half written, a set of its own beside; and folders kept in a store."""
    (certified / "certified" / "again").symlink_to(certified / "certified")
    (certified / "shards" / "back").symlink_to(".")
    (certified / "shards" / ".0.parquet.77.tmp").write_bytes(b"half")
    shutil.copytree(certified / "shards", certified / "part" / "shards", symlinks=True)
    assert verify(certified).ok
    (tmp_path / "store").mkdir()
    shutil.copy(certified / "shards" / "0.parquet", tmp_path / "store")
    (tmp_path / "new" / "shards").mkdir(parents=True)
    (tmp_path / "new" / "shards" / "sub").symlink_to(tmp_path / "store")
    audit([tmp_path / "new" / "shards" / "sub" / "0.parquet"], codec=codec(), certify=tmp_path / "new")
    assert verify(tmp_path / "new").ok


def test_an_earlier_runs_quarantine_is_named_and_stays(certified: Path) -> None:
    (certified / "certificate.json").unlink()
    shutil.copy(certified / "shards" / "0.parquet", certified / "quarantine" / "earlier.parquet")
    audit([certified], codec=codec(), certify=certified)
    assert kinds(certified) == set()
    assert (certified / "quarantine" / "earlier.parquet").exists()
    shutil.copy(certified / "shards" / "0.parquet", certified / "quarantine" / "later.parquet")
    assert kinds(certified) == {"ShardUncertified"}


def test_a_shard_deeper_in_the_set_is_not_certified_over(tmp_path: Path) -> None:
    write_grouped(tmp_path / "shards" / "0.parquet", rows_in(0), 2)
    write_grouped(tmp_path / "shards" / "deeper" / "1.parquet", rows_in(1), 2)
    with pytest.raises(CertifyError, match="not audited"):
        audit([tmp_path], codec=codec(), certify=tmp_path)


def test_a_reader_left_half_way_does_not_keep_the_program_from_ending(certified: Path) -> None:
    code = "import sys; from contracts import open_certified\n"
    code += "batches = open_certified(sys.argv[1], check=False).to_batches(batch_size=1)\n"
    code += "sys.exit('left')"
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code, str(certified)], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr.strip()) == (1, "left")


def test_a_copy_of_the_certified_files_alone_can_be_told(certified: Path) -> None:
    shutil.rmtree(certified / "quarantine")
    assert not verify(certified).ok and verify(certified, quarantine=False).ok
    assert open_certified(certified).count_rows() == 3 * EACH - 1


def test_a_shard_that_is_a_link_to_the_same_bytes_is_that_shard(certified: Path, tmp_path: Path) -> None:
    """Data sets are often laid out as links into a store; what counts is the bytes."""
    (tmp_path / "store").mkdir()
    shard = certified / "shards" / "0.parquet"
    shard.rename(tmp_path / "store" / "0.parquet")
    shard.symlink_to(tmp_path / "store" / "0.parquet")
    assert verify(certified).ok and open_certified(certified).count_rows() == 3 * EACH - 1


def test_two_can_not_write_into_one_folder(tmp_path: Path) -> None:
    write_grouped(tmp_path / "shards" / "0.parquet", rows_in(0), 2)
    with folder_held(tmp_path), pytest.raises(FolderHeld, match="another process"):
        audit([tmp_path], codec=codec(), certify=tmp_path)
    assert not (tmp_path / "certificate.json").exists()
    audit([tmp_path], codec=codec(), certify=tmp_path)
    (tmp_path / "out").mkdir()
    with folder_held(tmp_path / "out"), pytest.raises(FolderHeld):
        derive([tmp_path], tmp_path / "out", Derivation())
    derive([tmp_path], tmp_path / "out", Derivation())


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = "import sys, time; from contracts.held import folder_held; from pathlib import Path\n"
    code += "with folder_held(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)\n"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(FolderHeld), folder_held(tmp_path):
            pass
        process.kill()
    with folder_held(tmp_path):
        assert list(tmp_path.iterdir()) == [], "it leaves no file"


def test_a_file_system_without_locks_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    with folder_held(tmp_path):
        pass


AT_RENAME = """
import os, signal, sys
from pathlib import Path
left = [int(sys.argv[1])]
def replace(self, target, real=Path.replace):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, target)
Path.replace = replace
from contracts.deriving import Derivation, derive
what = Derivation(split={"train": 0.5, "eval": 0.5}, shuffle=True, rows_per_shard=8)
derive([sys.argv[2]], sys.argv[3], what)
"""


def test_deriving_killed_at_any_file_leaves_no_half_set(certified: Path, tmp_path: Path) -> None:
    out, code = tmp_path / "out", 0
    for renames in range(20):
        code = subprocess.run(
            [sys.executable, "-c", AT_RENAME, str(renames), str(certified), str(out)], cwd=ROOT, check=False
        ).returncode
        for part in ("train", "eval"):
            if (out / part / "certificate.json").exists():
                assert verify(out / part, rows=True).ok, "a certificate that is there holds"
            elif (out / part).exists():
                with pytest.raises(CertificateMissing):
                    open_certified(out / part)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert code == 0 and renames >= 5, "it was killed at each of its files, and the next run healed it"
    parts = [open_certified(out / part).to_table() for part in ("train", "eval")]
    whole = row_set(open_certified(certified).to_table())
    assert row_set(parts[0]) + row_set(parts[1]) == whole
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]


CERTIFY = """
import sys
from contracts import audit
from fixtures.corruptions.rows import codec
tokenizer = codec()
print("go", flush=True)
audit([sys.argv[1]], codec=tokenizer, certify=sys.argv[1])
"""


def test_certifying_killed_at_any_time_leaves_no_half_set(tmp_path: Path) -> None:
    """kill -9 after longer and longer waits, until a run ends by itself."""
    for number in range(3):
        rows = rows_in(number)
        rows[1] = {**rows[1], "completion_tokens": 1}
        write_grouped(tmp_path / "shards" / f"{number}.parquet", rows, 2)
    originals = {path: path.read_bytes() for path in (tmp_path / "shards").iterdir()}
    wait, ended = 0.05, False
    while not ended:
        with subprocess.Popen(
            [sys.executable, "-c", CERTIFY, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as process:
            assert process.stdout is not None and process.stdout.readline() == "go\n"
            deadline = time.monotonic() + wait
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            ended = process.poll() == 0
            process.kill()
        if (tmp_path / "certificate.json").exists():
            assert verify(tmp_path, rows=True, sources=True).ok
        wait = wait * 2 if wait < 1 else wait + 1
    assert verify(tmp_path, rows=True, sources=True).ok
    assert open_certified(tmp_path).count_rows() == 3 * (EACH - 1)
    assert {path: path.read_bytes() for path in (tmp_path / "shards").iterdir()} == originals
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]
