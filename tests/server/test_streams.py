"""Sound, Complete, Named over HTTP: hypothesis streams forced through the real server, in batches.

Each stream travels scheduler, detokenizer, parsers and HTTP; what comes back is judged, and held against
SGLang's parser classes called offline, streamed and not. The bodies are `tests/bodies/streams.py`.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.formats import FORMATS
from contracts.records import ThinkingMode, Verdict
from contracts.tokens import Codec
from harness.capture import judge_capture
from harness.server import SGLangServer
from harness.strategies import TOOLS, Stream
from tests.bodies import streams as bodies
from tests.bodies.streams import OVER_HTTP, Served

pytestmark = pytest.mark.server

FMT = FORMATS["kimi_k2"]


@pytest.fixture(scope="module")
def served(tiny_server: SGLangServer, tiny_codec: Codec) -> Served:
    return Served(tiny_server, tiny_server.facts(), tiny_codec, FMT)


@OVER_HTTP
@given(data=st.data())
def test_complete_over_http(served: Served, data: st.DataObject) -> None:
    bodies.complete(served, data)


@OVER_HTTP
@given(data=st.data())
def test_named_sound_and_as_offline(served: Served, data: st.DataObject) -> None:
    bodies.named_sound_and_as_offline(served, data)


@OVER_HTTP
@given(data=st.data())
def test_streamed_as_offline(served: Served, data: st.DataObject) -> None:
    bodies.streamed_as_offline(served, data)


@OVER_HTTP
@given(data=st.data())
def test_generate_hands_out_the_ids_text(served: Served, data: st.DataObject) -> None:
    bodies.generate_hands_out_the_ids_text(served, data)


def test_scripts_are_obeyed(served: Served) -> None:
    assert bodies.bypassed(served) is None


def test_the_seed_a_server_without_parsers(bare_server: SGLangServer, tiny_codec: Codec) -> None:
    ids = tuple(tiny_codec.encode("Let me think.</think>Paris.<|im_end|>"))
    stream = Stream(ids, ThinkingMode.THINKING, "stop", None)
    (capture,) = bodies.ask(Served(bare_server, bare_server.facts(), tiny_codec, FMT), [stream])
    assert capture.fields.reasoning_content is None
    assert capture.fields.content == "Let me think.</think>Paris."
    judgement = judge_capture(capture, codec=tiny_codec, fmt=FMT)
    assert judgement.verdict is Verdict.CONTRADICTED
    assert "reasoning-in-content" in [loss.name for loss in judgement.losses]


def test_declared_tools_reach_the_parser(served: Served) -> None:
    syntax = FMT.tools
    assert syntax is not None
    call = f"{syntax.call_begin}functions.f:0{syntax.argument_begin}{{}}{syntax.call_end}"
    text = f"r</think>{syntax.section_begin}{call}{syntax.section_end}<|im_end|>"
    ids = tuple(served.codec.encode(text))
    with_tools = Stream(ids, ThinkingMode.THINKING, "stop", TOOLS)
    without = Stream(ids, ThinkingMode.THINKING, "stop", None)
    told, leaked = bodies.ask(served, [with_tools, without])
    assert told.finish_reason == "tool_calls" and told.fields.content == ""
    assert judge_capture(told, codec=served.codec, fmt=FMT).verdict is Verdict.EXACT
    judgement = judge_capture(leaked, codec=served.codec, fmt=FMT)
    assert judgement.verdict is Verdict.CONTRADICTED
    assert "marker-leaked" in [loss.name for loss in judgement.losses]
