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

from harness.server.failures import Unreachable
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
