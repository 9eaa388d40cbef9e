"""Kimi K2 Thinking and K2.5: prefilled opener, tool section between marker tokens.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

import re

from contracts.calls import MarkedCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="kimi_k2",
    models=("moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2-Thinking", "moonshotai/Kimi-K2-Instruct"),
    reasoning_parsers=("kimi_k2",),
    tool_parsers=("kimi_k2",),
    opener="<think>",
    closer="</think>",
    end_tokens=("<|im_end|>", "[EOS]"),
    template_switch="thinking",
    opener_prefilled=True,
    tools=MarkedCalls(
        section_begin="<|tool_calls_section_begin|>",
        section_end="<|tool_calls_section_end|>",
        call_begin="<|tool_call_begin|>",
        argument_begin="<|tool_call_argument_begin|>",
        call_end="<|tool_call_end|>",
        # The id that the chat template teaches: functions.{name}:{index over the conversation}.
        id_pattern=re.compile(r"^(?:functions\.)?(?P<name>[\w.\-]+):\d+$"),
    ),
    reserved=(),
    safe_grammar=(
        "thinking: reasoning, closer, then content or a tool section or both, end token; or reasoning alone, "
        "cut by length or ended by the end token. instant: content, a tool section or both, end token. "
        "Reasoning and content hold no marker; calls have no white space around their markers, ids "
        "`functions.{name}:{i}` counting on from the conversation's earlier calls, JSON objects as arguments."
    ),
    origin=(
        "the format's tool-call guidance as SGLang's KimiK2Detector cites it, and the chat template's own "
        "form; constants of moonshotai/Kimi-K2.5 tokenizer_config.json"
    ),
    own_tokenizer=False,
)
