"""GigaChat 3.5: thinking that always begins open; blocks apart by blank lines, calls in GCML tags.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import ParameterCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="gigachat35",
    models=("ai-sage/GigaChat3.5",),
    reasoning_parsers=("gigachat35",),
    tool_parsers=("gigachat35",),
    opener="<think>",
    closer="</think>",
    end_tokens=("</s>", "<|message_sep|>"),
    template_switch="",
    opener_prefilled=True,
    tools=ParameterCalls(
        section_begin="<｜GCML｜tool_calls>\n",
        section_end="\n</｜GCML｜tool_calls>",
        call_begin='<｜GCML｜invoke name="',
        name_end='">',
        parameter_begin='\n<｜GCML｜parameter name="',
        key_end='" string="true">',
        key_end_json='" string="false">',
        parameter_end="</｜GCML｜parameter>",
        call_end="\n</｜GCML｜invoke>",
        separator="\n",
        marks=("<｜GCML｜tool_calls>", "</｜GCML｜tool_calls>"),
        opens=("<｜GCML｜tool_calls>",),
        lead="\n\n",
        lead_alone=True,
        keeps_text=False,
        texts="any",
    ),
    reserved=("<｜GCML｜invoke", "</｜GCML｜invoke>", "<｜GCML｜parameter", "</｜GCML｜parameter>"),
    safe_grammar=(
        "reasoning, closer, content, end token; or reasoning alone, cut by length or ended by the end "
        "token. There is no instant mode: the parser takes any response for reasoning until it sees the "
        "closer. Reasoning, content and values hold no marker and no GCML tag. Calls: a blank line, then "
        "the section with its tags on lines of their own; declared names, no key twice, texts as they are, "
        "other values in the spelling of `json.dumps`; the text before them does not end with white space."
    ),
    origin="the chat template of GigaChat 3.5 as llama.cpp carries it",
    own_tokenizer=False,
    forcing="always",
)
