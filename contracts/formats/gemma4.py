"""Gemma 4: a thought channel, calls as maps with bare keys and marked texts.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import KeyedCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="gemma4",
    models=("google/gemma-4-31B-it", "google/gemma-4-26B-A4B-it", "google/gemma-4-E4B-it"),
    reasoning_parsers=("gemma4",),
    tool_parsers=("gemma4",),
    opener="<|channel>thought\n",
    closer="<channel|>",
    end_tokens=("<turn|>", "<|tool_response>", "<eos>"),
    call_end="<|tool_response>",
    template_switch="enable_thinking",
    thinks_by_default=False,
    opener_prefilled=False,
    tools=KeyedCalls(call_begin="<|tool_call>", call_end="<tool_call|>", word="call:", quote='<|"|>'),
    reserved=("<|channel>",),
    safe_grammar=(
        "thinking: opener with its label and line break, reasoning, closer, then content, calls or both, end "
        "token; or opener and reasoning alone. instant: content, calls or both, end token. Nothing holds a "
        "marker; calls follow one another without white space, their values are texts, whole or decimal "
        "numbers, true or false."
    ),
    origin="the prompt-format guide of Gemma 4, as SGLang's Gemma4Detector reads it",
    own_tokenizer=False,
)
