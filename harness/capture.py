"""A capture judged: its format, its framing, its fields derived where no parser ran.

Place in the flow: after the client, before shard and report. Imports `contracts`; `harness.parsers` (SGLang)
only where fields are derived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from contracts.errors import ShardgateError
from contracts.formats import Format, format_for, format_of_markers
from contracts.framing import request_framing
from contracts.judgement import judge_fields
from contracts.records import Capture, Json, Judgement, Loss, Mode, SegmentKind, ServerFacts
from contracts.sampling import GRAMMARS, bent_by
from contracts.tokens import Codec


def constraint_of(capture: Capture) -> dict[str, Json]:
    """Return what bent the sampling of a capture, by request parameter; empty for a plain sample."""
    return bent_by(capture.prompt.sampling, tools=bool(capture.prompt.tools))


def served_format(facts: ServerFacts, codec: Codec) -> Format | None:
    """Return the format that a server serves: by its parsers, else by the markers of its vocabulary."""
    try:
        named = format_for(facts.reasoning_parser, facts.tool_parser)
    except ShardgateError:
        named = None
    if named is not None:
        return named
    return format_of_markers(codec.token_id)


def judge_capture(capture: Capture, *, codec: Codec, fmt: Format, extra: Sequence[Loss] = ()) -> Judgement:
    """Judge a capture on its own evidence: its fields, its ids, its served text, its script."""
    framing = request_framing(
        fmt,
        codec=codec,
        mode=capture.mode,
        prompt_ids=capture.prompt_token_ids,
        finish_reason=capture.finish_reason,
        matched_stop=capture.matched_stop,
        template_kwargs=capture.prompt.template_kwargs,
        reasoning_parser=capture.server.reasoning_parser,
        tool_parser=capture.server.tool_parser,
        tools=bool(capture.prompt.tools),
        constrained=any(name in constraint_of(capture) for name in GRAMMARS),
    )
    return judge_fields(
        capture.response_token_ids,
        capture.fields,
        codec=codec,
        framing=framing,
        finish_reason=capture.finish_reason,
        matched_stop=capture.matched_stop,
        raw_text=capture.raw_text,
        scripted_ids=capture.scripted_ids,
        extra=extra,
    )


def parsed_mode(capture: Capture) -> Mode:
    """Return the mode in which an application would have asked for this prompt."""
    return Mode.TOOLS if capture.prompt.tools else Mode.REASONING


def derive_fields(capture: Capture, *, codec: Codec, fmt: Format) -> tuple[Capture, tuple[Loss, ...]]:
    """Give a `/generate` capture the fields that the format's own parsers make of its ids.

    Returns the capture in its parsed mode, and a loss where the parser failed. Needs the SGLang extra.
    """
    from harness.parsers import ParserSetup, parse_whole

    mode = parsed_mode(capture)
    parsers = replace(
        capture.server, reasoning_parser=fmt.reasoning_parser or None, tool_parser=fmt.tool_parser
    )
    calls = sum(len(message.get("tool_calls") or ()) for message in capture.prompt.messages)
    setup = ParserSetup(
        reasoning_parser=parsers.reasoning_parser,
        tool_parser=parsers.tool_parser if mode is Mode.TOOLS else None,
        tools=capture.prompt.tools,
        forced=fmt.forced(fmt.asked(capture.prompt.template_kwargs)),
        history_calls=calls,
    )
    parsed = parse_whole(
        capture.response_token_ids or (),
        codec=codec,
        setup=setup,
        finish_reason=capture.finish_reason,
        matched_stop=capture.matched_stop,
    )
    derived = replace(capture, mode=mode, fields=parsed.fields, server=parsers)
    if parsed.failure is None:
        return derived, ()
    return derived, (Loss("parser-failed", SegmentKind.TOOL_SECTION, 0, 0, parsed.failure[:200]),)
