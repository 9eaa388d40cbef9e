"""LFM2: calls as a Python list of function calls between two markers, no thinking of its own.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import PythonicCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="lfm2",
    models=("LiquidAI/LFM2-8B-A1B", "LiquidAI/LFM2-1.2B", "LiquidAI/LFM2-2.6B"),
    reasoning_parsers=(),
    tool_parsers=("lfm2",),
    opener="",
    closer="",
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    template_switch="",
    opener_prefilled=False,
    tools=PythonicCalls(section_begin="<|tool_call_start|>", section_end="<|tool_call_end|>", dotted=True),
    reserved=(),
    safe_grammar=(
        "content without white space around it, a list of calls between the markers or both, end token. "
        "Names are Python identifiers, with dots or not; values are texts in double quotes, numbers, True, "
        "False, None, lists and maps of them, spelled as json.dumps spells what is JSON."
    ),
    origin="the tool-use example of LFM2's model cards, as SGLang's Lfm2Detector reads it",
    own_tokenizer=False,
)
