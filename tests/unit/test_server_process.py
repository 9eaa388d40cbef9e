"""Process groups, watchdog, ports and GPUs: what a boot rests on, tried with real processes."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.server import CannotBoot, SGLangServer, guard, vitals
from harness.server.cpu import cpu_environment, cpu_flags
from harness.server.hardware import (
    free_port,
    gpu_count,
    gpu_users,
    port_is_free,
    processors,
    visible_gpus,
)
from harness.server.process import GuardedProcess
from harness.server.refusals import refuse_too_few_gpus

# A process that takes no SIGINT, with a child that takes none either.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
if len(sys.argv) < 2:
    subprocess.Popen([sys.executable, __file__, "child"])
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def stubborn(tmp_path: Path) -> Path:
    script = tmp_path / "stubborn.py"
    script.write_text(STUBBORN)
    return script


def started(script: Path, marker: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, guard.MARKER: marker},
    )
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == ["up\n", "up\n"]
    return process


def soon(wanted: Callable[[], bool]) -> bool:
    until = time.monotonic() + 30
    while not wanted() and time.monotonic() < until:
        time.sleep(0.05)
    return wanted()


def test_a_stubborn_group_is_killed_after_the_grace(stubborn: Path) -> None:
    process = started(stubborn, "stubborn-1")
    assert len(guard.group_members(process.pid)) == 2
    guard.end_group(process.pid, "stubborn-1", grace=0.3)
    assert guard.group_members(process.pid) == []
    assert process.wait() == -signal.SIGKILL
    guard.end_group(process.pid, "stubborn-1", grace=0.3)


def test_a_stopped_group_is_ended(stubborn: Path) -> None:
    process = started(stubborn, "stubborn-2")
    os.killpg(process.pid, signal.SIGSTOP)
    guard.end_group(process.pid, "stubborn-2", grace=0.3)
    assert guard.group_members(process.pid) == []
    process.wait()


def test_a_process_that_left_the_group_is_found_by_its_marker(tmp_path: Path) -> None:
    script = tmp_path / "leaver.py"
    script.write_text("import os, time\nos.setsid()\nprint('up', flush=True)\ntime.sleep(600)\n")
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, guard.MARKER: "leaver"},
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    assert guard.marked("leaver") == [process.pid]
    # The group is some other, long gone one.
    guard.end_group(2**22 + 1, "leaver", grace=0.1)
    assert process.wait() == -signal.SIGKILL


OWNER = textwrap.dedent(
    """
    import os, subprocess, sys, time
    from harness.server import guard
    script, marker = sys.argv[1:]
    watcher = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), marker, "0.3"]
    watch = subprocess.Popen(watcher, stdin=subprocess.PIPE, start_new_session=True)
    server = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True,
                              start_new_session=True, env={**os.environ, guard.MARKER: marker})
    watch.stdin.write(f"{server.pid}\\n".encode()); watch.stdin.flush()
    assert server.stdout.readline() and server.stdout.readline()
    # A forked child keeps the watchdog's pipe open beyond the owner's death.
    if os.fork() == 0:
        time.sleep(600)
    print(server.pid, watch.pid, flush=True)
    time.sleep(600)
    """
)


def test_the_watchdog_ends_the_group_of_a_killed_owner(stubborn: Path, tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    owner = subprocess.Popen(
        [sys.executable, str(script), str(stubborn), "owned"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert owner.stdout is not None
    server, watch = map(int, owner.stdout.readline().split())
    assert len(guard.group_members(server)) == 2
    owner.kill()
    owner.wait()
    assert soon(lambda: guard.group_members(server) == [])
    assert soon(lambda: guard.group_members(watch) == []), "the watchdog ends with its work"
    os.killpg(owner.pid, signal.SIGKILL)


def test_a_killed_watchdog_keeps_nothing_from_ending(stubborn: Path, tmp_path: Path) -> None:
    process = GuardedProcess(
        [sys.executable, str(stubborn)], tmp_path / "log", env=dict(os.environ), grace=0.3
    )
    assert process.watchdog is not None and process.watchdog.pid is not None
    os.kill(process.watchdog.pid, signal.SIGKILL)
    assert soon(lambda: (tmp_path / "log").read_bytes() == b"up\nup\n")
    process.end()
    assert guard.group_members(process.pid) == [] and process.exit_code() == -signal.SIGKILL
    process.end()


def test_only_the_owner_reads_a_log_with_keys(tmp_path: Path) -> None:
    old = tmp_path / "old.log"
    old.write_text("before")
    old.chmod(0o644)
    for path in (old, tmp_path / "new.log"):
        GuardedProcess(["true"], path, env=dict(os.environ)).end()
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.read_bytes() == b""
    before = Path(os.devnull).stat().st_mode
    GuardedProcess(["true"], Path(os.devnull), env=dict(os.environ)).end()
    assert Path(os.devnull).stat().st_mode == before


def test_a_taken_port_is_seen_and_a_free_one_is_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert not port_is_free("127.0.0.1", taken.getsockname()[1])
    port = free_port("127.0.0.1")
    assert 20000 <= port < 32000
    assert port_is_free("127.0.0.1", port)


def test_an_address_of_another_machine_has_no_port() -> None:
    with pytest.raises(CannotBoot, match=r"no free port on 192\.0\.2\.1"):
        free_port("192.0.2.1")


# As nvidia-smi answers the queries; the third GPU is held by this very process.
SMI = """#!/bin/sh
case "$*" in
  *compute-apps*) echo "GPU-33, $HOLDER, /usr/bin/python3, 70000" ;;
  *query-gpu*)
    for i in 0 1 2 3; do
      echo "$i, GPU-$i$i, NVIDIA H200, 143771, $([ $i = 3 ] && echo 73771 || echo 143000), 9.0, 580.95"
    done ;;
  *) echo "| NVIDIA-SMI 580.95   Driver Version: 580.95   CUDA Version: 13.0 |" ;;
