"""How a family writes tool calls: the interface of a tool syntax, and what reading one gives.

Place in the flow: data and grammar under the formats. Imports the standard library and `contracts.records`
types only.

A syntax is used from both sides and must not mix them: `write` makes the calls' text from the response's
fields alone (the rebuilder), `read` finds in the model's own bytes what the model wrote (the checker).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from contracts.records import Json

Handed = Mapping[str, Json]
"""A call as the response hands it out: `name`, `arguments` (JSON text) and `id`."""

Spelling = Literal["any", "dumped", "strings"]
"""Which arguments a parser hands out unchanged: any JSON text; only the text that `json.dumps(value,
ensure_ascii=False)` makes; only parameters whose values are plain texts (typed syntaxes)."""

Kind = Literal["string", "integer", "number", "boolean", "array", "object"]
"""A declared type of a parameter whose values a typed syntax hands out unchanged."""

Texts = Literal["any", "trimmed", "prose", "words"]
"""Which texts a typed syntax hands out unchanged: any that hold no marker; those without white space around
them; those without quotes and backslashes that are no JSON; letters and digits alone. A JSON word (`null`) is
in none of them."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One marker in the raw bytes: its text, byte range and first token."""

    text: str
    start: int
    end: int
    token: int


@dataclass(frozen=True, slots=True)
class ReadCall:
    """One call as the model wrote it.

    `header` is the text that names the function (Kimi's call id, elsewhere the name), white space included;
    `arguments` the arguments as written. `complete` is false for a call that breaks off. `canonical` is
    false where the wrapping around header and arguments is not the family's own spelling.
    """

    header: str
    arguments: str
    start: int
    complete: bool
    canonical: bool = True


@dataclass(slots=True)
class Section:
    """A run of calls: byte range, its calls, text between them, markers that fit nowhere.

    `open` tells that it was never closed.
    """

    start: int
    end: int
    open: bool = False
    calls: list[ReadCall] = field(default_factory=list)
    between: list[tuple[int, int]] = field(default_factory=list)
    stray: list[Mark] = field(default_factory=list)


class ToolSyntax(ABC):
    """The way in which a family writes its tool calls.

    Subclasses are frozen dataclasses in this package, one per kind of syntax; a format names one with its
    own markers.
    """

    __slots__ = ()

    prefix: str = ""
    """What the model writes between the closer of its thinking and what comes before or as a call, where
    the family's parsers strip it."""

    lead: str = ""
    """What the model writes between a text and the calls after it, where the parsers strip it."""

    lead_alone: bool = False
    """Whether `lead` stands before calls that no text precedes as well."""

    prefix_prefilled: bool = False
    """Whether `prefix` is written also where the prompt closed the thinking already."""

    keeps_text: bool = False
    """Whether the parsers hand out the text before a call as it is, white space included."""

    spelling: Spelling = "dumped"
    """Which arguments survive the family's parsers."""

    kinds: tuple[Kind, ...] = ("string",)
    """Where `spelling` is `strings`: the declared types whose values survive."""

    texts: Texts = "words"
    """Where `spelling` is `strings`: the texts that survive."""

    spoils: tuple[str, ...] = ()
    """Where `spelling` is `strings`: further texts that no surviving value holds."""

    has_ids: bool = False
    """Whether the model writes the calls' ids itself."""

    alone: bool = False
    """Whether calls come in place of a content, never after one."""

    parallel: bool = True
    """Whether one response may hold several calls."""

    @property
    @abstractmethod
    def markers(self) -> tuple[str, ...]:
        """Return the texts that structure a section."""

    @property
    @abstractmethod
    def begins(self) -> tuple[str, ...]:
        """Return the markers of which any begins a section."""

    @abstractmethod
    def read(self, raw: bytes, marks: Sequence[Mark], start: int, stop: int) -> Section:
        """Read the section at byte `start`; `marks` are all its markers, `stop` the text's end."""

    @abstractmethod
    def write(self, calls: Sequence[Handed]) -> str:
        """Return the text of a section with these calls, in the family's canonical form."""

    def written(self, arguments: str) -> str:
        """Return how arguments, as handed out, stand in the model's own text."""
        return arguments

    def find(self, raw: bytes, marks: Sequence[Mark], at: int, stop: int) -> int | None:
        """Return the byte at which the next section begins, None for none."""
        found = next((mark.start for mark in marks if mark.start >= at and mark.text in self.begins), None)
        return None if found is None or found >= stop else found

    def name_of(self, header: str) -> str | None:
        """Return the function name that a header carries, None where it is none."""
        return header.strip() or None

    def leaves(self, content: str) -> bool:
        """Whether the parsers leave a content alone that holds no marker."""
        return True

    def takes(self, name: str) -> bool:
        """Whether the syntax can carry a declared function's name, as its parsers read it."""
        return bool(name)

    def follows(self, text: str) -> bool:
        """Whether the family's parsers hand out this text before a call at all."""
        return True

    def same_spelling(self, given: str, written: str) -> bool:
        """Whether arguments as handed out are, written back, the arguments as the model wrote them."""
        return given == written.strip()

    def same_meaning(self, given: str, written: str) -> bool:
        """Whether arguments as handed out mean what the model wrote."""
        return same_json(given, written)


def same_json(a: str, b: str) -> bool:
    """Whether two texts are the same JSON value; integers and floats are told apart, and no key is twice."""

    def strict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if len(set(keys)) != len(keys):
            raise ValueError("duplicate keys")
        return dict(pairs)

    def load(text: str) -> Any:
        return json.loads(text, object_pairs_hook=strict, parse_float=lambda x: ("float", float(x)))

    try:
        left, right = load(a), load(b)
        return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    except (ValueError, RecursionError, TypeError):
        return False


def text_of(raw: bytes, start: int, end: int) -> str:
    """Return bytes as text; what is no UTF-8 becomes replacement characters."""
    return raw[start:end].decode("utf-8", "replace")
