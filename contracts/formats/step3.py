"""Step3: calls between marker tokens, each an invocation with named parameters.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import ParameterCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="step3",
    models=("stepfun-ai/step3",),
    reasoning_parsers=("step3",),
    tool_parsers=("step3",),
    opener="<think>",
    closer="</think>",
    end_tokens=("<|EOT|>",),
    template_switch="",
    opener_prefilled=True,
    forcing="always",
    tools=ParameterCalls(
        section_begin="<｜tool_calls_begin｜>\n",
        section_end="\n<｜tool_calls_end｜>",
        call_begin='<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',
        name_end='">',
        parameter_begin='\n<steptml:parameter name="',
        key_end='">',
        parameter_end="</steptml:parameter>",
        call_end="\n</steptml:invoke><｜tool_call_end｜>",
        separator="\n",
        marks=(
            "<｜tool_calls_begin｜>",
            "<｜tool_calls_end｜>",
            "<｜tool_call_begin｜>",
            "<｜tool_sep｜>",
            "<｜tool_call_end｜>",
        ),
        opens=("<｜tool_calls_begin｜>",),
        texts="trimmed",
        spoils=("<",),
    ),
    reserved=("<steptml:", "</steptml:"),
    safe_grammar=(
        "reasoning, closer, then content or calls or both, end token; or reasoning alone, cut or ended. "
        "Reasoning and content hold no marker. No value holds `<`; texts have no white space around them, "
        "other values have the declared type and the spelling of `json.dumps`; tools are declared, no key "
        "comes twice."
    ),
    origin="the form that SGLang's Step3Detector documents; template and end token not verified",
    own_tokenizer=False,
)
