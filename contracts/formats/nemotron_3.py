"""Nemotron 3: the template opens the thinking; calls are Qwen3-Coder's, by that family's own parser.

Place in the flow: data. Imports `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.formats.base import Format

FORMAT = Format(
    name="nemotron_3",
    models=("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B"),
    reasoning_parsers=("nemotron_3",),
    tool_parsers=(),
    opener="<think>",
    closer="</think>",
    end_tokens=("<|im_end|>", "</s>"),
    template_switch="enable_thinking",
    opener_prefilled=True,
    tools=None,
    # The reasoning parser takes this tag for the end of the thinking.
    reserved=("<tool_call>",),
    safe_grammar=(
        "thinking: reasoning, closer, content, end token; or reasoning alone, cut by length or ended by the "
        "end token. instant: content, end token. Reasoning and content hold no marker and no `<tool_call>`."
    ),
    origin=(
        "SGLang's Nemotron3Detector and its template rule for Nemotron 3 (thinking by default, opener "
        "prefilled)"
    ),
    own_tokenizer=False,
)
