"""Granite 4.2: thinking on lines of its own; calls are Qwen3-Coder's, by that family's own parser.

Place in the flow: data. Imports `contracts.layouts` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.formats.base import Format
from contracts.layouts import WrappedLayout

FORMAT = Format(
    name="granite",
    models=("ibm-granite/granite-4.2-8b", "ibm-granite/granite-4.2-30b"),
    reasoning_parsers=("granite_thinking_parser",),
    tool_parsers=(),
    opener="<think>",
    closer="</think>",
    end_tokens=("<|end_of_text|>",),
    template_switch="enable_thinking",
    opener_prefilled=True,
    tools=None,
    # The reasoning parser takes this tag for the end of the thinking.
    reserved=("<tool_call>",),
    safe_grammar=(
        "thinking: reasoning, closer, a line break, content that does not begin with one, end token; or "
        "reasoning alone, cut by length or ended by the end token. instant: content, end token. Reasoning "
        "and content hold no marker and no `<tool_call>`. (The parser takes every line break before the "
        "content.)"
    ),
    origin="the line breaks that SGLang's GraniteThinkingDetector cites of Granite 4.2's chat template",
    own_tokenizer=False,
    layout=WrappedLayout(gap="\n", strips="\n"),
)
