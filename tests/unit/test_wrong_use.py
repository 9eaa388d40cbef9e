"""Whatever a user gets wrong is told in words, with exit code 2, and shows no traceback and no key."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from harness.server.failures import CannotBoot, Unreachable
from harness.server.hardware import free_port, port_is_free
from harness.server.http import call

ROOT = Path(__file__).resolve().parents[2]


def shardgate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=os.environ | environment,
    )


@pytest.mark.parametrize("arguments", [("--help",), ("serve", "kimi-k2.5", "--dry-run")])
def test_a_reader_that_went_away_is_no_finding(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness", *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            timeout=120,
        )
    finally:
        os.close(writing)
    assert done.returncode == 128 + signal.SIGPIPE and b"Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_flags_that_are_no_list_of_words_are_not_shown(command: str) -> None:
    done = shardgate(command, "kimi-k2.5", "--flags", "--api-key 'sesame")
    assert done.returncode == 2 and "not a shell-like list of words" in done.stderr
    assert "sesame" not in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_a_port_that_speaks_no_tls_is_told_as_such() -> None:
    class Plain(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Plain) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(Unreachable) as caught:
                call(f"https://127.0.0.1:{server.server_port}", "/health", timeout=20)
        finally:
            server.shutdown()
    assert "http:// instead of https://" in caught.value.remedy


@pytest.mark.parametrize("command", [("probe", "http://127.0.0.1:9"), ("serve", "http://127.0.0.1:9")])
def test_a_key_that_no_header_takes_is_wrong_use_and_not_shown(command: tuple[str, ...]) -> None:
    done = shardgate(*command, SHARDGATE_API_KEY="sesame\n")
    assert done.returncode == 2 and "no HTTP header takes it" in done.stderr
    assert "sesame" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 70, "x..y"])
def test_a_host_that_is_none_is_told_at_once(host: str) -> None:
    with pytest.raises(CannotBoot, match="there is no host"):
        free_port(host)
    assert not port_is_free(host, 30000)


def test_names_that_are_nearly_right_and_files_that_are_empty(tmp_path: Path) -> None:
    done = shardgate("serve", "kimi-k2.5-ruoter")
    assert done.returncode == 2 and "did you mean" in done.stderr and "kimi-k2.5-router" in done.stderr
    (tmp_path / "none.toml").touch()
    assert "the file is empty" in shardgate("serve", "x", "--file", str(tmp_path / "none.toml")).stderr
    assert shardgate("serve", "").returncode == 2


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--sglang-gpus=x", "no number of GPUs"),
        ("--sglang-gpus=-3", "no number of GPUs"),
        ("--sglang-flags=--api-key 'sesame", "not a shell-like list"),
        ("--sglang-model=builtin:nosuch", "builtin:demo and builtin:tiny"),
    ],
)
def test_the_plugin_refuses_before_any_test(option: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "test_none.py").write_text("def test_none(): pass\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", option, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode == 4 and words in said
    assert "Traceback" not in said and said.count(words) == 1 and "sesame'" not in said.replace(option, "")


@pytest.mark.parametrize(
    "arguments",
    [("doctor", "tiny", "--", "--api-key=sesame"), ("probe", "ftp://me:sesame@host")],
)
def test_wrong_use_shows_no_key(arguments: tuple[str, ...]) -> None:
    for switch in ((), ("--json",)):
        done = shardgate(arguments[0], *switch, *arguments[1:])
        assert done.returncode == 2 and "sesame" not in done.stdout + done.stderr
