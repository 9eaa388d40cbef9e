"""Sound, Complete, Named over HTTP: hypothesis streams forced through the real server, in batches.

Each stream travels scheduler, detokenizer, parsers and HTTP; what comes back is judged, and held against
SGLang's parser classes called offline, streamed and not.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from contracts.formats import FORMATS
from contracts.losses import LOSSES, worst
from contracts.records import Capture, Judgement, Mode, Prompt, ThinkingMode, Transport, Verdict
from contracts.tokens import Codec
from harness.capture import judge_capture
from harness.client import CaptureRequest, Client
from harness.modes import Scripted
from harness.parsers import ParserSetup, parse_stream, parse_whole
from harness.scripted import custom_params, processor_text
from harness.server import SGLangServer
from harness.strategies import TOOLS, Stream, disturbed_streams, safe_streams

pytestmark = pytest.mark.server

FMT = FORMATS["kimi_k2"]
BATCH = 8
OVER_HTTP = settings(
    max_examples=int(os.environ.get("SHARDGATE_HTTP_BATCHES", "12")),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
"""Few examples of many streams each: a request costs milliseconds, so streams are drawn in batches."""


def prompt_of(stream: Stream) -> Prompt:
    instant = stream.thinking_mode is ThinkingMode.INSTANT
    return Prompt(
        name="stream",
        messages=({"role": "user", "content": "Hi"},),
        tools=stream.tools,
        template_kwargs={FMT.template_switch: False} if instant else {},
        thinking_mode=stream.thinking_mode,
    )


def ask(
    server: SGLangServer,
    streams: list[Stream],
    *,
    stream: bool = False,
    transport: Transport = Transport.CHAT,
    concurrency: int = 16,
) -> list[Capture]:
    async def go() -> list[Any]:
        async with Client(server.base_url, facts=server.facts(), concurrency=concurrency) as client:
            rendered = {}
            for one in streams:
                key = (one.thinking_mode, one.tools is None)
                if key not in rendered:
                    rendered[key] = await client.render(prompt_of(one))
            requests = []
            for one in streams:
                generate = transport is Transport.GENERATE
                mode = Mode.RAW if generate else Mode.TOOLS if one.tools else Mode.REASONING
                script = Scripted(one.ids, processor_text(), custom_params(one.ids))
                ids = rendered[one.thinking_mode, one.tools is None]
                requests.append(CaptureRequest(prompt_of(one), mode, transport, stream, ids, script))
            return await client.capture_many(requests)

    found = asyncio.run(go())
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


def until_end(stream: Stream, codec: Codec) -> Stream:
    """Cut a stream where the engine would stop: at its first end token."""
    # The config's and the tokenizer's end tokens both stop it.
    ends = {codec.token_id(text) for text in FMT.end_tokens}
    ids = stream.ids
    first = next((index for index, token in enumerate(ids) if token in ends), None)
    if first is not None:
        return Stream(ids[: first + 1], stream.thinking_mode, "stop", stream.tools)
    return Stream(ids or (codec.encode("a")[0],), stream.thinking_mode, "length", stream.tools)


def check(capture: Capture, stream: Stream, codec: Codec) -> Judgement:
    assert capture.response_token_ids == stream.ids
    assert capture.finish_reason in (stream.finish_reason, "tool_calls")
    judgement = judge_capture(capture, codec=codec, fmt=FMT)
    assert judgement.verdict is worst(judgement.losses)
    assert (judgement.verdict is Verdict.EXACT) == (not judgement.losses)
    assert all(loss.name in LOSSES for loss in judgement.losses)
    return judgement


def setup_of(stream: Stream) -> ParserSetup:
    return ParserSetup(
        reasoning_parser=FMT.reasoning_parser,
        tool_parser=FMT.tool_parser if stream.tools else None,
        tools=stream.tools,
        forced=stream.thinking_mode is not ThinkingMode.INSTANT,
    )


def same_fields(capture: Capture, parsed: Any) -> bool:
    def calls(text: str | None) -> Any:
        wanted = ("id", "index", "function")
        return None if text is None else [{k: c.get(k) for k in wanted} for c in json.loads(text)]

    served, offline = capture.fields, parsed.fields
    return (
        (served.reasoning_content or None, served.content or "")
        == (offline.reasoning_content or None, offline.content or "")
        and calls(served.tool_calls) == calls(offline.tool_calls)
        and capture.finish_reason == parsed.finish_reason
    )


@OVER_HTTP
@given(data=st.data())
def test_complete_over_http(tiny_server: SGLangServer, tiny_codec: Codec, data: st.DataObject) -> None:
    safe = safe_streams(FMT, tiny_codec, tools=True)
    streams = data.draw(st.lists(safe, min_size=BATCH, max_size=BATCH))
    for stream, capture in zip(streams, ask(tiny_server, streams), strict=True):
        judgement = check(capture, stream, tiny_codec)
        assert judgement.verdict is Verdict.EXACT, (judgement.losses, capture.fields)


@OVER_HTTP
@given(data=st.data())
def test_named_sound_and_as_offline(
    tiny_server: SGLangServer, tiny_codec: Codec, data: st.DataObject
) -> None:
    drawn = data.draw(st.lists(disturbed_streams(FMT, tiny_codec), min_size=BATCH, max_size=BATCH))
    streams = [until_end(stream, tiny_codec) for stream in drawn]
    exact: dict[tuple[Any, ...], set[tuple[int, ...]]] = defaultdict(set)
    for stream, capture in zip(streams, ask(tiny_server, streams), strict=True):
        judgement = check(capture, stream, tiny_codec)
        if judgement.verdict is Verdict.EXACT:
            key = (capture.fields, capture.finish_reason, stream.thinking_mode, stream.tools is None)
            exact[key].add(stream.ids)
        offline = parse_whole(
            stream.ids,
            codec=tiny_codec,
            setup=setup_of(stream),
            finish_reason=stream.finish_reason,
            matched_stop=stream.ids[-1] if stream.finish_reason == "stop" else None,
        )
        assert same_fields(capture, offline), (stream, capture.fields, offline)
    assert all(len(ids) == 1 for ids in exact.values())


TRIES = 4
"""A busy server puts several tokens into one delta, which changes what its parsers make of them."""


@OVER_HTTP
@given(data=st.data())
def test_streamed_as_offline(tiny_server: SGLangServer, tiny_codec: Codec, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(disturbed_streams(FMT, tiny_codec), min_size=BATCH, max_size=BATCH))
    streams = [until_end(stream, tiny_codec) for stream in drawn]
    for _ in range(TRIES):
        captures = ask(tiny_server, streams, stream=True, concurrency=1)
        differing = []
        for stream, capture in zip(streams, captures, strict=True):
            check(capture, stream, tiny_codec)
            offline = parse_stream(
                stream.ids,
                [1] * len(stream.ids),
                codec=tiny_codec,
                setup=setup_of(stream),
                finish_reason=stream.finish_reason,
                matched_stop=stream.ids[-1] if stream.finish_reason == "stop" else None,
            )
            if not same_fields(capture, offline):
                differing.append((stream, capture.fields, capture.finish_reason, offline))
        streams = [one[0] for one in differing]
        if not streams:
            return
    assert not differing, differing[0]


@OVER_HTTP
@given(data=st.data())
def test_generate_hands_out_the_ids_text(
    tiny_server: SGLangServer, tiny_codec: Codec, data: st.DataObject
) -> None:
    drawn = data.draw(st.lists(disturbed_streams(FMT, tiny_codec), min_size=BATCH, max_size=BATCH))
    streams = [until_end(stream, tiny_codec) for stream in drawn]
    found = ask(tiny_server, streams, transport=Transport.GENERATE)
    for stream, capture in zip(streams, found, strict=True):
        judgement = check(capture, stream, tiny_codec)
        assert judgement.claims.captured and judgement.claims.text
        assert judgement.verdict in (Verdict.EXACT, Verdict.TEXT_EXACT, Verdict.LOSSY)


def test_the_seed_a_server_without_parsers(bare_server: SGLangServer, tiny_codec: Codec) -> None:
    ids = tuple(tiny_codec.encode("Let me think.</think>Paris.<|im_end|>"))
    stream = Stream(ids, ThinkingMode.THINKING, "stop", None)
    (capture,) = ask(bare_server, [stream])
    assert capture.fields.reasoning_content is None
    assert capture.fields.content == "Let me think.</think>Paris."
    judgement = judge_capture(capture, codec=tiny_codec, fmt=FMT)
    assert judgement.verdict is Verdict.CONTRADICTED
    assert "reasoning-in-content" in [loss.name for loss in judgement.losses]


def test_declared_tools_reach_the_parser(tiny_server: SGLangServer, tiny_codec: Codec) -> None:
    syntax = FMT.tools
    assert syntax is not None
    call = f"{syntax.call_begin}functions.f:0{syntax.argument_begin}{{}}{syntax.call_end}"
    text = f"r</think>{syntax.section_begin}{call}{syntax.section_end}<|im_end|>"
    ids = tuple(tiny_codec.encode(text))
    with_tools = Stream(ids, ThinkingMode.THINKING, "stop", TOOLS)
    without = Stream(ids, ThinkingMode.THINKING, "stop", None)
    told, leaked = ask(tiny_server, [with_tools, without])
    assert told.finish_reason == "tool_calls" and told.fields.content == ""
    assert judge_capture(told, codec=tiny_codec, fmt=FMT).verdict is Verdict.EXACT
    judgement = judge_capture(leaked, codec=tiny_codec, fmt=FMT)
    assert judgement.verdict is Verdict.CONTRADICTED
    assert "marker-leaked" in [loss.name for loss in judgement.losses]
