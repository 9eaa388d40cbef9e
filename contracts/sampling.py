"""What bends sampling: the request parameters after which a response is no plain sample of the model.

Place in the flow: under capture and rules. Imports `contracts.records` only; the one list of its kind.
"""

from __future__ import annotations

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
    "min_p",
    "ignore_eos",
    "custom_logit_processor",
)
"""Parameters that bend what the model would have said."""

_NEUTRAL: Mapping[str, tuple[Json, ...]] = {"repetition_penalty": (1, 1.0)}


def bent_by(sampling: Mapping[str, Json], *, tools: bool) -> dict[str, Json]:
    """Return the parameters of a request that bend its sampling, by name; empty for a plain sample.

    `tools` says whether the request declared any: only then does a forced tool choice do anything.
    """
    found = {
        name: sampling[name]
        for name in BENDING
        if sampling.get(name) and sampling[name] not in _NEUTRAL.get(name, ())
    }
    if tools and sampling.get("tool_choice") not in (None, "auto", "none"):
        found["tool_choice"] = sampling["tool_choice"]
    return found
