"""SGLang's own router before real servers: ready when a generation came through, gone with its processes.

One boot of its own: a group of one server with an API key, which also shows that the key opens `probe`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.server import SGLangServer, attach
from harness.server.deployments import Deployment, load_deployments
from harness.server.failures import BootFailed, BootTimeout, ServerDied, Unreachable
from harness.server.group import ServerGroup
from harness.server.guard import group_members
from harness.server.http import call
from harness.server.router import Router
from tests.conftest import need

pytestmark = pytest.mark.server

KEY = "key-of-this-test-41"


@pytest.fixture(autouse=True)
def _router_is_installed() -> None:
    need("sglang_router")


def test_two_servers_behind_one_router(
    tiny_server: SGLangServer, bare_server: SGLangServer, tmp_path: Path
) -> None:
    servers = [attach(one.base_url) for one in (tiny_server, bare_server)]
    pair = Deployment("pair", router_flags=("--policy", "round_robin"))
    with ServerGroup(pair, attached=servers, log_folder=tmp_path) as group:
        assert group.router is not None
        seen = {one["url"] for one in group.router.workers_seen()}
        assert seen == {tiny_server.base_url, bare_server.base_url}
        group.check()
        assert group.alive()
        assert group.facts().base_url == group.base_url
        assert group.facts().engine_version == tiny_server.facts().engine_version
        # Both get work: only one of them has a reasoning parser.
        ask = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        answers = [call(group.base_url, "/v1/chat/completions", ask, timeout=60).body for _ in range(4)]
        thoughts = {bool(one["choices"][0]["message"].get("reasoning_content")) for one in answers}
        assert thoughts == {True, False}
        pid = group.router.pid
        assert (tmp_path / "router.log").stat().st_size > 0
    assert group_members(pid) == []
    # What was attached goes on.
    tiny_server.check()
    bare_server.check()


def test_a_killed_router_is_a_named_death(tiny_server: SGLangServer) -> None:
    with Router([tiny_server.base_url]) as router:
        router.check()
        os.kill(router.pid, signal.SIGKILL)
        _until_dead(router)
        with pytest.raises(ServerDied, match=r"the router died .*SIGKILL") as told:
            router.check()
        assert str(router.log_path) in str(told.value)
    with pytest.raises(Unreachable):
        call(router.base_url, "/health")


def test_a_worker_that_is_not_there_is_named(tmp_path: Path) -> None:
    router = Router(["http://127.0.0.1:9"], timeout=12, log_path=tmp_path / "router.log")
    with pytest.raises(BootTimeout, match="not ready after 12 s") as told:
        router.start()
    assert "http://127.0.0.1:9" in told.value.why
    assert not router.alive() and group_members(router.pid) == []


def test_a_flag_that_the_router_lacks_is_named(tiny_server: SGLangServer, tmp_path: Path) -> None:
    router = Router([tiny_server.base_url], flags=["--no-such-flag"], log_path=tmp_path / "router.log")
    with pytest.raises(BootFailed, match="exit code 2") as told:
        router.start()
    assert any("--no-such-flag" in line for line in told.value.log_lines)
    assert not any("[--" in line for line in told.value.log_lines)


# One group of its own -------------------------------------------------------------------------------------

FILE = f"""
[one]
model = "builtin:tiny"
gpus = 0
flags = ["--random-seed", "1", "--api-key", "{KEY}"]
reasoning_parser = "kimi_k2"
tool_parser = "kimi_k2"

[alone]
servers = ["one"]
"""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerGroup]:
    need("sglang")
    folder = tmp_path_factory.mktemp("group")
    (folder / "own.toml").write_text(FILE, "utf-8")
    with ServerGroup(load_deployments(folder / "own.toml")["alone"], log_folder=folder) as booted:
        yield booted


def shardgate(*arguments: str, key: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "SHARDGATE_API_KEY"}
    env |= {"SHARDGATE_API_KEY": key} if key else {}
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=env)


def test_a_closed_server_is_probed_with_its_key_alone(group: ServerGroup, tmp_path: Path) -> None:
    server = group.members[0].base_url
    page = tmp_path / "report.html"
    done = shardgate("probe", server, "--json", "--html", str(page), key=KEY)
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert report["results"] and all(one["fault"] is None for one in report["results"])
    # Sent, and never shown or written.
    assert KEY not in done.stdout + done.stderr + page.read_text("utf-8")
    for key in (None, "wrong"):
        refused = shardgate("probe", server, key=key)
        assert refused.returncode == 2
        assert "API key" in refused.stderr and "Traceback" not in refused.stderr


def test_the_key_goes_through_the_router_too(group: ServerGroup) -> None:
    server = group.members[0].base_url
    done = shardgate("probe", group.base_url, "--direct", server, "--json", "--api-key", KEY)
    assert done.returncode == 1, done.stderr
    found = [one["name"] for one in json.loads(done.stdout)["gateway"]["findings"]]
    assert "field-dropped: return_token_ids" in found
    assert KEY not in done.stdout + done.stderr
    assert group.router is not None and KEY not in group.router.log_text()


def test_a_dead_member_ends_the_group_and_is_named(group: ServerGroup) -> None:
    """Last in the file: it ends the server."""
    group.check()
    member, router = group.members[0], group.router
    assert isinstance(member, SGLangServer) and router is not None
    os.killpg(member.pid, signal.SIGKILL)
    _until_dead(member)
    with pytest.raises(ServerDied, match=r"server 0 \(one\) of the group 'alone'.*SIGKILL"):
        group.check()
    assert group_members(router.pid) == [] and group_members(member.pid) == []


def _until_dead(process: Router | SGLangServer) -> None:
    until = time.monotonic() + 60
    while process.alive() and time.monotonic() < until:
        time.sleep(0.05)
