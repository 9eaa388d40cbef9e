"""The frozen records that the stages hand each other; nothing else passes between them.

Place in the flow: the root. Imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

Json = Any
"""A decoded JSON value."""


class Mode(StrEnum):
    """Which parsers a request lets run: none, the reasoning parser, or both parsers."""

    RAW = "raw"
    REASONING = "reasoning"
    TOOLS = "tools"


class Transport(StrEnum):
    """How a capture was asked for: `/generate` (no parser in the way) or `/v1/chat/completions`."""

    GENERATE = "generate"
    CHAT = "chat"


class ThinkingMode(StrEnum):
    """What the prompt asks of the model: think first, answer at once, or think with earlier thinking kept."""

    THINKING = "thinking"
    INSTANT = "instant"
    PRESERVED = "preserved"


class Verdict(StrEnum):
    """What comparing the reconstruction with the captured ids showed; see `VERDICT_ORDER`."""

    CONTRADICTED = "contradicted"
    LOSSY = "lossy"
    NORMALIZED = "normalized"
    TEXT_EXACT = "text_exact"
    EXACT = "exact"
    UNPROVEN = "unproven"


VERDICT_ORDER: tuple[Verdict, ...] = (
    Verdict.CONTRADICTED,
    Verdict.UNPROVEN,
    Verdict.LOSSY,
    Verdict.NORMALIZED,
    Verdict.TEXT_EXACT,
    Verdict.EXACT,
)
"""Worst first."""


class SegmentKind(StrEnum):
    """The part of a response that a token belongs to."""

    OPENER = "opener"
    REASONING = "reasoning"
    CLOSER = "closer"
    CONTENT = "content"
    TOOL_SECTION = "tool_section"
    END = "end"


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages + tools + request parameters: what one generation is asked for.

    `messages` and `tools` are OpenAI-style JSON objects. `sampling` holds OpenAI names
    (`temperature`, `top_p`, `max_tokens`, `stop`, ...). `template_kwargs` goes to the chat template.
    """

    name: str
    messages: tuple[Mapping[str, Json], ...]
    tools: tuple[Mapping[str, Json], ...] | None = None
    sampling: Mapping[str, Json] = field(default_factory=dict)
    template_kwargs: Mapping[str, Json] = field(default_factory=dict)
    thinking_mode: ThinkingMode = ThinkingMode.THINKING
    conversation_id: str = ""
    turn_index: int = 0


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Which server answered, as it reports itself. Unknown strings are None, never guessed."""

    base_url: str
    model: str
    engine: str = "sglang"
    engine_version: str | None = None
    revision: str | None = None
    weight_version: str | None = None
    reasoning_parser: str | None = None
    tool_parser: str | None = None
    tokenizer_sha256: str | None = None
    chat_template_sha256: str | None = None
    vocab_size: int | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    speculative: str | None = None
    lora: str | None = None
    flags: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fields:
    """What a response hands out. `tool_calls` is the wire's own JSON text of the list, or None.

    None and "" differ on purpose: SGLang reports empty reasoning as null.
    """

    reasoning_content: str | None = None
    content: str | None = None
    tool_calls: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the engine reported them."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Capture:
    """One generation event as it came over the wire.

    `response_body` is the exact bytes of the HTTP body (an SSE stream as it was sent). `raw_text` is the
    text before any parser and only set where the wire had it. Token ids are the engine's own; the response
    ids include the end token. `matched_stop` is an end token's id, a stop string, or the engine's word for
    a fault. `scripted_ids` is what a scripted generation forced (None: sampled).
    """

    prompt: Prompt
    mode: Mode
    transport: Transport
    stream: bool
    server: ServerFacts
    request: Mapping[str, Json]
    response_body: bytes
    fields: Fields
    raw_text: str | None
    prompt_token_ids: tuple[int, ...] | None
    response_token_ids: tuple[int, ...] | None
    finish_reason: str | None
    matched_stop: int | str | None
    usage: Usage | None
    request_id: str | None
    created_at: datetime
    output_logprobs: tuple[float, ...] | None = None
    scripted_ids: tuple[int, ...] | None = None
    sample_index: int = 0


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of one capture; None where there is nothing to check it on."""

    captured: bool | None = None
    text: bool | None = None
    rebuilt: bool | None = None
    tokens: bool | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """One named way in which the fields fail to determine the tokens, and where.

    `name` is a key of `contracts.losses.LOSSES`. `token_index` counts response tokens from 0,
    `byte_offset` counts bytes of the raw text from 0.
    """

    name: str
    segment: SegmentKind
    token_index: int
    byte_offset: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the reconstruction first leaves the captured response.

    `token_index` indexes `response_token_ids`; `byte_offset` the raw text's bytes; `raw` and `rebuilt` are
    short excerpts from there on; ids are None past an end.
    """

    token_index: int
    byte_offset: int
    segment: SegmentKind
    raw: str
    rebuilt: str
    raw_id: int | None
    rebuilt_id: int | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the judge found for one response: claims, verdict, losses and the fields they were judged on."""

    claims: Claims
    verdict: Verdict
    losses: tuple[Loss, ...]
    reasoning_content: str | None
    content: str | None
    tool_calls: tuple[Mapping[str, Json], ...] | None
    divergence: Divergence | None
    finish_reason: str | None
    rebuilt_text: str | None
    raw_text: str | None
    segments: tuple[tuple[SegmentKind, int], ...] = ()
    """Run lengths over the response tokens: (segment, token count), in order."""


class Severity(StrEnum):
    """An error keeps a row out of training; a warning is told; a rate is counted over the set."""

    ERROR = "error"
    WARNING = "warning"
    RATE = "rate"


class Profile(StrEnum):
    """What the rows are for; it sets the rules' severities."""

    DRAFT = "draft"
    RL = "rl"
    SFT = "sft"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule. `row` is the 0-based row of the shard, None for a file or data-set finding."""

    rule: str
    severity: Severity
    shard: str
    row: int | None
    column: str | None
    message: str
    remedy: str
    sample_id: str | None = None
