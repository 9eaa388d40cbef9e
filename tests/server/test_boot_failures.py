"""Boots that go wrong, each provoked for real: the error names it, and nothing of the server is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.server import (
    BootFailed,
    BootProgress,
    BootTimeout,
    NotReady,
    Phase,
    ServerError,
    SGLangServer,
    Unreachable,
    attach,
)
from harness.server.checkpoint import safetensors_header
from harness.server.doctor import examine
from harness.server.guard import group_members
from harness.server.vitals import processes

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def model() -> Path:
    from harness.models import tiny_model

    return tiny_model()


def failed_boot(server: SGLangServer, kind: type[ServerError]) -> ServerError:
    """Start a server that can't come up; its error, after a look that nothing of it is left."""
    with pytest.raises(kind) as told:
        server.start()
    assert group_members(server.pid) == []
    assert str(server.log_path) in told.value.where
    return told.value


def test_an_unknown_parser(model: Path, tmp_path: Path) -> None:
    server = SGLangServer(
        model, flags=["--reasoning-parser", "nosuch"], device="cpu", log_path=tmp_path / "server.log"
    )
    error = failed_boot(server, BootFailed)
    assert "exit code 2" in error.what
    assert "--reasoning-parser" in error.why and "nosuch" in error.why
    assert "kimi_k2" in error.why, "the known names are told"
    assert len(str(error)) < 3000, "no usage text"


def test_a_damaged_checkpoint(model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    weights = next(broken.glob("*.safetensors"))
    with weights.open("rb+") as handle:
        handle.truncate(weights.stat().st_size // 2)
    error = failed_boot(SGLangServer(broken, device="cpu", log_path=tmp_path / "server.log"), BootFailed)
    assert error.sign == "checkpoint-damaged"
    assert any("SafetensorError" in line for line in error.log_lines)


def _split_weights(folder: Path) -> list[Path]:
    """Turn the model's one safetensors file into two and an index, as large models come."""
    (whole,) = folder.glob("*.safetensors")
    length, header = safetensors_header(whole)
    data = whole.read_bytes()[8 + length :]
    header.pop("__metadata__", None)
    names = sorted(header)
    shards, weight_map = [], {}
    for number, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), 1):
        shard = folder / f"model-{number:05}-of-00002.safetensors"
        entries, body = {}, b""
        for name in part:
            begin, end = header[name]["data_offsets"]
            entries[name] = {**header[name], "data_offsets": [len(body), len(body) + end - begin]}
            body += data[begin:end]
            weight_map[name] = shard.name
        text = json.dumps(entries).encode()
        shard.write_bytes(struct.pack("<Q", len(text)) + text + body)
        shards.append(shard)
    whole.unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return shards


def pointer(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4661195696\n")


def unknown_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["NoSuchForCausalLM"]}))


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()


def missing_shard_file(folder: Path) -> None:
    _split_weights(folder)[1].unlink()


@pytest.mark.parametrize(
    ("spoil", "sign", "check"),
    [
        (missing_shard_file, "checkpoint-incomplete", "checkpoint"),
        (pointer, "checkpoint-pointer", "checkpoint"),
        (unknown_architecture, "unknown-architecture", "architecture"),
        (no_tokenizer, "tokenizer", "tokenizer"),
    ],
)
def test_a_model_that_is_not_whole(
    spoil: Callable[[Path], None], sign: str, check: str, model: Path, tmp_path: Path
) -> None:
    """The log names it after some 10 s of boot, and the doctor before any."""
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    spoil(broken)
    assert check in {one.name for one in examine(str(broken), quick=True) if one.outcome == "error"}
    error = failed_boot(SGLangServer(broken, device="cpu", log_path=tmp_path / "server.log"), BootFailed)
    assert error.sign == sign
    assert error.remedy


def test_a_taken_port_of_the_ranks(model: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        server = SGLangServer(
            model, flags=["--nccl-port", port], device="cpu", log_path=tmp_path / "server.log"
        )
        error = failed_boot(server, BootFailed)
    assert error.sign == "rank-port-taken" and port in error.why


def test_a_scheduler_killed_while_booting(model: Path, tmp_path: Path) -> None:
    """As the kernel does it when memory runs out: without a word of its own."""
    server = SGLangServer(model, device="cpu", log_path=tmp_path / "server.log")

    def kill(now: BootProgress) -> None:
        found = [one.pid for one in processes(server.pid) if "scheduler" in one.name]
        if now.phase is Phase.RANKS and found:
            os.kill(found[0], signal.SIGKILL)

    server._on_progress = kill
    error = failed_boot(server, BootFailed)
    assert error.sign == "rank-killed"
    assert "SIGKILL" in error.why and "memory" in error.remedy


def test_too_little_time(model: Path, tmp_path: Path) -> None:
    server = SGLangServer(model, device="cpu", timeout=1.0, log_path=tmp_path / "server.log")
    error = failed_boot(server, BootTimeout)
    assert "after 1 s" in error.what
    assert Phase.STARTING in error.why


def test_killed_while_booting(model: Path, tmp_path: Path) -> None:
    server = SGLangServer(model, device="cpu", log_path=tmp_path / "server.log")

    def kill(_: BootProgress) -> None:
        os.kill(server.pid, signal.SIGKILL)

    server._on_progress = kill
    error = failed_boot(server, BootFailed)
    assert "SIGKILL" in error.what


def test_a_server_that_waits_for_weights_is_not_ready(model: Path, tmp_path: Path) -> None:
    """`/model_info` says 200 here, the weights are still to come: attaching must not be fooled.

    The error is raised inside the boot's progress callback, so it also shows that a boot broken off by its
    caller leaves nothing behind.
    """
    server = SGLangServer(
        model,
        flags=["--checkpoint-engine-wait-weights-before-ready"],
        device="cpu",
        log_path=tmp_path / "server.log",
    )

    def look(now: BootProgress) -> None:
        if now.phase is Phase.WARMUP:
            attach(server.base_url)

    server._on_progress = look
    with pytest.raises(NotReady, match="still warming up"):
        server.start()
    assert group_members(server.pid) == []
    with pytest.raises(Unreachable):
        attach(server.base_url)


OWNER = """
import sys
from harness.server import SGLangServer
server = SGLangServer(sys.argv[1], device="cpu", log_path=sys.argv[2], grace=2.0,
                      on_progress=lambda now: print(server.pid, flush=True))
with server:
    pass
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_server_goes_with_its_owner(number: signal.Signals, model: Path, tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(model), str(tmp_path / "server.log")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # Where a suite runs in the background SIGINT is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert owner.stdout is not None
    server = int(owner.stdout.readline())
    time.sleep(0.5)
    assert group_members(server), "the server runs"
    owner.send_signal(number)
    assert owner.wait(timeout=60) != 0
    until = time.monotonic() + 60
    while group_members(server) and time.monotonic() < until:
        time.sleep(0.1)
    assert group_members(server) == []
