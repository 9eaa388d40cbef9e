"""Nanbeige: Qwen3's thinking with Qwen3-Coder's calls.

Place in the flow: data. Imports `contracts.formats.qwen3_coder` only.
"""

from __future__ import annotations

from dataclasses import replace

from contracts.formats import qwen3_coder

FORMAT = replace(
    qwen3_coder.FORMAT,
    name="nanbeige",
    models=("Nanbeige/Nanbeige4-3B-Thinking-2511",),
    reasoning_parsers=("nanbeige",),
    tool_parsers=("nanbeige",),
    opener_prefilled=False,
    origin="SGLang's parsers: the names stand for Qwen3Detector and Qwen3CoderDetector; no template was seen",
)
