"""Qwen3: the model writes its opener itself; calls are JSON objects between tags (hermes style).

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import TaggedCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="qwen3",
    models=("Qwen/Qwen3-8B", "Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-32B"),
    reasoning_parsers=("qwen3",),
    tool_parsers=("qwen25", "qwen", "hermes", "trinity"),
    opener="<think>",
    closer="</think>",
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    template_switch="enable_thinking",
    opener_prefilled=False,
    tools=TaggedCalls(
        call_begin="<tool_call>\n",
        call_end="\n</tool_call>",
        body='{{"name": "{name}", "arguments": {arguments}}}',
        separator="\n",
        prefix="\n\n",
        lead="\n",
    ),
    reserved=(),
    safe_grammar=(
        "thinking: opener (unless the template prefills it), reasoning, closer, content, end token; or "
        "opener and reasoning alone, cut by length or ended by the end token. instant: content, end token. "
        "Reasoning and content hold no marker; content is not empty after a closer, and reasoning is not "
        "empty before a cut. Calls: a blank line after the closer, text without white space around it, a "
        "line break, then calls on lines of their own, declared names, arguments as `json.dumps(value, "
        "ensure_ascii=False)` writes an object."
    ),
    origin="Qwen3's chat template, as SGLang's Qwen3Detector reads it",
    own_tokenizer=False,
)