esac
"""


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `nvidia-smi` that lists four GPUs."""
    command = tmp_path / "bin" / "nvidia-smi"
    command.parent.mkdir()
    command.write_text(SMI)
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOLDER", str(os.getpid()))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 4),
        ("", 0),
        ("0,2", 2),
        ("1", 1),
        ("0,9,1", 1),
        ("GPU-22", 1),
        ("GPU-99", 0),
        ("MIG-1,MIG-2", 2),
        ("-1", 0),
    ],
)
def test_gpus_are_those_that_cuda_would_see(
    visible: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert len(visible_gpus()) == gpu_count() == count


@pytest.mark.usefixtures("four_gpus")
def test_who_holds_a_gpu_is_told() -> None:
    (user,) = gpu_users()
    assert (user.gpu, user.pid, user.name) == (3, os.getpid(), "python3")
    assert user.user == pwd.getpwuid(os.getuid()).pw_name
    assert "68.4 GiB" in str(user)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        (("--tp-size", "8"), 8),
        (("--tp", "2", "--pp-size", "4"), 8),
        (("--tp=4", "--dp=2"), 8),
        (("--tp-size", "16", "--nnodes", "2"), 8),
        (("--tp-size", "2", "--base-gpu-id", "3"), 5),
    ],
)
def test_too_few_gpus_are_refused_before_anything_starts(
    flags: tuple[str, ...], wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = SGLangServer("org/model", flags=flags, device="gpu")
    with pytest.raises(CannotBoot, match=f"{wanted} GPUs wanted, 4 visible") as told:
        server.start()
    assert f"GPU 3: pid {os.getpid()}" in told.value.why
    assert not server.alive()


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--tp-size", "4"),
        ("--tp", "4", "--dp", "4", "--enable-dp-attention"),
        ("--tp-size", "8", "--nnodes", "2"),
        ("--tp-size", "8", "--device", "npu"),
    ],
)
def test_enough_gpus_and_other_accelerators_are_not_refused(flags: tuple[str, ...]) -> None:
    refuse_too_few_gpus(flags, os.environ)


