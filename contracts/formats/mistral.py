"""Mistral: thinking on request between bracket tokens; a call is a tag, a name, and JSON.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import TaggedOrListed
from contracts.formats.base import Format

FORMAT = Format(
    name="mistral",
    models=("mistralai/Mistral-Small-4-119B-2603", "mistralai/Ministral-3-8B-Instruct-2512"),
    reasoning_parsers=("mistral",),
    tool_parsers=("mistral",),
    opener="[THINK]",
    closer="[/THINK]",
    end_tokens=("</s>",),
    # A field of the request beside the template's arguments: any effort but `none` thinks.
    template_switch="reasoning_effort",
    opener_prefilled=False,
    tools=TaggedOrListed(
        call_begin="[TOOL_CALLS]",
        call_end="",
        inner=("[ARGS]",),
        body="{name}[ARGS]{arguments}",
    ),
    # The parsers also take these without their closing bracket.
    reserved=("[TOOL_CALLS", "[ARGS"),
    safe_grammar=(
        "thinking: opener, reasoning, closer, content, end token; or opener and reasoning alone, cut by "
        "length or ended by the end token. instant (the default): content, end token. Reasoning and content "
        "hold no marker. Calls: a tag, a declared name, `[ARGS]` and the arguments as `json.dumps(value, "
        "ensure_ascii=False)` writes an object, chained without separators; the text before them has no "
        "white space around it. The JSON list after one tag that older models write is read, and told as "
        "another spelling."
    ),
    origin=(
        "the chat templates of Mistral's models from Ministral 3 on, as SGLang's MistralDetector reads them"
    ),
    own_tokenizer=False,
    thinks_by_default=False,
)
