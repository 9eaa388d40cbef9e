"""What response bodies are read as: exact fields, and named faults. Imports `harness.wire` and below."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sse import SseEvent, SseSplitter, sse_events
from harness.wire import WireResponse, parse_chat, parse_chat_stream, parse_generate, parse_generate_stream
from harness.wire_errors import ClientError, HttpStatusError, MalformedResponse
from harness.wire_json import compact_json, error_message, json_span

PARSERS = (parse_chat, parse_chat_stream, parse_generate, parse_generate_stream)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def chat(message: dict[str, Any], **choice: Any) -> bytes:
    """A chat answer in SGLang 0.5.23's shape around one message."""
    body = {
        "id": "r1",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "matched_stop": 2, **choice}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "reasoning_tokens": 1},
    }
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")


def sse(*events: Any, done: bool = True, end: str = "\n\n") -> bytes:
    """A stream of JSON events as SGLang frames them."""
    parts = [f"data: {json.dumps(event)}{end}" for event in events]
    return "".join([*parts, f"data: [DONE]{end}" if done else ""]).encode()


def delta(body: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {"id": "r1", "choices": [{"index": 0, "delta": body, "finish_reason": None, **choice}]}


# --- whole chat answers


def test_chat_fields_ids_finish_and_usage() -> None:
    body = chat(
        {"role": "assistant", "content": "C", "reasoning_content": "R"},
        prompt_token_ids=[5, 6, 7],
        response_token_ids=[8, 2],
    )
    got = parse_chat(body)
    assert (got.fields.reasoning_content, got.fields.content, got.fields.tool_calls) == ("R", "C", None)
    assert (got.prompt_token_ids, got.response_token_ids) == ((5, 6, 7), (8, 2))
    assert (got.finish_reason, got.matched_stop, got.request_id) == ("stop", 2, "r1")
    assert got.usage is not None
    assert (got.usage.prompt_tokens, got.usage.completion_tokens, got.usage.reasoning_tokens) == (3, 2, 1)
    assert got.text is None


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"response_token_ids": [1]}, (1,)),
        ({"token_ids": [1, 2]}, (1, 2)),
        ({"response_token_ids": []}, ()),
        ({}, None),
        ({"response_token_ids": None}, None),
    ],
)
def test_ids_under_each_version_s_name(extra: dict[str, Any], expected: tuple[int, ...] | None) -> None:
    assert parse_chat(chat({"content": ""}, **extra)).response_token_ids == expected


def test_null_and_empty_text_stay_apart() -> None:
    got = parse_chat(chat({"content": "", "reasoning_content": None}))
    assert got.fields.content == "" and got.fields.reasoning_content is None


@pytest.mark.parametrize(
    "text", ["\u2028\u2029\x85", "\0", "\ud800", "👩‍👩‍👧 中文", "</think><|im_end|>", "\r\n"]
)
def test_odd_text_comes_through_unchanged(text: str) -> None:
    assert parse_chat(chat({"content": text})).fields.content == text
    escaped = json.dumps(json.loads(chat({"content": text}).decode("utf-8", "surrogatepass"))).encode()
    assert parse_chat(escaped).fields.content == text


def test_tool_calls_are_cut_out_as_they_were_sent() -> None:
    sent = '[ {"id":"functions.f:0", "function":{"name":"f","arguments":"{\\"x\\": 1e3}"} , "n":1.0e+2} ]'
    body = chat({"content": "", "tool_calls": ["HERE"]}).replace(b'["HERE"]', sent.encode())
    assert parse_chat(body).fields.tool_calls == sent


def test_the_last_of_two_equal_keys_counts_for_the_text_too() -> None:
    body = b'{"choices":[{"message":{"tool_calls":[1],"tool_calls":[2]}}]}'
    assert parse_chat(body).fields.tool_calls == "[2]"


# --- streams


def test_stream_is_put_together_from_its_deltas() -> None:
    body = sse(
        delta({"role": "assistant", "content": ""}),
        delta({"reasoning_content": "Th"}),
        delta({"reasoning_content": "ink"}),
        delta({"content": "An"}),
        delta({"content": "swer"}),
        delta({}, finish_reason="stop", matched_stop=2),
        {"id": "r1", "choices": [], "sglext": {"input_ids": [4], "output_ids": [[7, 8, 2]]}},
        {"id": "r1", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 3}},
    )
    got = parse_chat_stream(body)
    assert (got.fields.reasoning_content, got.fields.content) == ("Think", "Answer")
    assert (got.prompt_token_ids, got.response_token_ids) == ((4,), (7, 8, 2))
    assert (got.finish_reason, got.matched_stop) == ("stop", 2)
    assert got.usage is not None and got.usage.completion_tokens == 3


