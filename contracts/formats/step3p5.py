"""Step-3.5: Qwen3-Coder's calls without a line between them, thinking that is always on.

Place in the flow: data. Imports `contracts.formats.qwen3_coder` and `contracts.calls` only.
"""

from __future__ import annotations

from dataclasses import replace

from contracts.formats import qwen3_coder

FORMAT = replace(
    qwen3_coder.FORMAT,
    name="step3p5",
    models=("stepfun-ai/Step-3.5-Flash", "stepfun-ai/Step-3.7-Flash"),
    reasoning_parsers=("step3p5",),
    tool_parsers=("step3p5",),
    end_tokens=("<|im_end|>",),
    template_switch="",
    tools=replace(qwen3_coder.CALLS, separator=""),
    forcing="always",
    safe_grammar=f"{qwen3_coder.FORMAT.safe_grammar} Only thinking, and no white space between calls.",
    origin="StepFun's chat template for Step-3.7-Flash, as llama.cpp carries it",
)
