"""SGLang's own parser classes offline, called as its chat endpoint calls them.

Place in the flow: beside the server, in front of the judge. Imports `contracts`; SGLang only when a parser is
first asked for (it brings torch, some seconds). What is mirrored here, with the line of
`sglang/srt/entrypoints/openai/serving_chat.py` 0.5.23 that it mirrors, is held to the real server by
tests/server/test_offline_agrees.py.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from contracts.errors import ShardgateError
from contracts.records import Fields, Json
from contracts.tokens import Codec, UndecodableToken


@dataclass(frozen=True, slots=True)
class Parsed:
    """What the server would hand out: fields, finish reason, matched stop, and a parser's own failure."""

    fields: Fields
    finish_reason: str | None
    matched_stop: int | str | None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class ParserSetup:
    """The parsers of one server and one request.

    `forced` is what the server derives from the request's template switch; `history_calls` counts the tool
    calls of earlier turns (Kimi's call ids go on from there).
    """

    reasoning_parser: str | None
    tool_parser: str | None
    tools: tuple[Mapping[str, Json], ...] | None
    forced: bool
    history_calls: int = 0


@lru_cache(maxsize=1)
def _sglang() -> SimpleNamespace:
    try:
        with warnings.catch_warnings():
            # On a CPU it warns of each quantisation that is not there.
            warnings.simplefilter("ignore")
            from sglang.srt.entrypoints.openai.protocol import Tool
            from sglang.srt.entrypoints.openai.serving_chat import (
                OpenAIServingChat,
                _incomplete_tool_call_indices,
            )
            from sglang.srt.function_call.function_call_parser import FunctionCallParser
            from sglang.srt.parser.reasoning_parser import ReasoningParser
            from sglang.utils import find_printable_text
    except ImportError as error:
        raise ShardgateError(
            what="SGLang's parsers can't be imported",
            where=error.name or "sglang",
            why=str(error),
            remedy="install the extra that has SGLang: pip install 'shardgate[cpu]', or [gpu] on a GPU box",
        ) from error
    import logging

    # The parsers log each odd output; an odd output is an outcome here, told by the judge.
    logging.getLogger("sglang").setLevel(logging.CRITICAL)
    return SimpleNamespace(
        Tool=Tool,
        ReasoningParser=ReasoningParser,
        FunctionCallParser=FunctionCallParser,
        serving=OpenAIServingChat,
        incomplete=_incomplete_tool_call_indices,
        printable=find_printable_text,
    )


@lru_cache(maxsize=64)
def _tools(text: str) -> list[Any]:
    try:
        return [_sglang().Tool.model_validate(tool) for tool in json.loads(text)]
    except ValueError as error:
        raise ShardgateError(
            what="the tools are no tool declarations",
            where="tools",
            why=" ".join(str(error).split())[:300],
            remedy='pass OpenAI-style ones: {"type": "function", "function": {"name": ..., ...}}',
        ) from error


