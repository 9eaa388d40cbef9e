"""The rules of the contract, one module a subject; importing this package fills the registry.

Place in the flow: between the shard and the audit. Imports its own modules, which import nothing heavy until
a check runs. Adding a rule is adding one entry here and one corruption case in `fixtures/corruptions/`.
"""

from __future__ import annotations

from contracts.rules import (
    arguments,
    choices,
    dataset,
    declared,
    degenerate,
    fidelity,
    files,
    footer,
    limits,
    logprobs,
    mask,
    messages,
    names,
    order,
    parity,
    patchy,
    provenance,
    quality,
    rates,
    reasoning,
    recorded,
    shapes,
    shared,
    splits,
    structural,
    texts,
    tokens,
    tools,
    turns,
)
from contracts.rules.own import OwnRules, load_rules, own_rules, unload_rules
from contracts.rules.registry import BULK, ROW_CHECKS, RULES, SET_CHECKS, Context, RuleSpec
from contracts.thresholds import Thresholds

BUILT_IN = frozenset(RULES)
"""The rules that every process knows; a user's own come on top."""

__all__ = [
    "BUILT_IN",
    "BULK",
    "ROW_CHECKS",
    "RULES",
    "SET_CHECKS",
    "Context",
    "OwnRules",
    "RuleSpec",
    "Thresholds",
    "arguments",
    "choices",
    "dataset",
    "declared",
    "degenerate",
    "fidelity",
    "files",
    "footer",
    "limits",
    "load_rules",
    "logprobs",
    "mask",
    "messages",
    "names",
    "order",
    "own_rules",
    "parity",
    "patchy",
    "provenance",
    "quality",
    "rates",
    "reasoning",
    "recorded",
    "shapes",
    "shared",
    "splits",
    "structural",
    "texts",
    "tokens",
    "tools",
    "turns",
    "unload_rules",
]
