"""Qwen3-Coder and Qwen3.5: calls as parameters between XML-like tags, each value on lines of its own.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import ParameterCalls
from contracts.formats.base import Format

CALLS = ParameterCalls(
    call_begin="<tool_call>\n<function=",
    name_end=">",
    parameter_begin="\n<parameter=",
    key_end=">\n",
    parameter_end="\n</parameter>",
    call_end="\n</function>\n</tool_call>",
    separator="\n",
    marks=("<tool_call>", "</tool_call>"),
    opens=("<tool_call>",),
    # The template writes what is no text, no list and no object as Python does.
    words=(("true", "True"), ("false", "False")),
)

FORMAT = Format(
    name="qwen3_coder",
    models=("Qwen/Qwen3-Coder-480B-A35B-Instruct", "Qwen/Qwen3-Coder-Next", "Qwen/Qwen3.5-397B-A17B"),
    reasoning_parsers=("qwen3",),
    tool_parsers=("qwen3_coder",),
    opener="<think>",
    closer="</think>",
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    template_switch="enable_thinking",
    opener_prefilled=True,
    tools=CALLS,
    reserved=("<function=", "</function>", "<parameter=", "</parameter>"),
    safe_grammar=(
        "thinking: reasoning, closer, then content or calls or both, end token; or reasoning alone, cut by"
        " length or ended by the end token. instant: content, calls or both, end token. Reasoning, content"
        " and values hold no marker and no tag of a call. Names and keys hold no `>`; a value that is no "
        "text has the declared type and Python's spelling of it (`True`, `1.5`), a list or an object that "
        "of `json.dumps`; no text reads `null`, no key comes twice."
    ),
    origin=(
        "the form that SGLang's Qwen3CoderDetector reads and Step-3.5's public template writes; Qwen's own "
        "template was not at hand: the spelling of `True` and the white space are not verified"
    ),
    own_tokenizer=False,
)
