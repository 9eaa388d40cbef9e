"""What is pure data about a model family: its markers, end tokens, switch, parser names, framing policy.

Place in the flow: under the judge and the rules. Imports `contracts.calls` only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from contracts.calls import ToolSyntax


@dataclass(frozen=True, slots=True)
class Format:
    """How one model family writes its output.

    `opener` and `closer` are empty for a family without thinking. `opener_prefilled` is the framing policy
    where the prompt is not known: whether the chat template ends the thinking prompt with the opener.
    `end_tokens` lists the usual one first. `template_switch` is the chat template's argument that turns
    thinking off. `reserved` lists further texts that the family's parsers react to. `safe_grammar` states in
    words the outputs for which the verdict is `exact`; the property tests draw from it. `origin` says where
    the canonical output comes from; `own_tokenizer` whether the family was run with its own tokenizer.
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
        return tuple(dict.fromkeys(text for text in (self.opener, self.closer, *tools) if text))

    @property
    def thinks(self) -> bool:
        """Return whether the family has think markers at all."""
        return bool(self.opener)

    def with_tools_of(self, other: Format) -> Format:
        """Return this family's thinking with the calls of another: a server may be booted with any pair.

        What both families end with ends a response; the one's own texts stay reserved in the other's.
        """
        return replace(
            self,
            name=f"{self.name}+{other.name}",
            tool_parsers=other.tool_parsers,
            tools=other.tools,
            end_tokens=tuple(dict.fromkeys((*self.end_tokens, *other.end_tokens))),
            reserved=tuple(dict.fromkeys((*self.reserved, *other.reserved))),
            safe_grammar=f"thinking as {self.name}, calls as {other.name}",
            origin=f"{self.origin}; {other.origin}",
            own_tokenizer=self.own_tokenizer and other.own_tokenizer,
        )
