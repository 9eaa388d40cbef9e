"""What is pure data about a model family: its markers, end tokens, switch, parser names, framing policy.

Place in the flow: under the judge and the rules. Imports the standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """A tool section written between marker tokens.

    The canonical form is `section_begin (call_begin id argument_begin arguments call_end)+ section_end`,
    without white space. `id_pattern` has the group `name` where the id carries the function's name.
    """

    section_begin: str
    section_end: str
    call_begin: str
    argument_begin: str
    call_end: str
    id_pattern: re.Pattern[str]

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the section's markers as text."""
        return (self.section_begin, self.section_end, self.call_begin, self.argument_begin, self.call_end)

    def name_of(self, call_id: str) -> str | None:
        """Return the function name that a call id carries, or None."""
        found = self.id_pattern.match(call_id.strip())
        return found.group("name") if found else None


@dataclass(frozen=True, slots=True)
class Format:
    """How one model family writes its output.

    `opener_prefilled` is the framing policy where the prompt is not known: whether the chat template ends
    the thinking prompt with the opener. `end_tokens` lists the usual one first. `template_switch` is the
    chat template's argument that turns thinking off. `reserved` lists further texts that the family's parsers
    react to. `safe_grammar` states in words the outputs for which
    the verdict is `exact`; the property tests draw from it. `origin` says where the canonical output
    comes from; `own_tokenizer` whether the family was run with its own tokenizer.
    """

    name: str
    models: tuple[str, ...]
    reasoning_parsers: tuple[str, ...]
    tool_parsers: tuple[str, ...]
    opener: str
    closer: str
    end_tokens: tuple[str, ...]
    template_switch: str
    opener_prefilled: bool
    tools: ToolSyntax | None
    reserved: tuple[str, ...]
    safe_grammar: str
    origin: str
    own_tokenizer: bool

    @property
    def reasoning_parser(self) -> str:
        """Return the SGLang reasoning parser to boot with."""
        return self.reasoning_parsers[0]

    @property
    def tool_parser(self) -> str | None:
        """Return the SGLang tool-call parser to boot with, if shardgate knows the family's calls."""
        return self.tool_parsers[0] if self.tool_parsers else None

    @property
    def markers(self) -> tuple[str, ...]:
        """Return every marker as text, think markers first."""
        return (self.opener, self.closer, *(self.tools.markers if self.tools else ()))
