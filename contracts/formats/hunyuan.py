"""Hunyuan Hy3: thinking by effort, opener or both tags prefilled; calls as keys and values in a section.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import ParameterCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="hunyuan",
    models=("tencent/Hy3-preview",),
    reasoning_parsers=("hunyuan",),
    tool_parsers=("hunyuan",),
    opener="<think>",
    closer="</think>",
    end_tokens=("<|eos|>",),
    # A field of the request beside the template's arguments: any effort but `none` and `no_think` thinks.
    template_switch="reasoning_effort",
    opener_prefilled=True,
    tools=ParameterCalls(
        section_begin="<tool_calls>\n",
        section_end="\n</tool_calls>",
        call_begin="<tool_call>",
        name_end="<tool_sep>",
        parameter_begin="\n<arg_key>",
        key_end="</arg_key>\n<arg_value>",
        parameter_end="</arg_value>",
        call_end="\n</tool_call>",
        separator="\n",
        marks=(
            "<tool_calls>",
            "</tool_calls>",
            "<tool_call>",
            "</tool_call>",
            "<tool_sep>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ),
        opens=("<tool_calls>",),
        keeps_text=False,
    ),
    reserved=(),
    safe_grammar=(
        "thinking: reasoning, closer, content, end token; or reasoning alone, cut by length or ended by the "
        "end token. instant (the default): content, end token. Reasoning, content and values hold no "
        "marker. Calls: a section with each tag on a line of its own, declared names, no key twice; texts "
        "for parameters declared as strings, any other value in the declared type and the spelling of "
        "`json.dumps`; the text before them has no white space around it. Tokenizers whose tags have a "
        "suffix (`<tool_calls:opensource>`) are not in it."
    ),
    origin="the form that SGLang's HunyuanDetector documents",
    own_tokenizer=False,
    thinks_by_default=False,
)
