"""What every booted server must do, on a CPU and on eight GPUs alike: the bodies of both suites' tests.

Place in the flow: called by `tests/server` and `tests/gpu` with a ready server. No fixtures here.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, Protocol

import pytest

from contracts.records import ServerFacts
from harness.server import Mismatch, Phase, ServerDied, SGLangServer, Unreachable, attach
from harness.server.guard import group_members
from harness.server.http import call
from harness.server.ready import confirm, info


class HasUrl(Protocol):
    """A server that is booted here, or one that runs elsewhere."""

    @property
    def base_url(self) -> str: ...


def generates_exactly(server: HasUrl, count: int) -> list[int]:
    """The ids of a greedy generation of `count` tokens, end tokens ignored."""
    request: dict[str, Any] = {
        "input_ids": [5, 6, 7, 8],
        "sampling_params": {"max_new_tokens": count, "ignore_eos": True, "temperature": 0.0},
    }
    answer = call(server.base_url, "/generate", request, timeout=120.0)
    assert answer.status == 200, answer.body
    assert answer.body["meta_info"]["completion_tokens"] == count
    ids: list[int] = answer.body["output_ids"]
    assert len(ids) == count
    return ids


def reports_what_was_asked(server: SGLangServer, reasoning: str | None, tools: str | None) -> None:
    """Facts name the model, the version and the parsers; `None` means: started without one."""
    import importlib.metadata

    facts = server.facts()
    assert facts.base_url == server.base_url
    assert facts.model == server.model_path
    assert facts.engine_version == importlib.metadata.version("sglang")
    assert (facts.reasoning_parser, facts.tool_parser) == (reasoning, tools)
    assert str(server.port) in facts.flags["launch_command"]


def refuses_another(server: SGLangServer) -> None:
    """Held to other wishes, the same server is a mismatch, and the message names each difference."""
    reported = info(server.base_url, "server_info")
    confirm(server.base_url, server.model_path, server.flags, reported)
    wishes = (*server.flags, "--tool-call-parser", "qwen25", "--tp-size", "3")
    with pytest.raises(Mismatch) as told:
        confirm(server.base_url, "/no/such/model", wishes, reported, version="0.0.1")
    for words in ("/no/such/model", "tool_call_parser = 'qwen25'", "tp_size = '3'", "SGLang 0.0.1"):
        assert words in told.value.why


def can_be_attached(server: SGLangServer) -> None:
    """A second look by URL sees the same server, and how it was started."""
    looks_the_same(server.base_url, server.facts())
    command = attach(server.base_url, prove=False).command
    assert command is not None and server.model_path in command


def looks_the_same(base_url: str, facts: ServerFacts) -> None:
    """Attached once more, the server tells the same; the forms in which people write URLs are all one."""
    attached = attach(base_url)
    assert attached.facts == facts
    assert attached.alive()
    assert attach(f"{base_url}/v1/", prove=False).base_url == base_url


def progressed(phases: list[Phase]) -> None:
    """The boot's phases were told in order, the weights' among them, and ended in ready."""
    order = list(Phase)
    assert [order.index(phase) for phase in phases] == sorted(order.index(phase) for phase in phases)
    assert {Phase.STARTING, Phase.WEIGHTS, Phase.READY} <= set(phases)
    assert phases[-1] is Phase.READY


def is_gone(pid: int) -> None:
    """Nothing of the server's process group lives."""
    assert group_members(pid) == []


def dies_by_name(server: SGLangServer, process: bytes) -> None:
    """A killed process of the group, found by its name, ends the server; the error tells, nothing is left."""
    server.check()
    pid = server.pid
    names = {member: Path(f"/proc/{member}/cmdline").read_bytes() for member in group_members(pid)}
    os.kill(next(member for member, name in names.items() if process in name), signal.SIGKILL)
    until = time.monotonic() + 120
    while server.alive() and time.monotonic() < until:
        time.sleep(0.2)
    with pytest.raises(ServerDied) as told:
        server.check()
    assert str(server.log_path) in str(told.value)
    assert told.value.log_lines
    server.stop()
    is_gone(pid)
    with pytest.raises(Unreachable, match="does not answer"):
        call(server.base_url, "/model_info")
