"""DeepSeek V4: V3.2's DSML with another name for the section.

Place in the flow: data. Imports `contracts.formats.deepseek_v32` only.
"""

from __future__ import annotations

from dataclasses import replace

from contracts.formats import deepseek_v32

FORMAT = replace(
    deepseek_v32.FORMAT,
    name="deepseek_v4",
    models=("deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"),
    reasoning_parsers=("deepseek-v4",),
    tool_parsers=("deepseekv4",),
    tools=deepseek_v32.dsml("tool_calls"),
    reserved=("｜DSML｜",),
    origin="SGLang's DeepSeekV4Detector, V3.2's white space; the server's recipe path for it is not run",
)
