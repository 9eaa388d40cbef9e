"""The request bodies: one prompt in each mode, over each transport.

Place in the flow: before the client. Pure functions; imports `contracts.records` and `harness.wire_errors`.

On one booted server the modes differ by request switches alone:

    raw        separate_reasoning off, no tools, nothing trimmed: content is the whole text
    reasoning  the reasoning parser runs, no tools are declared
    tools      both parsers run, the tools are declared

Declaring tools changes the prompt, so the modes are comparable only on the same prompt ids: those that
the server makes for the prompt *with* its tools, sent as `input_ids` in every mode.

`no_stop_trim` stays off in the parsed modes: on, the end token's text would land in a field. A server that
was booted without parsers ignores the switches and hands out what an application would get from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.records import Json, Mode, Prompt
from harness.wire_errors import RequestRefused

RESERVED = frozenset(
    {
        "messages", "model", "tools", "stream", "stream_options", "chat_template_kwargs", "input_ids", "n",
        "separate_reasoning", "stream_reasoning", "skip_special_tokens", "no_stop_trim", "return_token_ids",
        "return_prompt_token_ids", "return_meta_info", "return_input_ids_in_sglext",
        "return_output_ids_in_sglext", "custom_logit_processor", "custom_params", "rid",
    }
)  # fmt: skip
"""Request fields that the mode or the client sets; a prompt's `sampling` must not."""

TOOL_FIELDS = frozenset({"tool_choice", "parallel_tool_calls"})
"""Sampling fields that mean something only where tools are declared."""

PROMPT_FIELDS = ("reasoning_effort", "continue_final_message", "thinking")
"""Sampling fields that shape the prompt alone; where the prompt's ids are given they have done their work."""

GENERATE_NAMES: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "stop_regex": "stop_regex",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "ignore_eos": "ignore_eos",
    "logit_bias": "logit_bias",
    "regex": "regex",
    "ebnf": "ebnf",
}
"""OpenAI's name of a sampling parameter → the one that `/generate` takes."""


@dataclass(frozen=True, slots=True)
class Scripted:
    """A generation whose tokens are forced: the ids, and the logit processor that forces them.

    `processor` is the serialised custom logit processor, `params` what it reads as `custom_params`.
    """

    ids: tuple[int, ...]
    processor: str
    params: Mapping[str, Json]


def chat_body(
    prompt: Prompt,
    mode: Mode,
    *,
    model: str,
    prompt_token_ids: Sequence[int] | None,
    scripted: Scripted | None = None,
    stream: bool = False,
) -> dict[str, Any]:
    """Return the body for `/v1/chat/completions`.

    `prompt_token_ids` (n,) replaces the server's own rendering; None lets the server render, which gives
    the modes the same prompt only where the prompt has no tools.

    Raises:
        RequestRefused: the prompt's `sampling` sets a field that the mode sets, or asks for n > 1.
    """
    sampling = _sampling(prompt)
    declares_tools = mode is Mode.TOOLS and bool(prompt.tools)
    if not declares_tools:
        sampling = {name: value for name, value in sampling.items() if name not in TOOL_FIELDS}
    body: dict[str, Any] = {
        "model": model,
        "messages": [dict(message) for message in prompt.messages],
        **sampling,
        "skip_special_tokens": False,
    }
    if mode is Mode.RAW:
        body |= {"separate_reasoning": False, "no_stop_trim": True}
    if declares_tools:
        body["tools"] = [dict(tool) for tool in prompt.tools or ()]
    if prompt.template_kwargs:
        body["chat_template_kwargs"] = dict(prompt.template_kwargs)
    if prompt_token_ids is not None:
        body["input_ids"] = [int(token_id) for token_id in prompt_token_ids]
    if stream:
        # The non-stream switch for ids is an error in a stream, and the other way round it would double them.
        body |= {
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_input_ids_in_sglext": True,
            "return_output_ids_in_sglext": True,
        }
    else:
        body |= {"return_token_ids": True, "return_prompt_token_ids": True}
    if scripted is not None:
        limit = body.pop("max_completion_tokens", None) or body.pop("max_tokens", None)
        body |= {
            "max_tokens": min(limit or len(scripted.ids), len(scripted.ids)),
            "custom_logit_processor": scripted.processor,
            "custom_params": dict(scripted.params),
        }
    return body


