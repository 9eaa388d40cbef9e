"""What bends sampling: the request parameters after which a response is no plain sample of the model.

Place in the flow: under capture and rules. Imports `contracts.records` only; the one list of its kind.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from contracts.records import Json

GRAMMARS = ("response_format", "regex", "ebnf", "json_schema", "structural_tag")
"""Parameters that force the output's form."""

BENDING = (
    *GRAMMARS,
    "logit_bias",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_tokens",
    "min_new_tokens",
    "min_p",
    "ignore_eos",
    "custom_logit_processor",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "allowed_token_ids",
    "bad_words",
    "use_beam_search",
    "best_of",
)
"""Parameters that bend what the model would have said, under the names of SGLang, OpenAI and vLLM."""

_NEUTRAL: Mapping[str, tuple[Json, ...]] = {
    "repetition_penalty": (1, 1.0),
    "best_of": (1,),
    "response_format": ({"type": "text"}, "text"),
}


_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, sys.float_info.max),
    "top_p": (sys.float_info.min, 1),
    "min_p": (0, 1),
    "top_k": (-1, sys.float_info.max),
    "n": (1, sys.float_info.max),
    "max_tokens": (0, sys.float_info.max),
    "max_new_tokens": (0, sys.float_info.max),
    "max_completion_tokens": (0, sys.float_info.max),
}
"""What the engine takes, both ends included; any of them may be null. Source: SGLang 0.5.23,
`SamplingParams.verify`."""


def impossible(sampling: Mapping[str, Json]) -> list[str]:
    """Return the names of the parameters whose values no engine takes: no number, or outside its range."""
    found = []
    for name, (low, high) in _RANGES.items():
        value = sampling.get(name)
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high:
            found.append(name)
    return found


def bent_by(sampling: Mapping[str, Json], *, tools: bool) -> dict[str, Json]:
    """Return the parameters of a request that bend its sampling, by name; empty for a plain sample.

    `tools` says whether the request declared any: only then does a forced tool choice do anything.
    """
    more = sampling.get("extra_body")
    if isinstance(more, Mapping):  # what the OpenAI client takes there is a parameter like the others
        sampling = {**more, **sampling}
    found = {
        name: sampling[name]
        for name in BENDING
        if sampling.get(name) and sampling[name] not in _NEUTRAL.get(name, ())
    }
    if tools and sampling.get("tool_choice") not in (None, "auto", "none"):
        found["tool_choice"] = sampling["tool_choice"]
    return found
