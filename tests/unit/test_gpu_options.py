"""What `pytest -m gpu` hands to a boot: offline stays offline, remote code is explicit, no part alone.

Place in the flow: none; boots nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.plugin import TRUST
from harness.server import Deployment, SGLangServer, load_deployments
from tests.bodies.three_boots import BOTH, NONE, REASONING, load_pairs, other_boots
from tests.gpu.conftest import refuse_parts

BODIES = {"raw", "raw, end token trimmed", "reasoning", "tools", "plain", "plain with tools"}


@pytest.mark.parametrize(("outside", "seen"), [("1", "1"), ("0", "0"), (None, None)])
def test_hf_hub_offline_reaches_the_server(
    monkeypatch: pytest.MonkeyPatch, outside: str | None, seen: str | None
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if outside is not None:
        monkeypatch.setenv("HF_HUB_OFFLINE", outside)
    server = SGLangServer("org/model", device="gpu")
    assert server.environment().get("HF_HUB_OFFLINE") == seen
    assert (
        SGLangServer("org/model", device="gpu", env={"HF_HUB_OFFLINE": "1"}).environment()["HF_HUB_OFFLINE"]
        == "1"
    )


def test_a_local_model_needs_no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert SGLangServer(tmp_path, device="cpu").environment()["HF_HUB_OFFLINE"] == "1"
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert SGLangServer(tmp_path, device="cpu").environment()["HF_HUB_OFFLINE"] == "0"


def test_remote_code_is_run_only_where_the_deployment_says_so() -> None:
    for deployment in load_deployments().values():
        allowed = deployment.trust_remote_code or TRUST in deployment.flags
        assert (TRUST in deployment.all_flags()) == allowed
    assert TRUST not in SGLangServer("org/model", device="gpu").command


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--nnodes", "2", "--node-rank", "1"), "node 1 of 2"),
        (("--disaggregation-mode", "prefill"), "prefill half"),
    ],
)
def test_a_part_is_not_tested_by_itself(flags: tuple[str, ...], words: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=words):
        refuse_parts(Deployment(name="part", model="org/model", gpus=8, flags=flags))
    refuse_parts(
        Deployment(name="whole", model="org/model", gpus=8, flags=("--nnodes", "2", "--node-rank", "0"))
    )


def test_three_boots_differ_by_their_parsers_alone() -> None:
    both = load_deployments()["kimi-k2.5"]
    others = other_boots(both)
    assert list(others) == [REASONING, NONE]
    assert [(one.reasoning_parser, one.tool_parser) for one in others.values()] == [
        ("kimi_k2", None),
        (None, None),
    ]
    assert all(one.flags == both.flags and one.scripted for one in others.values())


def test_the_pairs_are_well_formed() -> None:
    pairs = load_pairs()
    assert len({(pair.left, pair.right) for pair in pairs}) == len(pairs) >= 10
    names = [entry["name"] for pair in pairs for entry in pair.differences]
    assert len(set(names)) == len(names)
    for pair in pairs:
        for boot, body in (pair.left, pair.right):
            assert boot in (BOTH, REASONING, NONE) and body in BODIES
        for entry in pair.differences:
            assert {"name", "how", "what", "then", "seen"} <= set(entry)
            assert set(entry) <= {"name", "how", "what", "then", "seen", "parts", "whole_only"}
