"""gpt-oss: harmony messages on the channels analysis, commentary and final.

Place in the flow: data. Imports `contracts.calls`, `contracts.layouts` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import HarmonyCalls
from contracts.formats.base import Format
from contracts.layouts import HarmonyLayout

FORMAT = Format(
    name="gpt_oss",
    models=("openai/gpt-oss-20b", "openai/gpt-oss-120b"),
    reasoning_parsers=("gpt-oss",),
    tool_parsers=("gpt-oss",),
    opener="<|channel|>analysis<|message|>",
    closer="<|end|>",
    end_tokens=("<|return|>", "<|call|>"),
    call_end="<|call|>",
    template_switch="",  # how much it thinks is `reasoning_effort`, which turns nothing off
    forcing="always",
    opener_prefilled=False,
    layout=HarmonyLayout(),
    tools=HarmonyCalls(),
    # SGLang's tokenizer of the format takes any `<|` for a marker and skips to the next `|>`.
    reserved=("<|",),
    safe_grammar=(
        "one analysis message or none, then one final message, or a commentary message or none and one call; "
        "or an analysis message alone that breaks off. No text holds `<|`; content before a call has no "
        "white space around it and is no beginning of the word commentary; the call's function name has no "
        "dot, its arguments are spelled as json.dumps spells them; the first message has no "
        "`<|start|>assistant`, which the prompt wrote."
    ),
    origin="the harmony format's published examples of model output, as SGLang's HarmonyParser reads them",
    own_tokenizer=False,
)
