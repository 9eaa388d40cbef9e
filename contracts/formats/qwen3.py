"""Qwen3: the model writes its opener itself; reasoning only, its tool calls are not mapped yet.

Place in the flow: data. Imports `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.formats.base import Format

FORMAT = Format(
    name="qwen3",
    models=("Qwen/Qwen3-8B", "Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-30B-A3B-Thinking-2507"),
    reasoning_parsers=("qwen3", "qwen3-thinking"),
    tool_parsers=(),
    opener="<think>",
    closer="</think>",
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    template_switch="enable_thinking",
    opener_prefilled=False,
    tools=None,
    reserved=("<tool_call>", "</tool_call>"),
    safe_grammar=(
        "thinking: opener (unless the template prefills it), reasoning, closer, content, end token; or "
        "opener and reasoning alone, cut by length or ended by the end token. instant: content, end token. "
        "Reasoning and content hold no marker; content is not empty after a closer, and reasoning is not "
        "empty before a cut."
    ),
    origin="Qwen3's chat template, as SGLang's Qwen3Detector reads it",
    own_tokenizer=False,
)
