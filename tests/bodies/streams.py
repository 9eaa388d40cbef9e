"""Streams forced through a real server, judged, and held to SGLang's parsers offline; on CPU and GPUs alike.

Place in the flow: called by `tests/server` and `tests/gpu` with a booted server that carries scripts, its
codec and its format. Each stream travels scheduler, detokenizer, parsers and HTTP. No fixtures here.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from contracts.formats import Format
from contracts.losses import LOSSES, worst
from contracts.records import Capture, Judgement, Mode, Prompt, ServerFacts, ThinkingMode, Transport, Verdict
from contracts.tokens import Codec
from harness.capture import judge_capture
from harness.client import CaptureRequest, Client
from harness.modes import Scripted
from harness.parsers import ParserSetup, parse_stream, parse_whole
from harness.scripted import custom_params, processor_text
from harness.server import SGLangServer
from harness.strategies import Stream, disturbed_streams, safe_streams

BATCH = 8
OVER_HTTP = settings(
    max_examples=int(os.environ.get("SHARDGATE_HTTP_BATCHES", "12")),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
"""Few examples of many streams each: a request costs milliseconds, so streams are drawn in batches."""

LONGEST = 300
"""Tokens of a stream over HTTP: each takes the engine a step, and long ones are judged offline."""

TRIES = 4
"""A busy server puts several tokens into one delta, which changes what its parsers make of them."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server under test with what its streams are judged by."""

    server: SGLangServer
    facts: ServerFacts
    codec: Codec
    fmt: Format

    @property
    def tools(self) -> bool:
        """Whether calls are parsed: the server has a parser for them, and we know how they are written."""
        return self.facts.tool_parser is not None and self.fmt.tools is not None


def prompt_of(stream: Stream, fmt: Format) -> Prompt:
    """A prompt for the stream's thinking mode and tools."""
    instant = stream.thinking_mode is ThinkingMode.INSTANT
    told = stream.thinking_mode is not fmt.default_mode
    return Prompt(
        name="stream",
        messages=({"role": "user", "content": "Hi"},),
        tools=stream.tools,
        template_kwargs={fmt.template_switch: not instant} if fmt.template_switch and told else {},
        thinking_mode=stream.thinking_mode,
    )


def ask(
    on: Served,
    streams: list[Stream],
    *,
    stream: bool = False,
    transport: Transport = Transport.CHAT,
    concurrency: int = 16,
) -> list[Capture]:
    """Force the streams through the server; the captures in their order. A failed request raises."""

    async def go() -> list[Any]:
        async with Client(on.server.base_url, facts=on.facts, concurrency=concurrency) as client:
            rendered = {}
            for one in streams:
                key = (one.thinking_mode, one.tools is None)
                if key not in rendered:
                    rendered[key] = await client.render(prompt_of(one, on.fmt))
            requests = []
            for one in streams:
                generate = transport is Transport.GENERATE
                mode = Mode.RAW if generate else Mode.TOOLS if one.tools else Mode.REASONING
                script = Scripted(one.ids, processor_text(), custom_params(one.ids))
                ids = rendered[one.thinking_mode, one.tools is None]
                requests.append(CaptureRequest(prompt_of(one, on.fmt), mode, transport, stream, ids, script))
            return await client.capture_many(requests)

    found = asyncio.run(go())
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


def until_end(stream: Stream, on: Served) -> Stream:
    """Cut a stream where the engine would stop: at its first end token."""
    # The config's and the tokenizer's end tokens both stop it.
    ends = {on.codec.token_id(text) for text in on.fmt.end_tokens}
    ids = stream.ids
    first = next((index for index, token in enumerate(ids) if token in ends), None)
    if first is not None:
        return Stream(ids[: first + 1], stream.thinking_mode, "stop", stream.tools)
    return Stream(ids or (on.codec.encode("a")[0],), stream.thinking_mode, "length", stream.tools)


def bypassed(on: Served) -> str | None:
    """Say whether the engine emits something else than a script forces: speculative decoding may."""
    text = "one two three four five six seven eight nine ten" + on.fmt.end_tokens[0]
    script = Stream(tuple(on.codec.encode(text)), ThinkingMode.THINKING, "stop", None)
    (capture,) = ask(on, [script], transport=Transport.GENERATE)
    if capture.response_token_ids == script.ids:
        return None
    emitted = len(capture.response_token_ids or ())
    return f"processors bypassed: {len(script.ids)} ids were forced, {emitted} others came"


