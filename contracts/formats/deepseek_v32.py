"""DeepSeek V3.2: calls in DSML, tags that say of each parameter whether it is a text.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import ParameterCalls
from contracts.formats.base import Format


def dsml(section: str, invoke: str = "invoke", parameter: str = "parameter") -> ParameterCalls:
    """Return DSML with these tag names: they change from version to version."""
    mark = "｜DSML｜"
    return ParameterCalls(
        section_begin=f"<{mark}{section}>\n",
        section_end=f"\n</{mark}{section}>",
        call_begin=f'<{mark}{invoke} name="',
        name_end='">\n',
        parameter_begin=f'<{mark}{parameter} name="',
        key_end='" string="true">',
        key_end_json='" string="false">',
        parameter_end=f"</{mark}{parameter}>",
        joiner="\n",
        call_end=f"\n</{mark}{invoke}>",
        separator="\n",
        marks=(f"<{mark}{section}>", f"</{mark}{section}>", f"<{mark}{invoke}", f"</{mark}{invoke}>"),
        opens=(f"<{mark}{section}>", f"<{mark}{invoke}"),
        lead="\n\n",
        lead_alone=True,
        texts="trimmed",
    )


FORMAT = Format(
    name="deepseek_v32",
    models=("deepseek-ai/DeepSeek-V3.2",),
    reasoning_parsers=("deepseek-v3",),
    tool_parsers=("deepseekv32",),
    opener="<think>",
    closer="</think>",
    end_tokens=("<｜end▁of▁sentence｜>",),
    template_switch="thinking",
    thinks_by_default=False,
    opener_prefilled=True,
    tools=dsml("function_calls"),
    # The reasoning parser is Qwen3's: it takes Qwen's tag for the end of the thinking.
    reserved=("｜DSML｜", "<tool_call>"),
    safe_grammar=(
        "thinking: reasoning, closer, content, end token; or reasoning, closer, content or none, an empty "
        "line, the calls, end token; or reasoning alone, cut or ended. instant: the same without the "
        "thinking. Reasoning, content and values hold no DSML tag. Texts have no white space around them, "
        "other values the spelling of `json.dumps`; tools are declared, no key comes twice."
    ),
    origin="DeepSeek's own encoding of V3.2, as SGLang carries it (`encoding_dsv32`)",
    own_tokenizer=False,
)