def test_streamed_calls_are_joined_by_index() -> None:
    def call(index: int, **function: Any) -> dict[str, Any]:
        return {"index": index, "id": function.pop("id", None), "type": "function", "function": function}

    body = sse(
        delta({"tool_calls": [call(0, id="functions.f:0", name="f", arguments="")]}),
        delta({"tool_calls": [call(0, arguments='{"é": ')]}),
        delta(
            {"tool_calls": [call(0, arguments="1}"), call(1, id="functions.g:1", name="g", arguments="{}")]}
        ),
        delta({}, finish_reason="tool_calls"),
    )
    got = parse_chat_stream(body)
    assert got.fields.tool_calls == (
        '[{"id":"functions.f:0","index":0,"type":"function",'
        '"function":{"name":"f","arguments":"{\\"é\\": 1}"}}'
        ',{"id":"functions.g:1","index":1,"type":"function","function":{"name":"g","arguments":"{}"}}]'
    )
    assert got.fields.content is None


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\r\r"])
def test_line_ends_comments_and_other_fields(end: str) -> None:
    body = (
        b"\xef\xbb\xbf: keep-alive"
        + end.encode()
        + b"retry: 5\nid: 1\n"
        + sse(delta({"content": "x"}), end=end)
    )
    assert parse_chat_stream(body).fields.content == "x"


def test_named_events_and_many_data_lines() -> None:
    events = sse_events(b"event: sglext_ids\ndata: {\ndata:}\n\ndata:x\n\n")
    assert [(e.event, e.data) for e in events] == [("sglext_ids", b"{\n}"), ("message", b"x")]


def test_a_line_separator_in_the_text_does_not_end_a_line() -> None:
    body = ("data: " + json.dumps(delta({"content": "a\u2028b\x85c"}), ensure_ascii=False) + "\n\n").encode()
    assert parse_chat_stream(body + b"data: [DONE]\n\n").fields.content == "a\u2028b\x85c"


@pytest.mark.parametrize("cut", [1, 20, 60, -3, -14])
def test_a_stream_cut_anywhere_is_told(cut: int) -> None:
    whole = sse(delta({"content": "some text"}), delta({}, finish_reason="stop"))
    assert parse_chat_stream(whole).finish_reason == "stop"
    with pytest.raises(MalformedResponse) as caught:
        parse_chat_stream(whole[:cut])
    assert caught.value.body == whole[:cut]
    assert caught.value.remedy


def test_an_error_event_carries_its_code_and_message() -> None:
    body = sse(
        delta({"content": "x"}), {"error": {"object": "error", "message": "out of memory", "code": 503}}
    )
    with pytest.raises(HttpStatusError, match="out of memory") as caught:
        parse_chat_stream(body)
    assert caught.value.status == 503
    with pytest.raises(HttpStatusError):
        parse_chat_stream(body.removesuffix(b"data: [DONE]\n\n"))


# --- /generate


def generated(text: str, ids: list[int], completion: int, finish: Any = None) -> dict[str, Any]:
    meta = {"id": "g", "prompt_tokens": 2, "completion_tokens": completion, "finish_reason": finish}
    return {"text": text, "output_ids": ids, "meta_info": meta}


def test_generate_gives_text_ids_and_the_matched_stop() -> None:
    data = generated("hi<|im_end|>", [9, 2], 2, {"type": "stop", "matched": 2})
    data["meta_info"]["output_token_logprobs"] = [[-0.5, 9, None], [0, 2, None]]
    got = parse_generate(json.dumps(data).encode())
    assert (got.text, got.response_token_ids) == ("hi<|im_end|>", (9, 2))
    assert (got.finish_reason, got.matched_stop, got.output_logprobs) == ("stop", 2, (-0.5, 0.0))


@pytest.mark.parametrize(
    "events",
    [
        [("a", [1], 1), ("ab", [1, 2], 2), ("abc", [1, 2, 3], 3)],
        [("a", [1], 1), ("b", [2], 2), ("c", [3], 3)],
        [("ab", [1, 2], 2), ("c", [3], 3)],
        [("abc", [1, 2, 3], 3)],
    ],
)
def test_generate_streams_so_far_or_by_increments(events: list[tuple[str, list[int], int]]) -> None:
    last = len(events) - 1
    stop = {"type": "length", "length": 3}
    body = sse(*(generated(*event, stop if n == last else None) for n, event in enumerate(events)))
    got = parse_generate_stream(body)
    assert (got.text, got.response_token_ids, got.finish_reason) == ("abc", (1, 2, 3), "length")


def test_generate_stream_that_lost_an_event_is_told() -> None:
    with pytest.raises(MalformedResponse, match="3 ids"):
        parse_generate_stream(sse(generated("a", [1], 1), generated("c", [3], 3)))