def registered_parsers() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the reasoning and of the tool-call parsers that the installed SGLang registers."""
    sg = _sglang()
    return tuple(sg.ReasoningParser.DetectorMap), tuple(sg.FunctionCallParser.ToolCallParserEnum)


def trimmed(
    response_ids: Sequence[int], matched_stop: int | str | None, codec: Codec, setup: ParserSetup
) -> Sequence[int]:
    """Cut the matched end token, as the detokenizer does (`trim_matched_stop`).

    With gpt-oss's tool parser the end token of a call stays: it goes by that token's id, which is `<|call|>`
    (managers/detokenizer_manager.py line 218).
    """
    if isinstance(matched_stop, int) and response_ids and response_ids[-1] == matched_stop:
        if setup.tool_parser == "gpt-oss" and matched_stop == codec.token_id("<|call|>"):
            return response_ids
        return response_ids[:-1]
    return response_ids


def lossy_text(ids: Sequence[int], codec: Codec) -> str:
    """Decode as the server does: bytes that are no UTF-8 become U+FFFD, unknown ids become nothing."""
    try:
        raw = codec.decode_bytes(ids)
    except UndecodableToken:
        raw = b"".join(_bytes_or_nothing(i, codec) for i in ids)
    return raw.decode("utf-8", "replace")


def _bytes_or_nothing(token_id: int, codec: Codec) -> bytes:
    try:
        return codec.decode_bytes([token_id])
    except UndecodableToken:
        return b""


def _stop_string_cut(text: str, matched_stop: int | str | None) -> str:
    if isinstance(matched_stop, str) and matched_stop in text:
        return text[: text.index(matched_stop)]
    return text


def parse_whole(
    response_ids: Sequence[int],
    *,
    codec: Codec,
    setup: ParserSetup,
    finish_reason: str | None,
    matched_stop: int | str | None,
) -> Parsed:
    """Parse a finished response as the non-streaming endpoint does (`_build_chat_response`, line 2904 on)."""
    sg = _sglang()
    text = _stop_string_cut(
        lossy_text(trimmed(response_ids, matched_stop, codec, setup), codec), matched_stop
    )
    reasoning: str | None = None
    tools = _tool_list(setup)
    if setup.reasoning_parser:
        try:
            parser = sg.ReasoningParser(
                setup.reasoning_parser,
                stream_reasoning=False,
                force_reasoning=setup.forced,
                request=_request(setup),
                tool_call_parser_active=bool(tools),
            )
            reasoning, text = parser.parse_non_stream(text)
        except Exception as error:  # the server answers 500 to any of them
            return Parsed(Fields(), finish_reason, matched_stop, f"reasoning parser: {error!r}")
    calls = None
    if tools and setup.tool_parser:
        try:
            function_parser = sg.FunctionCallParser(tools, setup.tool_parser)
            if function_parser.has_tool_call(text):
                text, found = function_parser.parse_non_stream(text)
                if found:
                    calls = [_call(item, index, setup) for index, item in enumerate(found)]
                    if finish_reason == "stop":
                        finish_reason, matched_stop = "tool_calls", None
        except Exception as error:  # noqa: F841 - the server logs it and returns the text unparsed
            calls = None
        if calls is not None:
            try:
                json.dumps(calls, ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                # The response is serialised as UTF-8: a lone surrogate in arguments is an HTTP 500.
                return Parsed(Fields(), finish_reason, matched_stop, f"response not UTF-8: {error.reason}")
    fields = Fields(reasoning or None, text or "", _wire(calls))
    return Parsed(fields, finish_reason, matched_stop)


def _request(setup: ParserSetup) -> SimpleNamespace:
    """Return what the reasoning parser reads of the request: two look at the template switch themselves.

    Source: SGLang 0.5.23, `parser/reasoning_parser.py`, `ReasoningParser.__init__`.
    """
    reads = setup.reasoning_parser in ("granite_thinking_parser", "iquest_q1")
    switch = {"enable_thinking": False} if reads else {}
    return SimpleNamespace(chat_template_kwargs={} if setup.forced else switch)


def _tool_list(setup: ParserSetup) -> list[Any]:
    if not setup.tool_parser or not setup.tools:
        return []
    return _tools(json.dumps(setup.tools, sort_keys=True, default=dict))


def _call(item: Any, index: int, setup: ParserSetup) -> dict[str, Json]:
    """Build one call as `_process_tool_calls` does; Kimi's ids count on from the history (line 3129)."""
    if setup.tool_parser == "kimi_k2":
        call_id = f"functions.{item.name}:{setup.history_calls + item.tool_index}"
    else:
        call_id = f"call_{index:024d}"  # the server draws a random one
    return {
        "id": call_id,
        "index": index,
        "type": "function",
        "function": {"name": item.name, "arguments": item.parameters},
    }


def _wire(calls: list[dict[str, Json]] | None) -> str | None:
    return None if calls is None else json.dumps(calls, ensure_ascii=False)


def text_deltas(response_ids: Sequence[int], chunks: Sequence[int], codec: Codec) -> Iterator[str]:
    """Detokenise group by group as the detokenizer does: text that may change is held back.

    Groups past the ids' end are empty; ids past the groups come in one last group.
    """
    printable = _sglang().printable
    sent, at = 0, 0
    groups = [*chunks, len(response_ids)]
    for size in groups:
        if at >= len(response_ids):
            return
        at = min(len(response_ids), at + max(1, size))
        text = lossy_text(response_ids[:at], codec)
        if at < len(response_ids) and text.endswith("\ufffd"):
            text = text[:sent] + printable(text[sent:])
        yield text[sent:]
        sent = max(sent, len(text))


