"""Kimi's first thinking models: an opener and a closer of their own, written by the model, no calls.

Place in the flow: data. Imports `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.formats.base import Format

FORMAT = Format(
    name="kimi",
    models=("moonshotai/Kimi-VL-A3B-Thinking-2506", "moonshotai/Kimi-VL-A3B-Thinking"),
    reasoning_parsers=("kimi",),
    tool_parsers=(),
    opener="◁think▷",
    closer="◁/think▷",
    end_tokens=("<|im_end|>", "[EOS]"),
    template_switch="",  # these models have none; the parser never takes a text without opener for reasoning
    forcing="never",
    opener_prefilled=False,
    tools=None,
    reserved=(),
    safe_grammar=(
        "opener, reasoning, closer, content, end token; or opener and reasoning alone, cut by length or "
        "ended by the end token; or content and end token. Nothing holds a marker, reasoning and content are "
        "not empty."
    ),
    origin="the output that the model card of Kimi-VL-A3B-Thinking shows, as SGLang's KimiDetector reads it",
    own_tokenizer=False,
)
