"""GLM-4.7: GLM-4.5's calls without any white space, a prefilled opener.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from dataclasses import replace

from contracts.formats import glm45

CALLS = replace(
    glm45.CALLS,
    parameter_begin="<arg_key>",
    key_end="</arg_key><arg_value>",
    call_end="</tool_call>",
    separator="",
    prefix="",
    prefix_prefilled=False,
    lead="",
)

FORMAT = replace(
    glm45.FORMAT,
    name="glm47",
    models=("zai-org/GLM-4.7", "zai-org/GLM-4.7-Flash"),
    tool_parsers=("glm47",),
    opener_prefilled=True,
    tools=CALLS,
    safe_grammar=(
        "thinking: reasoning, closer, content, end token (a user's turn begins); or reasoning, closer, "
        "content without white space around it, calls, end token (an observation begins); or reasoning "
        "alone, cut or ended. instant: the same without the thinking. Reasoning, content and values hold "
        "no marker, there is no white space between tags. A text value has no quotes and no backslash and "
        "reads as no JSON; any other value has the declared type and the spelling of `json.dumps`; tools "
        "are declared, no key comes twice."
    ),
    origin="the chat template of GLM-4.7-Flash, as llama.cpp carries it",
)
