"""MiniCPM5: calls as XML elements without a wrapper.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import ParameterCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="minicpm5",
    models=("openbmb/MiniCPM5-1B", "openbmb/MiniCPM5-2B"),
    reasoning_parsers=(),
    tool_parsers=("minicpm5",),
    opener="",
    closer="",
    end_tokens=("<|im_end|>", "</s>"),
    template_switch="",
    opener_prefilled=False,
    tools=ParameterCalls(
        call_begin='<function name="',
        name_end='">',
        parameter_begin='<param name="',
        key_end='">',
        parameter_end="</param>",
        call_end="</function>",
        marks=("<function", "</function>"),
        opens=("<function",),
        kinds=("string",),
        texts="words",
    ),
    reserved=("<param", "</param>"),
    safe_grammar=(
        "content, end token; or content, perhaps none, and calls one after the other, end token. Content "
        "holds no tag of a call. Declared names, declared parameters, all those that are required, each a "
        "string of letters and digits. (Values in CDATA and values that the parser reads as XML, JSON or "
        "Python are not in it.)"
    ),
    origin="the form that SGLang's MiniCPM5Detector documents, which is that of the chat template",
    own_tokenizer=False,
)
