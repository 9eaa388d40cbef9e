"""MiniMax M2: calls as invocations with named parameters, thinking that is always on.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import ParameterCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="minimax_m2",
    models=("MiniMaxAI/MiniMax-M2", "MiniMaxAI/MiniMax-M2.1"),
    reasoning_parsers=("minimax",),
    tool_parsers=("minimax-m2",),
    opener="<think>",
    closer="</think>",
    end_tokens=("[e~[",),
    template_switch="",
    opener_prefilled=True,
    forcing="always",
    tools=ParameterCalls(
        section_begin="<minimax:tool_call>\n",
        section_end="\n</minimax:tool_call>",
        call_begin='<invoke name="',
        name_end='">',
        parameter_begin='\n<parameter name="',
        key_end='">',
        parameter_end="</parameter>",
        call_end="\n</invoke>",
        separator="\n",
        marks=("<minimax:tool_call>", "</minimax:tool_call>"),
        opens=("<minimax:tool_call>",),
        texts="trimmed",
    ),
    # The reasoning parser is Qwen3's: it takes Qwen's tag for the end of the thinking.
    reserved=("<tool_call>", "<invoke name=", "</invoke>", "<parameter name=", "</parameter>"),
    safe_grammar=(
        "reasoning, closer, then content or calls or both, end token; or reasoning alone, cut or ended. "
        "Reasoning, content and values hold no marker and no tag of a call. Texts have no white space "
        "around them and do not read `null`, `none` or `nil`; other values have the declared type, which "
        "does not admit null, and the spelling of `json.dumps`, a number a fraction; tools are declared, "
        "no key comes twice."
    ),
    origin="the chat template of MiniMax-M2, as llama.cpp carries it",
    own_tokenizer=False,
)
