"""IQuest Q1: GLM-4.7's calls under a name of its own, texts as they are.

Place in the flow: data. Imports `contracts.formats.glm47` only.
"""

from __future__ import annotations

from dataclasses import replace

from contracts.formats import glm47

FORMAT = replace(
    glm47.FORMAT,
    name="iquest_q1",
    models=("IQuestLab/IQuest-Q1",),
    reasoning_parsers=("iquest_q1",),
    tool_parsers=("iquest_q1",),
    end_tokens=("<|iquest_end|>",),
    call_end="",
    tools=replace(
        glm47.CALLS,
        call_begin="<iquest_tool_call>",
        call_end="</iquest_tool_call>",
        marks=(
            "<iquest_tool_call>",
            "</iquest_tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ),
        opens=("<iquest_tool_call>",),
        keeps_text=True,
        texts="any",
    ),
    safe_grammar=(
        "thinking: reasoning, closer, then content or calls or both, end token; or reasoning alone, cut or "
        "ended. instant: content, calls or both, end token. Reasoning, content and values hold no marker, "
        "there is no white space between tags. Any text stands as it is where the parameter is declared as "
        "one; any other value has the declared type and the spelling of `json.dumps`; tools are declared, no "
        "key comes twice."
    ),
    origin="the form that SGLang's IQuestQ1Detector reads; end token as in public ports",
)