# --- what is not an answer


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"<html><body>502 Bad Gateway</body></html>", "502 Bad Gateway"),
        (b'{"choices": [', "not JSON"),
        (b"[1]", "JSON object"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b'{"choices": null}', "choices"),
        (b'{"choices": []}', "choices"),
        (b'{"choices": [{"message": null}]}', "message"),
        (b'{"choices": [{"message": {"content": 3}}]}', "content"),
        (b'{"choices": [{"message": {"tool_calls": "x"}}]}', "tool_calls"),
        (b'{"choices": [{"message": {}, "response_token_ids": [1, true]}]}', "response_token_ids"),
        (b'{"choices": [{"message": {}, "response_token_ids": [1.5]}]}', "response_token_ids"),
        (b'{"choices": [{"message": {}, "matched_stop": []}]}', "matched_stop"),
    ],
)
def test_a_wrong_body_is_named(body: bytes, words: str) -> None:
    with pytest.raises(MalformedResponse) as caught:
        parse_chat(body)
    assert words in str(caught.value)
    assert caught.value.body == body


@pytest.mark.parametrize(
    "body",
    [
        {"object": "error", "message": "prompt too long", "type": "BadRequestError", "code": 400},
        {"error": {"message": "prompt too long", "code": 400}},
        {"error": "prompt too long"},
    ],
)
def test_an_error_object_with_status_200_is_still_an_error(body: dict[str, Any]) -> None:
    for parse in (parse_chat, parse_generate):
        with pytest.raises(HttpStatusError, match="prompt too long"):
            parse(json.dumps(body).encode())
    assert error_message(body) == "prompt too long"


# --- properties


LINES = st.sampled_from(
    [b"data:a", b"data: b", b"data", b": c", b"event: e", b"id:1", b"", b"x:\xe2\x80\xa8"]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
BODIES = st.lists(st.tuples(LINES, ENDS).map(b"".join), max_size=6).map(b"".join) | st.binary(max_size=40)


def fed(*chunks: bytes) -> tuple[SseEvent, ...]:
    splitter = SseSplitter()
    return (*(event for chunk in chunks for event in splitter.feed(chunk)), *splitter.close())


@given(BODIES)
def test_any_chunking_gives_the_same_events(body: bytes) -> None:
    whole = sse_events(body)
    assert fed(*(body[n : n + 1] for n in range(len(body)))) == whole
    for cut in range(len(body) + 1):
        assert fed(body[:cut], b"", body[cut:]) == whole


@given(st.lists(st.text().filter(lambda t: "\n" not in t and "\r" not in t), max_size=5))
def test_events_come_back_as_they_were_framed(texts: list[str]) -> None:
    body = "".join(f"data: {text}\r\n\r\n" for text in texts).encode("utf-8", "surrogatepass")
    assert [e.data.decode("utf-8", "surrogatepass") for e in sse_events(body)] == texts


@given(JSON_VALUES, JSON_VALUES, st.sampled_from([None, 1]), st.booleans())
def test_a_value_is_found_as_the_text_that_was_sent(
    value: Any, other: Any, indent: int | None, ascii_only: bool
) -> None:
    written = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    rest = json.dumps(other, indent=indent, ensure_ascii=ascii_only)
    text = f' {{"a": {rest}, "b" :[{rest} ,{{"c":{rest}, "d" : {written}\n}} , {rest}]\t, "e":{rest}}} '
    span = json_span(text, ("b", 1, "d"))
    assert span is not None and text[slice(*span)] == written
    assert json_span(text, ("b", 9)) is None
    assert json_span(text, ("missing",)) is None
    assert json_span(text, ("b", "d")) is None


@given(JSON_VALUES)
def test_tool_calls_text_means_what_the_body_says(calls: Any) -> None:
    body = chat({"content": "", "tool_calls": [calls]})
    text = parse_chat(body).fields.tool_calls
    assert text is not None and text in body.decode("utf-8", "surrogatepass")
    assert json.loads(text) == [calls]


NAMES = st.sampled_from(
    [
        "choices", "message", "delta", "content", "reasoning_content", "tool_calls", "function", "index",
        "usage", "meta_info", "output_ids", "text", "finish_reason", "type", "matched", "sglext", "logprobs",
        "object", "message", "output_token_logprobs", "completion_tokens", "prompt_tokens", "input_ids",
        "code", "error",
    ]
)  # fmt: skip
SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=20,
)


@given(st.dictionaries(NAMES, SHAPES, max_size=6), st.sampled_from(PARSERS))
def test_any_shape_gives_a_response_or_a_named_fault(shape: dict[str, Any], parse: Any) -> None:
    body = sse(shape) if parse in (parse_chat_stream, parse_generate_stream) else compact_json(shape).encode()
    try:
        got = parse(body)
    except ClientError as error:
        assert error.what and error.remedy
    else:
        assert isinstance(got, WireResponse)


@given(st.binary(max_size=120), st.sampled_from(PARSERS))
def test_any_bytes_give_a_named_fault(body: bytes, parse: Any) -> None:
    with pytest.raises(ClientError):
        parse(b"\x01" + body)
