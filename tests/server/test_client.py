"""The client against a real server: ids, texts and bodies as they came, and clear errors.

Needs the `tiny_server` fixture: the tiny model with kimi_k2 parsers and scripted generation switched on.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from contracts.records import Capture, Mode, Prompt, ServerFacts, Transport
from contracts.tokens import Codec, UndecodableToken, load_codec
from harness.client import CaptureRequest, Client, requests_for
from harness.modes import Scripted
from harness.scripted import custom_params, processor_text
from harness.server_codec import ServerCodec, UnseenBytes
from harness.wire_errors import ClientError, HttpStatusError, RequestRefused, ServerGone, ServerTimeout

pytestmark = pytest.mark.server

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
PLAIN = Prompt(
    name="plain",
    messages=({"role": "user", "content": "Hi"},),
    sampling={"max_tokens": 6, "temperature": 1.0, "ignore_eos": True},
)
FREE = replace(PLAIN, sampling={})
WITH_TOOLS = replace(PLAIN, name="with tools", tools=(TOOL,), sampling={})
CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city":  "Zürich"}<|tool_call_end|><|tool_calls_section_end|>'
)


@pytest.fixture(scope="module")
def url(tiny_server: Any) -> str:
    return str(tiny_server.base_url)


@pytest.fixture(scope="module")
def codec() -> Codec:
    from harness.models import tiny_model

    return load_codec(tiny_model())


@pytest.fixture(scope="module")
def server_codec(url: str) -> Iterator[ServerCodec]:
    found = ServerCodec(url)
    yield found
    found.close()


def facts(url: str, **changes: Any) -> ServerFacts:
    return replace(ServerFacts(base_url=url, model="tiny"), **changes)


def run(url: str, work: Callable[[Client], Awaitable[Any]], **options: Any) -> Any:
    async def go() -> Any:
        async with Client(url, facts=options.pop("facts", facts(url)), **options) as client:
            return await work(client)

    return asyncio.run(go())


def script(codec: Codec, text: str) -> Scripted:
    ids = tuple(codec.encode(text))
    return Scripted(ids, processor_text(), custom_params(ids))


def captures(found: list[Capture | ClientError]) -> list[Capture]:
    for one in found:
        if isinstance(one, ClientError):
            raise one
    return [one for one in found if isinstance(one, Capture)]


def test_capabilities_are_seen_by_asking(url: str) -> None:
    seen = run(url, lambda client: client.capabilities())
    assert seen.chat_ids == "response_token_ids"
    assert seen.prompt_ids and seen.stream_ids and seen.chat_input_ids and seen.generate_ids
    assert seen.custom_logit_processor and seen.tokenize and seen.detokenize


def test_the_rendered_prompt_has_the_tools_and_the_prefilled_opener(url: str, codec: Codec) -> None:
    with_tools = codec.decode_bytes(run(url, lambda c: c.render(WITH_TOOLS))).decode()
    without = codec.decode_bytes(run(url, lambda c: c.render(PLAIN))).decode()
    assert "get_weather" in with_tools and "get_weather" not in without
    assert with_tools.endswith("<think>") and without.endswith("<think>")


def test_one_script_through_every_mode_and_transport(url: str, codec: Codec) -> None:
    text = f"Let me see.</think>Sure. {CALL}<|im_end|>"
    forced = script(codec, text)

    async def work(client: Client) -> list[Capture | ClientError]:
        ids = await client.render(WITH_TOOLS)
        wanted = requests_for(WITH_TOOLS, ids, scripted=forced)
        streamed = [replace(request, stream=True) for request in wanted]
        return await client.capture_many([*wanted, *streamed])

    found = captures(run(url, work))
    assert len(found) == 8
    assert {c.prompt_token_ids for c in found} == {found[0].prompt_token_ids}
    assert all(c.response_token_ids == forced.ids == c.scripted_ids for c in found)
    assert all(c.usage is not None and c.usage.completion_tokens == len(forced.ids) for c in found)
    assert all(c.response_body for c in found)
    end = codec.token_id("<|im_end|>")
    for n in (0, 4):
        generated, raw, reasoning, tools = found[n : n + 4]
        assert (generated.transport, generated.mode) == (Transport.GENERATE, Mode.RAW)
        assert generated.raw_text == text and raw.raw_text == text
        assert (generated.finish_reason, generated.matched_stop) == ("stop", end)
        assert raw.fields.reasoning_content is None and raw.fields.tool_calls is None

        assert reasoning.fields.reasoning_content == "Let me see."
        assert reasoning.fields.content == f"Sure. {CALL}"
        assert (reasoning.finish_reason, reasoning.matched_stop) == ("stop", end)
        assert reasoning.raw_text is None and tools.raw_text is None

        assert tools.fields.reasoning_content == "Let me see."
        assert tools.fields.content == "Sure. "
        assert tools.finish_reason == "tool_calls"
        assert tools.fields.tool_calls is not None
        (call,) = json.loads(tools.fields.tool_calls)
        assert call["id"] == "functions.get_weather:0"
        assert call["function"] == {"name": "get_weather", "arguments": '{"city":  "Zürich"}'}
    assert found[3].fields.tool_calls == found[7].fields.tool_calls, "stream and whole write calls alike"
    assert str(found[3].fields.tool_calls).encode() in found[3].response_body


def test_odd_text_keeps_its_bytes(url: str, codec: Codec) -> None:
    text = 'a\u2028b\x85c\u00a0 👩‍👩‍👧 中文\r\n\t{"x": 1}</think>\n\n<b>&amp;</b><|im_end|>'
    forced = script(codec, text)
    wanted = [CaptureRequest(FREE, Mode.RAW, scripted=forced, stream=stream) for stream in (False, True)]
    found = captures(run(url, lambda c: c.capture_many(wanted)))
    # The vocabulary's own decode is the measure: a normalising tokenizer may have changed the script.
    assert [c.raw_text for c in found] == [codec.decode_bytes(forced.ids).decode()] * 2


def test_a_length_cut_and_a_sampled_generation(url: str) -> None:
    got = run(url, lambda c: c.capture(PLAIN, Mode.RAW, transport=Transport.GENERATE, logprobs=True))
    assert got.response_token_ids is not None and len(got.response_token_ids) == 6
    assert (got.finish_reason, got.matched_stop) == ("length", None)
    assert got.output_logprobs is not None and len(got.output_logprobs) == 6
    assert all(value <= 0 for value in got.output_logprobs)
    assert got.scripted_ids is None


def test_many_keep_their_order_and_one_bad_request_stays_one(url: str, codec: Codec) -> None:
    texts = [f"number {n}</think>{n}<|im_end|>" for n in range(12)]
    wanted = [
        CaptureRequest(FREE, Mode.REASONING, scripted=script(codec, text), sample_index=n)
        for n, text in enumerate(texts)
    ]
    bad = CaptureRequest(replace(PLAIN, sampling={"temperature": -1}), Mode.RAW)
    found = run(url, lambda c: c.capture_many([*wanted[:5], bad, *wanted[5:]]), concurrency=4)
    fault = found.pop(5)
    assert isinstance(fault, HttpStatusError) and fault.status == 400
    assert "temperature" in fault.why and fault.body
    assert [c.fields.content for c in captures(found)] == [str(n) for n in range(12)]
    assert [c.sample_index for c in captures(found)] == list(range(12))


def test_refused_before_anything_is_sent(url: str, codec: Codec) -> None:
    forced = script(codec, "x<|im_end|>")
    far = "http://192.0.2.1:30000"
    with pytest.raises(RequestRefused, match="loopback"):
        run(far, lambda c: c.capture(PLAIN, Mode.RAW, scripted=forced))
    with pytest.raises(RequestRefused, match="token id 5000000"):
        beyond = replace(forced, ids=(5_000_000,))
        run(url, lambda c: c.capture(PLAIN, Mode.RAW, scripted=beyond), facts=facts(url, vocab_size=3072))
    with pytest.raises(RequestRefused, match="tools mode"):
        run(url, lambda c: c.capture(PLAIN, Mode.TOOLS, transport=Transport.GENERATE))
    with pytest.raises(RequestRefused, match="http://"):
        run("127.0.0.1:30000", lambda c: c.capture(PLAIN, Mode.RAW))


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ServerGone) as caught:
            run(nowhere, lambda c: c.capture(PLAIN, Mode.RAW))
        assert "can't be reached" in caught.value.what and nowhere in caught.value.where
        with pytest.raises(ServerGone, match="can't be reached"):
            ServerCodec(nowhere).encode("x")


def test_a_server_too_slow_for_the_time_allowed(url: str) -> None:
    slow = replace(PLAIN, sampling={"max_tokens": 2000, "ignore_eos": True})
    with pytest.raises(ServerTimeout, match=r"0\.2 seconds"):
        run(url, lambda c: c.capture(slow, Mode.RAW), timeout=0.2)


def test_a_wrong_path_is_told_with_its_status(url: str) -> None:
    with pytest.raises(HttpStatusError, match="base URL") as caught:
        run(f"{url}/elsewhere", lambda c: c.capture(PLAIN, Mode.RAW))
    assert caught.value.status == 404


def test_the_base_url_may_end_in_v1(url: str) -> None:
    assert run(f"{url}/v1/", lambda c: c.render(PLAIN)) == run(url, lambda c: c.render(PLAIN))


# --- the server's tokenizer, asked over HTTP


def test_the_server_s_codec_knows_every_token_s_bytes(server_codec: ServerCodec, codec: Codec) -> None:
    assert codec.vocab_size is not None
    unseen, fragments = set(), 0
    with pytest.raises(UnseenBytes):  # one question for all, where the loop below would ask three thousand
        server_codec.token_bytes(range(codec.vocab_size))
    for token_id in range(codec.vocab_size):
        try:
            (ours,) = codec.token_bytes([token_id])
        except UndecodableToken:
            continue
        try:
            (theirs,) = server_codec.token_bytes([token_id])
        except UnseenBytes as error:
            assert "--tokenizer" in str(error)
            unseen.add(ours)
            continue
        assert theirs == ours
        fragments += b"\xef\xbf\xbd" in ours.decode("utf-8", "replace").encode()
    assert fragments > 100, "the vocabulary has tokens that are parts of characters"
    # The bytes that UTF-8 never has: no text can show which of them a token is.
    assert unseen == {bytes((byte,)) for byte in (0xC0, 0xC1, *range(0xF5, 0x100))}


def test_the_server_s_codec_encodes_as_the_tokenizer_does(server_codec: ServerCodec, codec: Codec) -> None:
    for text in ("", "Hi", " a\n\nb", "<think>x</think>", CALL, "👩‍👩‍👧 中文", "\u2028\x85", "<|im_end|>"):
        ids = codec.encode(text)
        assert server_codec.encode(text) == ids
        assert server_codec.decode_bytes(ids) == codec.decode_bytes(ids)
    for marker in ("<think>", "</think>", "<|im_end|>", "<|tool_call_begin|>"):
        assert server_codec.token_id(marker) == codec.token_id(marker) is not None
    assert server_codec.token_id("no such token at all") is None


def test_an_id_beyond_the_vocabulary_has_no_bytes(server_codec: ServerCodec, codec: Codec) -> None:
    known = codec.encode("Hi")
    with pytest.raises(UndecodableToken) as caught:
        server_codec.decode_bytes([*known, 2_000_000])
    assert (caught.value.index, caught.value.token_id) == (len(known), 2_000_000)