def check(capture: Capture, stream: Stream, on: Served) -> Judgement:
    """Hold a capture to its script and its verdict to its losses."""
    assert capture.response_token_ids == stream.ids
    assert capture.finish_reason in (stream.finish_reason, "tool_calls")
    judgement = judge_capture(capture, codec=on.codec, fmt=on.fmt)
    assert judgement.verdict is worst(judgement.losses)
    assert (judgement.verdict is Verdict.EXACT) == (not judgement.losses)
    assert all(loss.name in LOSSES for loss in judgement.losses)
    return judgement


def setup_of(stream: Stream, on: Served) -> ParserSetup:
    """The parsers that the server runs on this stream."""
    return ParserSetup(
        reasoning_parser=on.facts.reasoning_parser,
        tool_parser=on.facts.tool_parser if stream.tools else None,
        tools=stream.tools,
        forced=on.fmt.forced(stream.thinking_mode),
    )


def same_fields(capture: Capture, parsed: Any) -> bool:
    """Whether the server handed out what the offline parsers make."""

    def calls(text: str | None) -> Any:
        if text is None:
            return None
        # Ids that the model does not write are drawn at random.
        own = [call["id"] if str(call["id"]).startswith("functions.") else None for call in json.loads(text)]
        return own, [{k: call.get(k) for k in ("index", "function")} for call in json.loads(text)]

    served, offline = capture.fields, parsed.fields
    return (
        (served.reasoning_content or None, served.content or "")
        == (offline.reasoning_content or None, offline.content or "")
        and calls(served.tool_calls) == calls(offline.tool_calls)
        and capture.finish_reason == parsed.finish_reason
    )


def _end_of(stream: Stream) -> int | None:
    return stream.ids[-1] if stream.finish_reason == "stop" else None


def _disturbed(on: Served, data: st.DataObject) -> list[Stream]:
    some = disturbed_streams(on.fmt, on.codec, tools=on.tools).filter(lambda one: len(one.ids) <= LONGEST)
    return [until_end(stream, on) for stream in data.draw(st.lists(some, min_size=BATCH, max_size=BATCH))]


def complete(on: Served, data: st.DataObject) -> None:
    """Inside the format's safe grammar every verdict is exact."""
    safe = safe_streams(on.fmt, on.codec, tools=on.tools)
    streams = data.draw(st.lists(safe, min_size=BATCH, max_size=BATCH))
    for stream, capture in zip(streams, ask(on, streams), strict=True):
        judgement = check(capture, stream, on)
        assert judgement.verdict is Verdict.EXACT, (judgement.losses, capture.fields)


def named_sound_and_as_offline(on: Served, data: st.DataObject) -> None:
    """Any stream at all: losses are named, exact is said once per fields, and offline gives the same."""
    streams = _disturbed(on, data)
    exact: dict[tuple[Any, ...], set[tuple[int, ...]]] = defaultdict(set)
    for stream, capture in zip(streams, ask(on, streams), strict=True):
        judgement = check(capture, stream, on)
        if judgement.verdict is Verdict.EXACT:
            key = (capture.fields, capture.finish_reason, stream.thinking_mode, stream.tools is None)
            exact[key].add(stream.ids)
        offline = parse_whole(
            stream.ids,
            codec=on.codec,
            setup=setup_of(stream, on),
            finish_reason=stream.finish_reason,
            matched_stop=_end_of(stream),
        )
        assert same_fields(capture, offline), (stream, capture.fields, offline)
    assert all(len(ids) == 1 for ids in exact.values())


def streamed_as_offline(on: Served, data: st.DataObject) -> None:
    """Streamed answers put together are what the streaming parsers make, token by token."""
    streams = _disturbed(on, data)
    for _ in range(TRIES):
        captures = ask(on, streams, stream=True, concurrency=1)
        differing = []
        for stream, capture in zip(streams, captures, strict=True):
            check(capture, stream, on)
            offline = parse_stream(
                stream.ids,
                [1] * len(stream.ids),
                codec=on.codec,
                setup=setup_of(stream, on),
                finish_reason=stream.finish_reason,
                matched_stop=_end_of(stream),
            )
            if not same_fields(capture, offline):
                differing.append((stream, capture.fields, capture.finish_reason, offline))
        streams = [one[0] for one in differing]
        if not streams:
            return
    pytest.fail(f"{differing[0]}")


def generate_hands_out_the_ids_text(on: Served, data: st.DataObject) -> None:
    """`/generate` gives the ids and exactly their text, whatever they are."""
    streams = _disturbed(on, data)
    found = ask(on, streams, transport=Transport.GENERATE)
    for stream, capture in zip(streams, found, strict=True):
        judgement = check(capture, stream, on)
        assert judgement.claims.captured and judgement.claims.text
        assert judgement.verdict in (Verdict.EXACT, Verdict.TEXT_EXACT, Verdict.LOSSY)
