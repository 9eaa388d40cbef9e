"""GLM-4.5 and 4.6: a call is a name and pairs of key and value, each tag on a line of its own.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import ParameterCalls
from contracts.formats.base import Format

CALLS = ParameterCalls(
    call_begin="<tool_call>",
    name_end="",
    parameter_begin="\n<arg_key>",
    key_end="</arg_key>\n<arg_value>",
    parameter_end="</arg_value>",
    call_end="\n</tool_call>",
    separator="\n",
    marks=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    opens=("<tool_call>",),
    prefix="\n",
    prefix_prefilled=True,
    lead="\n",
    keeps_text=False,
    texts="prose",
)

FORMAT = Format(
    name="glm45",
    models=("zai-org/GLM-4.5", "zai-org/GLM-4.5-Air", "zai-org/GLM-4.6"),
    reasoning_parsers=("glm45",),
    tool_parsers=("glm45", "glm"),
    opener="<think>",
    closer="</think>",
    end_tokens=("<|user|>", "<|observation|>", "<|endoftext|>"),
    call_end="<|observation|>",
    template_switch="enable_thinking",
    opener_prefilled=False,
    tools=CALLS,
    reserved=(),
    safe_grammar=(
        "thinking: opener, reasoning, closer, content, end token (a user's turn begins); or opener, "
        "reasoning, closer, a line break, content without white space around it, calls on lines of their "
        "own, end token (an observation begins); or opener and reasoning alone, cut or ended. instant: the"
        " same without the thinking. Reasoning, content and values hold no marker. A text value has no "
        "quotes and no backslash and reads as no JSON; any other value has the declared type and the "
        "spelling of `json.dumps`; tools are declared, no key comes twice. The line break that the "
        "template puts before the opener is not in it: SGLang's reasoning parser leaves the opener behind "
        "it inside the reasoning."
    ),
    origin="the chat template of GLM-4.5 and 4.6, as llama.cpp carries it",
    own_tokenizer=False,
)
