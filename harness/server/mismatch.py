"""An attached server's parsers against its model: the pre-flight check's words, after the boot.

Place in the flow: beside attaching, under the probe. Imports `contracts.formats`, `contracts.records` and the
stage's own modules. Where the model's files are on this machine they tell; elsewhere the vocabulary does,
which every server shows.
"""

from __future__ import annotations

from collections.abc import Callable

from contracts.errors import ShardgateError
from contracts.formats import Format, format_for, format_of_markers
from contracts.records import ServerFacts
from harness.server.http import is_loopback
from harness.server.preflight import Doubt, parser_doubts

REASONING, TOOLS = "--reasoning-parser", "--tool-call-parser"


def mismatches(facts: ServerFacts, token_id: Callable[[str], int | None]) -> tuple[Doubt, ...]:
    """Return what speaks against the parsers that a server was booted with, each with the flag to give.

    Args:
        facts: what the server reports about itself.
        token_id: the codec's: the id of a marker in the server's vocabulary, None where it is no token.
    """
    flags: list[str] = []
    for flag, name in ((REASONING, facts.reasoning_parser), (TOOLS, facts.tool_parser)):
        flags += [flag, name] if name else []
    tokenizer = facts.flags.get("tokenizer_path")
    if isinstance(tokenizer, str) and tokenizer:
        flags += ["--tokenizer-path", tokenizer]
    template = facts.flags.get("chat_template")
    if isinstance(template, str) and template:
        flags += ["--chat-template", template]
    found = parser_doubts(facts.model, flags) if is_loopback(facts.base_url) else None
    if found is not None:
        return tuple(doubt for doubt in found if doubt.severity != "notice")
    return _by_vocabulary(facts, token_id)


def _by_vocabulary(facts: ServerFacts, token_id: Callable[[str], int | None]) -> tuple[Doubt, ...]:
    shown = format_of_markers(token_id)
    if shown is None:
        return ()
    seen = ", ".join(text for text in shown.markers[:4] if text)
    why = f"its vocabulary has {seen}, as the family {shown.name} writes"
    out: list[Doubt] = []
    if not facts.reasoning_parser and shown.reasoning_parser and shown.thinks:
        out.append(
            Doubt(
                "it has no reasoning parser, and its vocabulary has think markers",
                f"{why}: where the model thinks, `content` holds it and `reasoning` is empty",
                f"boot it with {REASONING} {shown.reasoning_parser}",
                "warning",
            )
        )
    for flag, name, kind, suited in (
        (REASONING, facts.reasoning_parser, "reasoning parser", shown.reasoning_parsers),
        (TOOLS, facts.tool_parser, "tool-call parser", shown.tool_parsers),
    ):
        if name and suited and name not in suited and _lacks(_family(name, flag), token_id):
            out.append(
                Doubt(
                    f"the {kind} {name!r} reads markers that its vocabulary lacks",
                    why,
                    f"boot it with {flag} {suited[0]}",
                    "warning",
                )
            )
    return tuple(out)


def _family(name: str, flag: str) -> Format | None:
    try:
        return format_for(name, None) if flag == REASONING else format_for(None, name)
    except ShardgateError:
        return None


def _lacks(family: Format | None, token_id: Callable[[str], int | None]) -> bool:
    """Whether a family's markers are no tokens here, not one of them."""
    return family is not None and all(token_id(marker) is None for marker in family.markers)
