"""Qwen3's thinking-only models: the template opens the thinking, which no switch turns off.

Place in the flow: data. Imports `contracts.formats.base` and the family's own `contracts.formats.qwen3` only.
"""

from __future__ import annotations

from dataclasses import replace

from contracts.formats.qwen3 import FORMAT as QWEN3

FORMAT = replace(
    QWEN3,
    name="qwen3_thinking",
    models=("Qwen/Qwen3-30B-A3B-Thinking-2507", "Qwen/Qwen3-235B-A22B-Thinking-2507"),
    reasoning_parsers=("qwen3-thinking",),
    template_switch="",
    opener_prefilled=True,
    safe_grammar=(
        "reasoning, closer, content, end token; or reasoning alone, cut by length or ended by the end "
        "token; no instant mode. Markers, content and calls as with qwen3."
    ),
    origin="the chat template of Qwen3's Thinking-2507 models; calls as in Qwen3's",
    forcing="always",
)
