"""Llama 3.1 to 3.3: no thinking; an answer that is a JSON object with a name is a call.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import BareCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="llama3",
    models=("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
    reasoning_parsers=(),
    tool_parsers=("llama3",),
    opener="",
    closer="",
    end_tokens=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    template_switch="",
    opener_prefilled=False,
    tools=BareCalls(
        body='{{"name": "{name}", "parameters": {arguments}}}',
        separator=";",
        lead="<|python_tag|>",
    ),
    reserved=(),
    safe_grammar=(
        "content, end token. A call is the whole answer: a JSON object with `name` and `parameters`, "
        "several joined by `;` (SGLang's reading; the model card has one call a turn); after a text, "
        "`<|python_tag|>` leads to it. Declared names, arguments as `json.dumps(value, ensure_ascii=False)` "
        "writes an object. Content that comes with declared tools does not begin with a brace."
    ),
    origin="SGLang's examples/chat_template/tool_chat_template_llama3.1_json.jinja",
    own_tokenizer=False,
)