def test_a_process_is_told_by_name_and_state(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        os.kill(child.pid, signal.SIGSTOP)
        assert soon(lambda: [one.state for one in vitals.processes(child.pid)] == ["T"])
        members = vitals.processes(child.pid)
        assert f"(pid {child.pid}) stopped" in vitals.told(members)
        assert f"kill -CONT {child.pid}" in vitals.what_to_do(members)
    finally:
        child.kill()
        child.wait()


def test_reading_is_a_sign_of_life_and_computing_is_none(tmp_path: Path) -> None:
    big = tmp_path / "weights"
    big.write_bytes(b"x" * (2 * vitals.LIFE))
    code = "import sys; sys.stdin.readline(); open(sys.argv[1], 'rb').read(); print('read', flush=True)\n"
    code += "while True: pass"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(big)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        reading = vitals.Reading(child.pid)
        before = reading.total()
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.stdout.readline() == "read\n"
        read = reading.total()
        assert read - before >= vitals.LIFE
        time.sleep(0.3)
        assert reading.total() - read < vitals.LIFE
    finally:
        child.kill()
        child.wait()


def test_no_driver_means_no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == () and gpu_count() == 0 and gpu_users() == ()


def test_cpu_flags_leave_what_was_given() -> None:
    assert cpu_flags(()) == ("--device", "cpu", "--max-total-tokens", "8192", "--sleep-on-idle")
    assert cpu_flags(("--max-total-tokens=64", "--device", "cpu", "--sleep-on-idle")) == ()


@pytest.mark.parametrize("ranks", ["x", "0", "-1", "²", "9" * 5000, "100000"])
def test_a_number_of_ranks_that_is_none_is_told_with_its_flag(ranks: str) -> None:
    with pytest.raises(CannotBoot, match="--tp-size"):
        cpu_environment(["--tp-size", ranks], {})


def test_every_rank_gets_processors() -> None:
    for ranks in (2, 3, 64):
        shares = cpu_environment(("--tp", str(ranks)), {})["SGLANG_CPU_OMP_THREADS_BIND"].split("|")
        assert len(shares) == ranks
        assert {int(cpu) for share in shares for cpu in share.split(",")} == set(processors())
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in cpu_environment((), {})
    assert cpu_environment((), {"OMP_NUM_THREADS": "3"}) == {"SGLANG_PLATFORM": "shardgate_cpu"}


@pytest.mark.parametrize("path", ["/no/such/model", "./nothing", "~/nothing", "", "{empty}"])
def test_a_wrong_path_is_refused_before_anything_starts(path: str, tmp_path: Path) -> None:
    server = SGLangServer(path.format(empty=tmp_path), device="cpu")
    with pytest.raises(CannotBoot, match="the model path is wrong"):
        server.start()
    assert not server.alive()


@pytest.mark.parametrize("flag", ["--port", "--host", "--model-path", "--model"])
def test_what_the_harness_sets_itself_is_no_flag(flag: str) -> None:
    with pytest.raises(CannotBoot, match="among the flags"):
        SGLangServer("org/model", flags=[flag, "1"], device="cpu").start()


def test_the_environment_is_made_for_the_boot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("NO_PROXY", "internal")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    local = SGLangServer(tmp_path, device="cpu", env={"EXTRA": "1"}).environment()
    assert "PYTHONDONTWRITEBYTECODE" not in local
    assert (local["EXTRA"], local["HF_HUB_OFFLINE"], local["SGLANG_PLATFORM"]) == ("1", "1", "shardgate_cpu")
    assert local["NO_PROXY"] == "internal,127.0.0.1,localhost"
    remote = SGLangServer("org/model", device="gpu").environment()
    assert "HF_HUB_OFFLINE" not in remote
    assert "SGLANG_PLATFORM" not in remote
    assert "OMP_NUM_THREADS" not in remote or "OMP_NUM_THREADS" in os.environ
