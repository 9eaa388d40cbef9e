"""Cohere Command A and its kin: every part of an answer between tags of its own, calls as a JSON list.

Place in the flow: data. Imports `contracts.calls`, `contracts.layouts` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import ListedCalls
from contracts.formats.base import Format
from contracts.layouts import WrappedLayout

FORMAT = Format(
    name="cohere_command4",
    models=("CohereLabs/command-a-reasoning-08-2025", "CohereLabs/North-Mini-Code-1.0"),
    reasoning_parsers=("cohere_command4",),
    tool_parsers=("cohere_command4",),
    opener="<|START_THINKING|>",
    closer="<|END_THINKING|>",
    end_tokens=("<|END_OF_TURN_TOKEN|>",),
    template_switch="reasoning",
    opener_prefilled=True,
    tools=ListedCalls(
        section_begin="<|START_ACTION|>",
        section_end="<|END_ACTION|>",
        list_begin="[\n    ",
        item='{{"tool_call_id": "{index}", "tool_name": "{name}", "parameters": {arguments}}}',
        separator=",\n    ",
        list_end="\n]",
        name_key="tool_name",
        arguments_keys=("parameters", "arguments"),
        keeps_text=True,
        alone=True,
    ),
    reserved=(),
    safe_grammar=(
        "thinking: reasoning, closer, content between its tags, end token; or reasoning alone, cut by "
        "length or ended by the end token. instant: content between its tags, end token. Reasoning and "
        "content hold no marker. Calls in place of the content: a list with an object a line, ids counting "
        "from zero, declared names, arguments as `json.dumps(value, ensure_ascii=False)` writes an object."
    ),
    origin=(
        "the forms that SGLang's CohereCommand4Detector documents; the list's lines as the chat template "
        "writes them, shown in the tests of transformers' response parsing"
    ),
    own_tokenizer=False,
    layout=WrappedLayout(
        content_begin="<|START_TEXT|>",
        content_end="<|END_TEXT|>",
        thinking=("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
)
