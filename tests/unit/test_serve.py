"""`shardgate serve` without a boot: what it prints, what it refuses; commands that run against a server."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.errors import ShardgateError
from harness.commands import child

ROOT = Path(__file__).resolve().parents[2]
KEYED = """
[keyed]
model = "org/model"
gpus = 1
flags = ["--api-key", "sesame"]
env = { NCCL_DEBUG = "WARN", HF_TOKEN = "sesame" }
"""


def serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=os.environ | environment,
    )


def test_a_dry_run_prints_the_command_and_boots_nothing(tmp_path: Path) -> None:
    done = serve("kimi-k2.5", "--dry-run", "--port", "30000", "--flags", "--context-length 4096")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert "--model-path moonshotai/Kimi-K2.5 --host 127.0.0.1 --port 30000 --tp-size 8" in line
    assert line.endswith("--context-length 4096")
    file = tmp_path / "mine.toml"
    file.write_text(KEYED, encoding="utf-8")
    kept = serve("keyed", "--file", str(file), "--dry-run").stdout
    assert "NCCL_DEBUG=WARN" in kept and "sesame" not in kept


def test_a_dry_run_of_a_group_shows_each_member_and_the_router() -> None:
    done = serve("qwen3-8b-pd", "--dry-run")
    first, second, router = done.stdout.splitlines()
    assert "CUDA_VISIBLE_DEVICES=0" in first and "--disaggregation-mode prefill" in first
    assert "CUDA_VISIBLE_DEVICES=1" in second and "--disaggregation-mode decode" in second
    assert "sglang_router" in router and "--pd-disaggregation" in router


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("kimi-k2.5", "--", "--reasoning-parser", "x"), "flags for SGLang as --flags"),
        (("kimi-k2.5", "--", "no-such-command"), "no such program is on PATH"),
        (("kimi-k2.5", "--json", "--", "true"), "--json and a command"),
        (("kimi-k2.5", "--flags", "--a 'b"), "not a shell-like list of words"),
        (("http://127.0.0.1:9", "--flags", "--dtype half"), "this one runs already"),
        (("kimi-k2.5-router", "--host", "0.0.0.0", "--dry-run"), "loopback only"),
        (("kimi-k2.5-two-nodes", "--dry-run"), "NODE_RANK is not set"),
        (("http://127.0.0.1:9", "--", "true"), "the server does not answer"),
        (("nosuch",), "no deployment 'nosuch'"),
        (("tiny", "--file", "no/such.toml"), "can't be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_use_is_two_told_before_any_boot(arguments: tuple[str, ...], words: str) -> None:
    done = serve(*arguments)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr


def test_another_familys_parser_is_refused_before_the_boot(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    done = serve(str(tmp_path), "--flags", "--reasoning-parser kimi_k2")
    assert done.returncode == 2
    assert "'kimi_k2' is not made for this model" in done.stderr
    assert "--reasoning-parser qwen3" in done.stderr and "--force" in done.stderr


class Up:
    """A server as a command sees it; `error` is what its check finds."""

    base_url = "http://127.0.0.1:1"

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def check(self) -> None:
        if self.error is not None:
            raise self.error


def test_a_command_finds_the_server_and_its_exit_code_is_handed_on(tmp_path: Path) -> None:
    out = tmp_path / "seen.json"
    code = f"import json, os, sys; json.dump(dict(os.environ), open({str(out)!r}, 'w')); sys.exit(7)"
    assert child.run([sys.executable, "-c", code], Up(), "key") == 7
    seen = json.loads(out.read_text())
    assert seen["SHARDGATE_BASE_URL"] == "http://127.0.0.1:1"
    assert seen["OPENAI_BASE_URL"] == "http://127.0.0.1:1/v1"
    assert seen["OPENAI_API_KEY"] == seen["SHARDGATE_API_KEY"] == "key"
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert child.run([sys.executable, "-c", kill], Up()) == 143


def test_a_server_that_dies_ends_the_command(tmp_path: Path) -> None:
    left = tmp_path / "pid"
    code = f"import os, time; open({str(left)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(ShardgateError, match="gone"):
        child.run([sys.executable, "-c", code], Up(ShardgateError("gone")))
    if left.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(left.read_text()), 0)


OWNER = textwrap.dedent(
    """
    import sys
    import click
    from harness.commands import child, shell
    class Up:
        base_url = "http://127.0.0.1:1"
        def check(self): pass
    @click.group()
    def group(): pass
    @group.command()
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def up(words): return child.run(words, Up())
    shell.run(group, ["up", "--", *sys.argv[1:]], "shardgate")
    """
)
PAIR = "sleep 600 & echo $$ $!; wait"


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def soon(what: Callable[[], bool], seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if what():
            return True
        time.sleep(0.02)
    return False


def undo_ignored() -> None:
    """Where a suite runs in the background (`&`, nohup) these are ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_command_goes_with_all_that_it_started_however_its_owner_goes(number: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, "sh", "-c", PAIR],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=undo_ignored,
    )
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 2 and all(map(running, pids))
    owner.send_signal(number)
    code = owner.wait(60)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    assert soon(lambda: not any(map(running, pids)))


def test_a_command_at_a_terminal_has_its_keys_and_ctrl_c_is_its_own() -> None:
    """A shell at the terminal reads lines, survives Ctrl-C, and its exit code is handed on."""
    script = "trap 'echo caught' INT; echo up; read word; echo got $word; exit 5"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", OWNER, "bash", "-c", script])
    seen = b""

    def until(words: bytes) -> None:
        nonlocal seen
        while words not in seen:
            seen += os.read(terminal, 4096)

    until(b"up")
    os.write(terminal, b"\x03")
    until(b"caught")
    os.write(terminal, b"word\n")
    until(b"got word")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    os.close(terminal)
