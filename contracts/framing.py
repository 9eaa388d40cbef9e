"""What is known of a response besides its fields and ids: the format, the prompt's tail, the end.

Place in the flow: input of the rebuilder and the judge. Imports formats, records and tokens of `contracts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.formats import Format
from contracts.records import Json, Mode, ThinkingMode
from contracts.tokens import Codec, UndecodableToken

PROMPT_TAIL = 16
"""How many prompt tokens are looked at for the prefilled think markers."""


@dataclass(frozen=True, slots=True)
class Framing:
    """The request's side of a response: everything the rebuilder may use besides the fields.

    `starts_thinking` says whether the response begins inside the reasoning; None where the prompt is
    unknown and the response must show it itself. `opener_generated` is the policy for a response with
    reasoning: whether the model wrote the opener itself. `forced` tells whether the server's reasoning
    parser starts inside the reasoning. `end_text` is the text of the end token or stop string that the
    finish reason implies ("" for none); `end_in_text` whether the served text still holds it (raw mode).
    `constrained` marks a generation bent by a grammar or the like.
    """

    format: Format
    mode: Mode
    starts_thinking: bool | None
    opener_generated: bool
    forced: bool
    reasoning_parsed: bool
    tools_parsed: bool
    end_text: str
    end_in_text: bool
    stop_string: bool = False
    constrained: bool = False


def prompt_tail(fmt: Format, prompt_ids: Sequence[int] | None, codec: Codec | None) -> ThinkingMode | None:
    """Read from the prompt's last tokens whether it opened the thinking, closed it, or did neither (None)."""
    if codec is None or prompt_ids is None or len(prompt_ids) == 0 or not fmt.thinks:
        return None
    try:
        text = codec.decode_bytes(prompt_ids[-PROMPT_TAIL:]).decode("utf-8", "replace").rstrip()
    except UndecodableToken:
        return None
    if text.endswith(fmt.opener):
        return ThinkingMode.THINKING
    if text.endswith(fmt.closer):
        return ThinkingMode.INSTANT
    return None


def end_text_for(
    fmt: Format, finish_reason: str | None, matched_stop: int | str | None, codec: Codec | None
) -> tuple[str, bool]:
    """Return the text that closed the response by its finish reason, and whether it is a stop string.

    An end token's id names its own text; without one (tool mode reports none) the format's usual end token
    stands in. A cut or an abort has no end.
    """
    if finish_reason not in ("stop", "tool_calls"):
        return "", False
    if isinstance(matched_stop, str):
        return matched_stop, True
    if matched_stop is not None and codec is not None:
        try:
            return codec.decode_bytes([matched_stop]).decode("utf-8", "replace"), False
        except UndecodableToken:
            return "", False
    if finish_reason == "tool_calls" and fmt.call_end:
        return fmt.call_end, False
    return fmt.end_tokens[0], False


def framing_for(
    fmt: Format,
    *,
    codec: Codec | None,
    mode: Mode,
    prompt_ids: Sequence[int] | None,
    finish_reason: str | None,
    matched_stop: int | str | None,
    thinking_mode: ThinkingMode | None = None,
    reasoning_parsed: bool = True,
    tools_parsed: bool | None = None,
    constrained: bool = False,
) -> Framing:
    """Build the framing of one response from its request.

    `thinking_mode` is what the request asked for (None: the format's default); the prompt's tail,
    where known, says what the prompt really did. `codec` may be None where there are no ids to read.
    """
    tail = prompt_tail(fmt, prompt_ids, codec)
    asked = thinking_mode or fmt.default_mode
    asked_instant = asked is ThinkingMode.INSTANT
    starts: bool | None
    if tail is not None:
        starts = tail is ThinkingMode.THINKING
        # After a closed prompt a parser that is forced all the same reports the answer as reasoning.
        generated = tail is ThinkingMode.INSTANT and asked_instant
    elif prompt_ids is not None and len(prompt_ids) > 0:
        starts, generated = False, True
    else:
        prefilled = fmt.opener_prefilled and not asked_instant
        starts = False if asked_instant else (True if prefilled else None)
        generated = not prefilled
    end, is_string = end_text_for(fmt, finish_reason, matched_stop, codec)
    return Framing(
        format=fmt,
        mode=mode,
        starts_thinking=starts,
        opener_generated=generated,
        forced=fmt.forced(asked),
        reasoning_parsed=reasoning_parsed and mode is not Mode.RAW,
        tools_parsed=(mode is Mode.TOOLS if tools_parsed is None else tools_parsed) and fmt.tools is not None,
        end_text=end,
        end_in_text=mode is Mode.RAW,
        stop_string=is_string,
        constrained=constrained,
    )


def request_framing(
    fmt: Format,
    *,
    codec: Codec,
    mode: Mode,
    prompt_ids: Sequence[int] | None,
    finish_reason: str | None,
    matched_stop: int | str | None,
    template_kwargs: Mapping[str, Json],
    reasoning_parser: str | None,
    tool_parser: str | None,
    tools: bool,
    constrained: bool,
) -> Framing:
    """Build the framing from a request as it was recorded: a capture's, or a shard row's.

    What the request asked of the thinking is its template switch, the one thing that the server's reasoning
    parser goes by. `tools` says whether the request declared any.
    """
    return framing_for(
        fmt,
        codec=codec,
        mode=mode,
        prompt_ids=prompt_ids,
        finish_reason=finish_reason,
        matched_stop=matched_stop,
        thinking_mode=fmt.asked(template_kwargs),
        reasoning_parsed=reasoning_parser is not None,
        tools_parsed=mode is Mode.TOOLS and tool_parser is not None and tools,
        constrained=constrained,
    )
