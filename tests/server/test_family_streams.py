"""The offline path is the server's answer for other families too: one boot a family, scripted, over HTTP.

A few families are sampled here; `SHARDGATE_FAMILIES=all` (or names, with commas) takes others: some half a
minute for each. The bodies are `tests/bodies/streams.py`, Kimi's own are in `test_streams.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.formats import FORMATS
from harness.models import codec_for
from harness.models.family_model import family_model
from harness.server import load_deployment
from tests.bodies import streams as bodies
from tests.bodies.streams import OVER_HTTP, Served
from tests.conftest import need

pytestmark = pytest.mark.server
need("sglang")

SAMPLED = "deepseek_v31,glm45,qwen3_coder"
WANTED = os.environ.get("SHARDGATE_FAMILIES", SAMPLED)
# SGLang knows gpt-oss's `<|call|>` by its id in that model's own vocabulary, which no other can stand in for.
NAMES = [name for name in FORMATS if name != "gpt_oss"] if WANTED == "all" else WANTED.split(",")
FEW = settings(OVER_HTTP, max_examples=int(os.environ.get("SHARDGATE_HTTP_BATCHES", "4")))


@pytest.fixture(scope="module", params=NAMES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    fmt = FORMATS[request.param]
    deployment = replace(
        load_deployment("tiny"),
        model=str(family_model(fmt)),
        reasoning_parser=fmt.reasoning_parser or None,
        tool_parser=fmt.tool_parser,
    )
    log = tmp_path_factory.mktemp(fmt.name) / "server.log"
    with deployment.server(log_path=log) as server:
        yield Served(server, server.facts(), codec_for(fmt), fmt)


@FEW
@given(data=st.data())
def test_complete_for_a_family(family: Served, data: st.DataObject) -> None:
    bodies.complete(family, data)


@FEW
@given(data=st.data())
def test_whole_as_offline_for_a_family(family: Served, data: st.DataObject) -> None:
    bodies.named_sound_and_as_offline(family, data)


@FEW
@given(data=st.data())
def test_streamed_as_offline_for_a_family(family: Served, data: st.DataObject) -> None:
    bodies.streamed_as_offline(family, data)
