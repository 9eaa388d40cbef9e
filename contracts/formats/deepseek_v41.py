"""DeepSeek V4.1: DSML whose tag names begin with a space.

Place in the flow: data. Imports `contracts.formats` modules of the same kind only.
"""

from __future__ import annotations

from dataclasses import replace

from contracts.formats import deepseek_v4, deepseek_v32

FORMAT = replace(
    deepseek_v4.FORMAT,
    name="deepseek_v41",
    models=("deepseek-ai/DeepSeek-V4.1",),
    reasoning_parsers=("deepseek-v41",),
    tool_parsers=("deepseekv41",),
    tools=deepseek_v32.dsml(" calls", " invoke", " parameter"),
    origin="SGLang's DeepSeekV41Detector, V3.2's white space; the server's recipe path for it is not run",
)
