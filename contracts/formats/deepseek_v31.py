"""DeepSeek V3.1: thinking on request, opener or closer prefilled; calls are a name and bare JSON.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import TaggedCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="deepseek_v31",
    models=("deepseek-ai/DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3.1-Terminus"),
    reasoning_parsers=("deepseek-v3",),
    tool_parsers=("deepseekv31",),
    opener="<think>",
    closer="</think>",
    end_tokens=("<｜end▁of▁sentence｜>",),
    template_switch="thinking",
    opener_prefilled=True,
    tools=TaggedCalls(
        section_begin="<｜tool▁calls▁begin｜>",
        section_end="<｜tool▁calls▁end｜>",
        call_begin="<｜tool▁call▁begin｜>",
        call_end="<｜tool▁call▁end｜>",
        inner=("<｜tool▁sep｜>",),
        body="{name}<｜tool▁sep｜>{arguments}",
    ),
    # The reasoning parser is Qwen3's: it ends the thinking at Qwen's own tag.
    reserved=("<tool_call>",),
    safe_grammar=(
        "thinking: reasoning, closer, content, end token; or reasoning alone, cut by length or ended by the "
        "end token. instant (the default): content, end token. Reasoning and content hold no marker and no "
        "`<tool_call>`. Calls follow without white space, chained without separators: declared names, "
        "arguments as `json.dumps(value, ensure_ascii=False)` writes an object; the text before them has no "
        "white space around it."
    ),
    origin="SGLang's examples/chat_template/tool_chat_template_deepseekv31.jinja",
    own_tokenizer=False,
    thinks_by_default=False,
)
