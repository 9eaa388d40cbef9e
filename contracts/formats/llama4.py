"""Llama 4: calls as a Python list of function calls, no thinking.

Place in the flow: data. Imports `contracts.calls` and `contracts.formats.base` only.
"""

from __future__ import annotations

from contracts.calls import PythonicCalls
from contracts.formats.base import Format

FORMAT = Format(
    name="llama4",
    models=("meta-llama/Llama-4-Scout-17B-16E-Instruct", "meta-llama/Llama-4-Maverick-17B-128E-Instruct"),
    reasoning_parsers=(),
    tool_parsers=("pythonic",),
    opener="",
    closer="",
    end_tokens=("<|eot|>", "<|eom|>"),
    template_switch="",
    opener_prefilled=False,
    # A negative number is no literal to the parser: the call is dropped.
    tools=PythonicCalls(spoils=(": -", "[-", ", -")),
    reserved=("<|python_start|>", "<|python_end|>"),
    safe_grammar=(
        "content without white space around it, a list of calls or both, end token. Names and keys are "
        "Python identifiers; values are texts in double quotes, numbers that are not negative, True, False, "
        "None, lists and maps of them, spelled as json.dumps spells what is JSON."
    ),
    origin="the pythonic tool prompt of Llama 4's model card, as SGLang's PythonicDetector reads it",
    own_tokenizer=False,
)
