"""K2 Horizon (K2-v3): prefilled opener of three kinds, calls as typed parameters in a section.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import ParameterCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="k2_horizon",
    models=("LLM360/K2-Horizon-MoVA", "LLM360/K2-Horizon-3.7B", "LLM360/K2-Horizon-0.9B"),
    reasoning_parsers=("k2_horizon",),
    tool_parsers=("k2_horizon",),
    # The markers of the effort `high`, the default; the other two efforts have their own.
    opener="<ifm|think>",
    closer="</ifm|think>",
    end_tokens=("<|ifm|im_end|>", "<|ifm|endoftext|>"),
    template_switch="",  # `reasoning_effort` chooses the markers and turns nothing off
    forcing="always",
    opener_prefilled=True,
    tools=ParameterCalls(
        section_begin="<ifm|tool_calls>\n",
        call_begin="<ifm|tool_call>",
        name_end="\n",
        parameter_begin="<ifm|arg_key>",
        key_end="</ifm|arg_key>\n<ifm|arg_value>",
        parameter_end="</ifm|arg_value>\n",
        call_end="</ifm|tool_call>",
        separator="\n",
        section_end="\n</ifm|tool_calls>",
        marks=(
            "<ifm|tool_calls>",
            "</ifm|tool_calls>",
            "<ifm|tool_call>",
            "</ifm|tool_call>",
            "<ifm|arg_key>",
            "</ifm|arg_key>",
            "<ifm|arg_value>",
            "</ifm|arg_value>",
        ),
        opens=("<ifm|tool_calls>", "<ifm|tool_call>"),
    ),
    reserved=(
        "<ifm|tool_call",
        "<ifm|think_fast>",
        "</ifm|think_fast>",
        "<ifm|think_faster>",
        "</ifm|think_faster>",
    ),
    safe_grammar=(
        "reasoning, closer, content, a section of calls or both, end token; or reasoning alone, cut by "
        "length or ended by the end token. Nothing holds a marker; calls as the template writes them, each "
        "tag on a line of its own, values of the declared types."
    ),
    origin="the XML form of the chat template, as SGLang's K2V3Detector and the vendor's vLLM plugin read it",
    own_tokenizer=False,
)
