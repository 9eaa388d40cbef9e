"""DeepSeek R1 and V3: thinking that always begins open; calls name a function and hold a JSON code block.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import TaggedCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="deepseek_r1",
    models=("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3-0324"),
    reasoning_parsers=("deepseek-r1",),
    tool_parsers=("deepseekv3",),
    opener="<think>",
    closer="</think>",
    end_tokens=("<｜end▁of▁sentence｜>",),
    template_switch="",
    opener_prefilled=True,
    tools=TaggedCalls(
        section_begin="<｜tool▁calls▁begin｜>",
        section_end="<｜tool▁calls▁end｜>",
        call_begin="<｜tool▁call▁begin｜>",
        call_end="<｜tool▁call▁end｜>",
        inner=("<｜tool▁sep｜>",),
        body="function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```",
        separator="\n",
        prefix="\n\n",
    ),
    reserved=(),
    safe_grammar=(
        "reasoning, closer, content, end token; or reasoning alone, cut by length or ended by the end "
        "token. There is no instant mode: the parser takes any response for reasoning until it sees the "
        "closer. Reasoning and content hold no marker. Calls: a blank line after the closer, text without "
        "white space around it, then the section: calls on lines of their own, `function` as type, declared "
        "names, arguments as `json.dumps(value, ensure_ascii=False)` writes an object."
    ),
    origin=(
        "SGLang's examples/chat_template/tool_chat_template_deepseekr1.jinja and "
        "tool_chat_template_deepseekv3.jinja; the blank line after the closer as R1's model card shows its "
        "output"
    ),
    own_tokenizer=False,
    forcing="always",
)
