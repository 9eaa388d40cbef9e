"""One stream, judged offline: token ids in, judgement out, through SGLang's own parsers.

Place in the flow: the judge's public call. Imports `contracts` and `harness.parsers`; SGLang when called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.errors import ShardgateError
from contracts.formats import Format, format_for, format_of_markers
from contracts.framing import framing_for, prompt_tail
from contracts.judgement import judge_fields
from contracts.records import Fields, Json, Judgement, Loss, Mode, SegmentKind, ThinkingMode
from contracts.tokens import Codec, load_codec
from harness.parsers import Parsed, ParserSetup, lossy_text, parse_stream, parse_whole


def judge(
    response_ids: Sequence[int],
    *,
    tokenizer: Any,
    reasoning_parser: str | None,
    tool_parser: str | None,
    tools: Sequence[Mapping[str, Json]] | None = None,
    prompt_ids: Sequence[int] | None = None,
    finish_reason: str = "stop",
    chunks: Sequence[int] | None = None,
    matched_stop: int | str | None = None,
    thinking_mode: ThinkingMode | None = None,
    history_calls: int = 0,
    mode: Mode | None = None,
    constrained: bool = False,
) -> Judgement:
    """Judge one response as a server with these parsers would hand it out. Needs the SGLang extra.

    Args:
        response_ids: int[T], the engine's output ids, end token included.
        tokenizer: a tokenizer folder, a `tokenizer.json`, or a loaded tokenizer; must be the model's own.
        reasoning_parser, tool_parser: SGLang's names; None: the server was booted without it.
        tools: OpenAI-style tool declarations of the request; None turns tool parsing off.
        prompt_ids: int[P]; its tail tells whether the template opened the thinking. Without it the format's
            own policy stands in.
        finish_reason: the engine's (`stop`, `length`, `abort`); `tool_calls` is read as `stop`.
        chunks: token counts of the stream's deltas; None: not streamed.
        matched_stop: what the response says ended it, an end token's id or a stop string. Without it the
            format's usual end token is the framing's policy, and another one is a loss.
        thinking_mode: what the request's template switch asked for, where the prompt is not to decide it.
        history_calls: tool calls of earlier turns (Kimi's call ids count on from there).
        mode: `raw` judges the unparsed response; by default the mode that the parsers make.
        constrained: whether a grammar or the like forced the output's form.

    Returns:
        The judgement: claims, verdict, named losses, the fields, the first divergence.

    Raises:
        ShardgateError: unknown parser names, an unreadable tokenizer, ids or chunks that are no integers,
            tools that are no declarations, or SGLang is not installed.
    """
    ids = _integers("response_ids", response_ids)
    prompt_ids = None if prompt_ids is None else _integers("prompt_ids", prompt_ids)
    chunks = None if chunks is None else _integers("chunks", chunks)
    codec = load_codec(tokenizer)
    fmt = _format(reasoning_parser, tool_parser, codec)
    reason = "stop" if finish_reason == "tool_calls" else finish_reason
    matched = _matched(ids, fmt, codec, reason) if matched_stop is None else matched_stop
    tail = prompt_tail(fmt, prompt_ids, codec)
    asked = ThinkingMode(thinking_mode or tail or fmt.default_mode)
    which = Mode(mode) if mode else (Mode.TOOLS if tool_parser and tools else Mode.REASONING)
    setup = ParserSetup(
        reasoning_parser=None if which is Mode.RAW else reasoning_parser,
        tool_parser=None if which is Mode.RAW else tool_parser,
        tools=tuple(tools) if tools else None,
        forced=fmt.forced(asked),
        history_calls=history_calls,
    )
    parsed, extra = _run(ids, codec, setup, reason, matched, chunks, which)
    framing = framing_for(
        fmt,
        codec=codec,
        mode=which,
        prompt_ids=prompt_ids,
        finish_reason=parsed.finish_reason,
        # Taken from the ids, the matched stop would be a framing fact that no field tells.
        matched_stop=matched_stop,
        thinking_mode=asked,
        constrained=constrained,
        reasoning_parsed=reasoning_parser is not None,
        tools_parsed=bool(setup.tool_parser and setup.tools),
    )
    return judge_fields(
        ids,
        parsed.fields,
        codec=codec,
        framing=framing,
        finish_reason=parsed.finish_reason,
        matched_stop=parsed.matched_stop,
        extra=extra,
    )


def _integers(name: str, values: Sequence[int]) -> list[int]:
    out: list[int] = []
    for value in values:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ShardgateError(
                what=f"{name} holds something that is no integer",
                where=f"{name}[{len(out)}]",
                why=f"it is {value!r}",
                remedy="pass a sequence of token ids, or of counts for chunks",
            )
        out.append(value.__index__())
    return out


def _format(reasoning_parser: str | None, tool_parser: str | None, codec: Codec) -> Format:
    named = format_for(reasoning_parser, tool_parser)
    if named is not None:
        return named
    found = format_of_markers(codec.token_id)
    if found is None:
        raise ShardgateError(
            what="the format can't be told",
            why="neither parser is named and the tokenizer has no known format's markers",
            remedy="name the reasoning parser or the tool-call parser that belongs to the model",
        )
    return found


def _matched(ids: list[int], fmt: Format, codec: Codec, reason: str) -> int | None:
    if reason != "stop" or not ids:
        return None
    ends = {codec.token_id(text) for text in fmt.end_tokens}
    return ids[-1] if ids[-1] in ends else None


def _run(
    ids: list[int],
    codec: Codec,
    setup: ParserSetup,
    reason: str,
    matched: int | str | None,
    chunks: Sequence[int] | None,
    mode: Mode,
) -> tuple[Parsed, tuple[Loss, ...]]:
    if mode is Mode.RAW:
        return Parsed(Fields(None, lossy_text(ids, codec), None), reason, matched), ()
    whole = parse_whole(ids, codec=codec, setup=setup, finish_reason=reason, matched_stop=matched)
    if chunks is None:
        return whole, _failure(whole)
    streamed = parse_stream(ids, chunks, codec=codec, setup=setup, finish_reason=reason, matched_stop=matched)
    extra = _failure(streamed)
    if not extra and streamed.fields != whole.fields:
        extra = (Loss("stream-differs", _where(streamed.fields, whole.fields), 0, 0),)
    return streamed, extra


def _failure(parsed: Parsed) -> tuple[Loss, ...]:
    if parsed.failure is None:
        return ()
    return (Loss("parser-failed", SegmentKind.TOOL_SECTION, 0, 0, parsed.failure[:200]),)


def _where(a: Fields, b: Fields) -> SegmentKind:
    if a.reasoning_content != b.reasoning_content:
        return SegmentKind.REASONING
    return SegmentKind.CONTENT if a.content != b.content else SegmentKind.TOOL_SECTION
