"""Poolside's Laguna: GLM-4.5's calls with texts as they are, a line break after the last call.

Place in the flow: data. Imports `contracts.formats.glm45` only.
"""

from __future__ import annotations

from dataclasses import replace

from contracts.formats import glm45

FORMAT = replace(
    glm45.FORMAT,
    name="poolside_v1",
    models=("poolside/Laguna-XS.2",),
    reasoning_parsers=("poolside_v1",),
    tool_parsers=("poolside_v1",),
    end_tokens=("</assistant>", "〈|EOS|〉"),
    call_end="",
    thinks_by_default=False,
    tools=replace(
        glm45.CALLS,
        section_end="\n",
        prefix="",
        prefix_prefilled=False,
        lead="",
        keeps_text=True,
        texts="trimmed",
    ),
    safe_grammar=(
        "thinking: opener, reasoning, closer, then content or calls or both, end token; or opener and "
        "reasoning alone, cut or ended. instant: content, calls or both, end token. Reasoning, content and "
        "values hold no marker, each tag of a call stands on a line of its own. Texts have no white space "
        "around them, other values have the declared type and the spelling of `json.dumps`; tools are "
        "declared, no key comes twice."
    ),
    origin="the form that SGLang's PoolsideV1Detector documents; its end as Ollama renders it",
)