def parse_stream(
    response_ids: Sequence[int],
    chunks: Sequence[int],
    *,
    codec: Codec,
    setup: ParserSetup,
    finish_reason: str | None,
    matched_stop: int | str | None,
) -> Parsed:
    """Parse a response as it streams, `chunks` ids at a time (`_generate_stream_content`, line 911 on)."""
    sg = _sglang()
    tools = _tool_list(setup)
    reasoning_parser = None
    if setup.reasoning_parser:
        reasoning_parser = sg.ReasoningParser(
            setup.reasoning_parser, True, setup.forced, _request(setup), tool_call_parser_active=bool(tools)
        )
    tool_parser = sg.FunctionCallParser(tools, setup.tool_parser) if tools else None
    reasoning: list[str] = []
    content: list[str] = []
    calls: dict[int, dict[str, Json]] = {}
    deltas = list(text_deltas(trimmed(response_ids, matched_stop, codec, setup), chunks, codec)) or [""]
    try:
        for number, delta in enumerate(deltas):
            last = number == len(deltas) - 1
            if last and isinstance(matched_stop, str):
                whole = _stop_string_cut("".join(deltas), matched_stop)
                delta = whole[len("".join(deltas[:-1])) :]
            if reasoning_parser is not None:
                thought, delta = reasoning_parser.parse_stream_chunk(delta)
                if last:
                    more, rest = reasoning_parser.parse_stream_end()
                    thought, delta = (thought or "") + (more or ""), (delta or "") + (rest or "")
                reasoning.append(thought or "")
            if tool_parser is None:
                content.append(delta or "")
                continue
            normal, items = tool_parser.parse_stream_chunk(delta)
            if last:
                end_text, end_items = tool_parser.parse_stream_end()
                normal, items = (normal or "") + end_text, [*items, *end_items]
            content.append(normal or "")
            for item in items:
                _merge(calls, item, setup)
        if tool_parser is not None:
            _unstreamed(calls, tool_parser)
        # Each event is serialised as UTF-8.
        json.dumps([*calls.values()], ensure_ascii=False).encode()
    except Exception as error:  # the server breaks the stream off with an error event
        return Parsed(Fields(), finish_reason, matched_stop, f"stream: {error!r}")
    if tool_parser is not None and calls and finish_reason == "stop" and not sg.incomplete(tool_parser):
        finish_reason = "tool_calls"
    ordered = [calls[key] for key in sorted(calls)] if calls else None
    fields = Fields("".join(reasoning) or None, "".join(content), _wire(ordered))
    return Parsed(fields, finish_reason, matched_stop)


def _merge(calls: dict[int, dict[str, Json]], item: Any, setup: ParserSetup) -> None:
    """Assemble deltas as an OpenAI client does: by index, a name opens a call, arguments are appended."""
    known = calls.get(item.tool_index)
    if known is None:
        made = _call(SimpleNamespace(name=item.name, parameters="", tool_index=item.tool_index), 0, setup) | {
            "index": item.tool_index
        }
        # A delta of a call that no name opened has neither name nor id.
        known = calls[item.tool_index] = made if item.name else made | {"id": None}
    elif item.name:
        known["function"]["name"] = item.name
    known["function"]["arguments"] += item.parameters or ""


def _unstreamed(calls: dict[int, dict[str, Json]], parser: Any) -> None:
    """Append what `_check_for_unstreamed_tool_args` sends after the last delta."""
    content = {"meta_info": {"id": ""}}
    request = SimpleNamespace(model="")
    event = _sglang().serving._check_for_unstreamed_tool_args(None, parser, content, request, 0, created=0)
    if not event:
        return
    delta = json.loads(event.removeprefix("data: "))["choices"][0]["delta"]["tool_calls"][0]
    if delta["index"] in calls:
        calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
