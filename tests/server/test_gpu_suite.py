"""`pytest -m gpu` by URL, for real: the GPU box's suite, run against the session's server on this CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.server import SGLangServer
from tests.bodies import outside

pytestmark = pytest.mark.server

BY_URL = {"test_it_generates_what_it_is_asked", "test_it_can_be_attached", "test_the_probe_judges_it"}


def test_by_url_it_asks_what_any_server_can_be_asked(tiny_server: SGLangServer, tmp_path: Path) -> None:
    suite = str(outside.ROOT / "tests" / "gpu")
    arguments = ("-m", "gpu", "--base-url", tiny_server.base_url, "--rootdir", str(outside.ROOT), suite)
    ran = outside.run(sys.executable, tmp_path, *arguments, ci=True)
    assert ran.done.returncode == 0, ran.done.stdout
    assert ran.of("passed") == BY_URL
    rest = set(ran.outcomes) - BY_URL
    assert rest and ran.of("skipped") == rest
    assert all("given by URL" in ran.outcomes[name][1] for name in rest)
    assert ran.properties["sglang.base_url"] == tiny_server.base_url
    assert ran.properties["sglang.engine_version"] and ran.properties["sglang.flags"]
    assert tiny_server.alive(), "a server by URL is never ended"


def test_without_the_gpus_it_skips_here_and_fails_under_ci(tmp_path: Path) -> None:
    suite = str(outside.ROOT / "tests" / "gpu" / "test_gpu.py")
    arguments = (
        "-m",
        "gpu",
        "--deployment",
        "kimi-k2.5",
        "--gpus",
        "0",
        "--rootdir",
        str(outside.ROOT),
        suite,
    )
    here = outside.run(sys.executable, tmp_path, *arguments)
    assert here.done.returncode == 0, here.done.stdout
    assert set(here.outcomes) == here.of("skipped")
    assert all("asks for 8 GPUs, 0 are there" in message for _, message in here.outcomes.values())
    ci = outside.run(sys.executable, tmp_path, *arguments, ci=True)
    assert ci.done.returncode == 1
    assert set(ci.outcomes) == ci.of("error")
