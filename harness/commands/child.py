"""A command that runs while a server is up: its environment, its exit code, its end when the server dies.

Place in the flow: outermost, under `shardgate serve`. Imports the standard library and `contracts.errors`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Protocol

from contracts.errors import ShardgateError

_GRACE = 10.0
"""Seconds between asking the command to end and ending it."""


class Running(Protocol):
    """What a command needs to know of the server that it runs against."""

    @property
    def base_url(self) -> str:
        """`http://host:port`."""

    def check(self) -> None:
        """Raise if the server is gone."""


def refuse_missing(command: Sequence[str]) -> None:
    """Raise before a boot of minutes when the command is none."""
    if command[0].startswith("-"):
        raise ShardgateError(
            f"{command[0]} is no command",
            where="the words after `--`",
            why="they are the command to run against the server",
            remedy='give flags for SGLang as --flags "…", before `--`',
        )
    if shutil.which(command[0]) is None:
        raise ShardgateError(
            f"the command {command[0]!r} is not there",
            where="the words after `--`",
            why="no such program is on PATH",
            remedy="correct its name, or give its full path",
        )


def environment(base_url: str, api_key: str | None) -> dict[str, str]:
    """The variables by which a command finds the server; OpenAI's client reads the second and the third."""
    given = {"SHARDGATE_BASE_URL": base_url, "OPENAI_BASE_URL": f"{base_url}/v1"}
    # The client refuses to start without a key; a key of somebody else's is not for this server.
    given["OPENAI_API_KEY"] = api_key or "none"
    return given


def run(command: Sequence[str], server: Running, api_key: str | None = None) -> int:
    """Run the command until it ends, and return its exit code, 128 + n when signal n ended it.

    Raises what `server.check` raises when the server dies meanwhile; the command is ended first, as it is on
    Ctrl-C.
    """
    child = subprocess.Popen(command, env={**os.environ, **environment(server.base_url, api_key)})
    try:
        asked = time.monotonic()
        while (code := child.poll()) is None:
            if time.monotonic() - asked >= 1.0:
                server.check()
                asked = time.monotonic()
            try:
                child.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        return code if code >= 0 else 128 - code
    except BaseException:
        _end(child)
        raise


def _end(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            child.send_signal(number)
            try:
                child.wait(_GRACE)
            except subprocess.TimeoutExpired:
                continue