def generate_body(
    prompt: Prompt,
    *,
    prompt_token_ids: Sequence[int],
    scripted: Scripted | None = None,
    stream: bool = False,
    logprobs: bool = False,
) -> dict[str, Any]:
    """Return the body for `/generate`: the same prompt ids, no parser, nothing trimmed or skipped.

    A sampling parameter that the prompt leaves out takes the engine's default here, and the model's
    generation config over chat: state temperature, top_p and top_k where both transports must sample alike.

    Raises:
        RequestRefused: `sampling` holds what `/generate` has no word for.
    """
    sampling = _sampling(prompt)
    logprobs = bool(sampling.pop("logprobs", False)) or logprobs
    limit = sampling.pop("max_completion_tokens", None) or sampling.pop("max_tokens", None)
    sampling.pop("max_tokens", None)
    params: dict[str, Any] = {
        # Left out, the engine would stop after 128 tokens; null is "as far as the context goes", as in chat.
        "max_new_tokens": limit,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }
    schema = _json_schema(prompt, sampling.pop("response_format", None))
    if schema is not None:
        params["json_schema"] = schema
    for name, value in sampling.items():
        if name in GENERATE_NAMES:
            params[GENERATE_NAMES[name]] = value
        elif name not in PROMPT_FIELDS and not _leaves_tools_free(name, value):
            raise RequestRefused(
                what=f"/generate has no parameter for {name}={value!r}",
                where=f"prompt {prompt.name!r}, sampling.{name}",
                remedy="leave it out, or record this prompt over the chat transport",
            )
    body: dict[str, Any] = {
        "input_ids": [int(token_id) for token_id in prompt_token_ids],
        "sampling_params": params,
        "stream": stream,
        "return_prompt_token_ids": True,
    }
    if logprobs:
        body |= {"return_logprob": True, "logprob_start_len": -1}
    if scripted is not None:
        params["max_new_tokens"] = min(limit or len(scripted.ids), len(scripted.ids))
        params["custom_params"] = dict(scripted.params)
        body["custom_logit_processor"] = scripted.processor
    return body


def render_body(prompt: Prompt, *, model: str) -> dict[str, Any]:
    """Return the chat body that is sent only for the prompt ids that come back: tools in, one token out."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [dict(message) for message in prompt.messages],
        "max_tokens": 1,
        "return_token_ids": True,
        "return_prompt_token_ids": True,
    }
    if prompt.tools:
        body["tools"] = [dict(tool) for tool in prompt.tools]
        if "tool_choice" in prompt.sampling:
            body["tool_choice"] = prompt.sampling["tool_choice"]
    if prompt.template_kwargs:
        body["chat_template_kwargs"] = dict(prompt.template_kwargs)
    for name in PROMPT_FIELDS:
        if name in prompt.sampling:
            body[name] = prompt.sampling[name]
    return body


def _sampling(prompt: Prompt) -> dict[str, Any]:
    sampling = dict(prompt.sampling)
    if sampling.get("n") == 1:
        del sampling["n"]
    taken = sorted(RESERVED & sampling.keys())
    if taken:
        several = "n" in taken
        raise RequestRefused(
            what=f"the prompt sets {', '.join(taken)}, which is not the prompt's to set",
            where=f"prompt {prompt.name!r}, sampling",
            why="a capture is one generation" if several else "the mode and the client set it",
            remedy="capture the prompt n times, with sample_index 0 to n-1" if several else "take it out",
        )
    return sampling


def _leaves_tools_free(name: str, value: Any) -> bool:
    return name == "parallel_tool_calls" or (name == "tool_choice" and value in ("auto", "none", None))


def _json_schema(prompt: Prompt, response_format: Any) -> str | None:
    if response_format is None or response_format == {"type": "text"}:
        return None
    if response_format == {"type": "json_object"}:
        return '{"type": "object"}'
    try:
        return json.dumps(response_format["json_schema"]["schema"])
    except (KeyError, TypeError):
        raise RequestRefused(
            what="/generate can't express this response_format",
            where=f"prompt {prompt.name!r}, sampling.response_format",
            remedy="give a json_schema with its schema, or record this prompt over the chat transport",
        ) from None
