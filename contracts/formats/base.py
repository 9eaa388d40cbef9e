"""What is pure data about a model family: its markers, end tokens, switch, parser names, framing policy.

Place in the flow: under the judge and the rules. Imports `contracts.calls`, `contracts.layouts` and
`contracts.records` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from contracts.calls import ToolSyntax
from contracts.layouts import THINK, Layout
from contracts.records import Json, ThinkingMode

Forcing = Literal["switch", "always", "never"]
"""When the family's reasoning parser takes a response for reasoning before it saw an opener."""


@dataclass(frozen=True, slots=True)
class Format:
    """How one model family writes its output.

    `opener` and `closer` are empty for a family without thinking. `opener_prefilled` is the framing policy
    where the prompt is not known: whether the chat template ends the thinking prompt with the opener.
    `end_tokens` lists the usual one first. `template_switch` is the chat template's argument that turns
    thinking on or off. `reserved` lists further texts that the family's parsers react to. `safe_grammar`
    states in words the outputs for which the verdict is `exact`; the property tests draw from it. `origin`
    says where the canonical output comes from; `own_tokenizer` whether the family was run with its own
    tokenizer. `layout` is how reasoning, content and calls are framed. `forcing` says when the reasoning
    parser begins inside the reasoning: by the template switch, always, or never; `thinks_by_default` whether
    a request that does not set the switch asks for thinking. `call_end` is the end token after calls where
    it is not the usual one.
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
    layout: Layout = THINK
    forcing: Forcing = "switch"
    thinks_by_default: bool = True
    call_end: str = ""

    @property
    def reasoning_parser(self) -> str:
        """Return the SGLang reasoning parser to boot with, empty for a family without thinking."""
        return self.reasoning_parsers[0] if self.reasoning_parsers else ""

    @property
    def tool_parser(self) -> str | None:
        """Return the SGLang tool-call parser to boot with, if shardgate knows the family's calls."""
        return self.tool_parsers[0] if self.tool_parsers else None

    @property
    def markers(self) -> tuple[str, ...]:
        """Return every marker as text, think markers first, none twice."""
        tools = self.tools.markers if self.tools else ()
        framing = self.layout.markers or (self.opener, self.closer)
        return tuple(dict.fromkeys(text for text in (*framing, *tools) if text))

    @property
    def thinks(self) -> bool:
        """Return whether the family has think markers at all."""
        return bool(self.opener)

    @property
    def default_mode(self) -> ThinkingMode:
        """Return what a request asks for that does not set the template switch."""
        return ThinkingMode.THINKING if self.thinks_by_default else ThinkingMode.INSTANT

    def asked(self, template_kwargs: Mapping[str, Json]) -> ThinkingMode:
        """Return what a request asks for by its template switch: only a true or false counts."""
        sent = template_kwargs.get(self.template_switch)
        if sent is True or sent is False:
            return ThinkingMode.THINKING if sent else ThinkingMode.INSTANT
        return self.default_mode

    def forced(self, asked: ThinkingMode) -> bool:
        """Whether the reasoning parser begins inside the reasoning, given what the request asked for."""
        if self.forcing == "switch":
            return asked is not ThinkingMode.INSTANT
        return self.forcing == "always"

    def with_tools_of(self, other: Format) -> Format:
        """Return this family's thinking with the calls of another: a server may be booted with any pair.

        What both families end with ends a response; the one's own texts stay reserved in the other's.
        """
        return replace(
            self,
            name=f"{self.name}+{other.name}",
            tool_parsers=other.tool_parsers,
            tools=other.tools,
            call_end=other.call_end,
            end_tokens=tuple(dict.fromkeys((*self.end_tokens, *other.end_tokens))),
            reserved=tuple(dict.fromkeys((*self.reserved, *other.reserved))),
            safe_grammar=f"thinking as {self.name}, calls as {other.name}",
            origin=f"{self.origin}; {other.origin}",
            own_tokenizer=self.own_tokenizer and other.own_tokenizer,
        )
