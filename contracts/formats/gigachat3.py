"""GigaChat 3.1: no thinking; one call a turn, a JSON object after a token.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import TaggedCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="gigachat3",
    models=("ai-sage/GigaChat3.1-10B-A1.8B",),
    reasoning_parsers=(),
    tool_parsers=("gigachat3",),
    opener="",
    closer="",
    end_tokens=("<|message_sep|>", "</s>"),
    template_switch="",
    opener_prefilled=False,
    tools=TaggedCalls(
        call_begin="<|function_call|>",
        call_end="",
        body='{{"name": "{name}", "arguments": {arguments}}}',
        keeps_text=True,
        parallel=False,
    ),
    reserved=("function call<|role_sep|>",),
    safe_grammar=(
        "content, end token; or content, perhaps none, and one call, end token. Content holds no marker and "
        "no `function call<|role_sep|>`, which GigaChat 3 writes and the parser reads too. Declared names, "
        "arguments as `json.dumps(value, ensure_ascii=False)` writes an object."
    ),
    origin="the token that GigaChat 3.1's chat template writes and SGLang's GigaChat3Detector reads",
    own_tokenizer=False,
)
