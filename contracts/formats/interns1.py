"""Intern-S1: the model writes its opener itself; calls are JSON objects between action tags.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import TaggedCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="interns1",
    models=("internlm/Intern-S1", "internlm/Intern-S1-mini"),
    reasoning_parsers=("interns1",),
    tool_parsers=("interns1",),
    opener="<think>",
    closer="</think>",
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    template_switch="enable_thinking",
    opener_prefilled=False,
    tools=TaggedCalls(
        # The tokenizer's two tokens with the space that its decoding puts between them: the parser wants it.
        call_begin="<|action_start|> <|plugin|>\n",
        call_end="<|action_end|>",
        body='{{"name": "{name}", "parameters": {arguments}}}',
        arguments_keys=("parameters", "arguments"),
        prefix="\n\n",
    ),
    # The reasoning parser is Qwen3's: it ends the thinking at Qwen's own tag.
    reserved=("<tool_call>",),
    safe_grammar=(
        "thinking: opener, reasoning, closer, content, end token; or opener and reasoning alone, cut by "
        "length or ended by the end token. instant: content, end token. Reasoning and content hold no "
        "marker and no `<tool_call>`. Calls: a blank line after the closer, text without white space around "
        "it, then calls with a space between the two opening tokens and a line break after them, "
        "`parameters` as key, declared names, arguments as `json.dumps(value, ensure_ascii=False)` writes "
        "an object, chained without separators. Without that space the parser sees no call at all."
    ),
    origin=(
        "the form that SGLang's InternlmDetector documents; the model card has no space between the two "
        "tokens"
    ),
    own_tokenizer=False,
)
