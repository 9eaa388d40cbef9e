"""MiMo: Qwen3-Coder's calls with the values on the lines of their tags.

Place in the flow: data. Imports `contracts.formats.qwen3_coder` only.
"""

from __future__ import annotations

from dataclasses import replace

from contracts.formats import qwen3_coder

FORMAT = replace(
    qwen3_coder.FORMAT,
    name="mimo",
    models=("XiaomiMiMo/MiMo-V2-Flash",),
    reasoning_parsers=("mimo",),
    tool_parsers=("mimo",),
    opener_prefilled=False,
    thinks_by_default=False,
    tools=replace(qwen3_coder.CALLS, key_end=">", parameter_end="</parameter>", words=(), spoils=("&",)),
    safe_grammar=(
        "thinking: opener, reasoning, closer, then content or calls or both, end token; or opener and "
        "reasoning alone, cut or ended. instant: content, calls or both, end token. Reasoning, content and"
        " values hold no marker and no tag of a call, values no `&`; names, keys and the texts `null` as "
        "qwen3_coder; other values have the declared type and the spelling of `json.dumps`, a number a "
        "fraction; tools are declared."
    ),
    origin="the form that SGLang's MiMoDetector documents; no template was seen",
)
