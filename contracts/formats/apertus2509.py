"""Apertus 2509: inner and outer speech; a call is an object whose one key is the function's name.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import ListedCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="apertus2509",
    models=("swiss-ai/Apertus-70B-Instruct-2509", "swiss-ai/Apertus-8B-Instruct-2509"),
    reasoning_parsers=("apertus2509",),
    tool_parsers=("apertus2509",),
    opener="<|inner_prefix|>",
    closer="<|inner_suffix|>",
    end_tokens=("<|assistant_end|>",),
    template_switch="enable_thinking",
    opener_prefilled=False,
    tools=ListedCalls(
        section_begin="<|tools_prefix|>",
        section_end="<|tools_suffix|>",
        item='{{"{name}": {arguments}}}',
        name_key="",
    ),
    reserved=(),
    safe_grammar=(
        "opener, reasoning that is not empty, closer, content, end token; or opener and reasoning alone, "
        "cut by length or ended by the end token; or content and end token. Reasoning and content hold no "
        "marker. Calls: one list after the text, which has no white space around it: declared names as "
        "keys, arguments as `json.dumps(value, ensure_ascii=False)` writes an object, separated by a comma "
        "and a space."
    ),
    origin="the form that SGLang's Apertus2509Detector documents, which is that of the chat template",
    own_tokenizer=False,
    forcing="never",
    thinks_by_default=False,
)
