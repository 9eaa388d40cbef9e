"""The pytest plugin in an outside project, from the base install, on a real server by URL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.server import SGLangServer
from tests.bodies import outside

pytestmark = pytest.mark.server


def test_an_outside_project_tests_a_server(tiny_server: SGLangServer, tmp_path: Path) -> None:
    folder = outside.project(tmp_path)
    ran = outside.run(outside.base_python(), folder, "--sglang-url", tiny_server.base_url)
    assert ran.done.returncode == 0, ran.done.stdout
    assert len(ran.of("passed")) == len(ran.outcomes) == 4
    assert {"torch", "sglang"} & ran.imported == set()
    facts = tiny_server.facts()
    told = ran.properties
    assert told["sglang.base_url"] == tiny_server.base_url
    assert told["sglang.model"] == facts.model
    assert told["sglang.engine_version"] == facts.engine_version
    assert told["sglang.reasoning_parser"] == told["sglang.tool_parser"] == "kimi_k2"
    assert json.loads(told["sglang.flags"])["enable_custom_logit_processor"] is True
