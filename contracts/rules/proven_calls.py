"""A batch's tool calls as they stand in the responses' text, and which of them their family surely reads
back.

Place in the flow: under `contracts.rules.proven`. Imports `contracts.calls`, `contracts.formats` and
`contracts.rules.handed`; numpy and polars inside functions.

Between the fixed texts of its family's syntax a call has two parts of its own: the header (the id where the
model writes it, the name elsewhere) and the arguments. Headers are few, so each is looked at once.
Arguments that stand in the text as they were handed out are checked for the whole batch; those that the
syntax writes in another form (parameters between tags, Python's keywords) are written once for each
distinct text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contracts.calls import (
    BareCalls,
    HarmonyCalls,
    KeyedCalls,
    ListedCalls,
    Mark,
    MarkedCalls,
    ParameterCalls,
    PythonicCalls,
    TaggedCalls,
    TaggedOrListed,
    ToolSyntax,
)
from contracts.rules.handed import Calls, objects

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

LITERAL = (MarkedCalls, TaggedCalls, TaggedOrListed, ListedCalls, BareCalls, HarmonyCalls)
"""The syntaxes that write arguments as they were handed out."""
WRITTEN = (ParameterCalls, KeyedCalls, PythonicCalls)
"""The syntaxes that write them in a form of their own."""

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
CALL_ID = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]*")
"""Headers that every syntax reads back, and that no marker can be part of; others are the judge's."""
BARE_LIST = r"\[[A-Za-z][\w.\-]*\("
"""What a family whose calls have no marker takes for the beginning of a list of calls."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The two parts of each call. `fine` says whether the family reads them back as they are.

    `markers` counts the marker tokens that a written form holds by itself.
    """

    headers: pl.Series
    arguments: pl.Series
    fine: np.ndarray[Any, Any]
    markers: np.ndarray[Any, Any]


def readable_calls(syntax: ToolSyntax | None, markers: Sequence[str]) -> bool:
    """Whether a family's calls can be told by their parts: a syntax known here, its texts apart from
    headers."""
    return syntax is None or (
        type(syntax) in LITERAL + WRITTEN and not any(CALL_ID.fullmatch(marker) for marker in markers)
    )


def stand_ins(syntax: ToolSyntax, count: int) -> list[dict[str, str]]:
    """Return calls that stand for any others: no part of one occurs in another."""
    out = []
    for number in range(count):
        name = f"tool-{number:03}"
        call_id = f"functions.{name}:{number}" if syntax.has_ids else f"call-{number:03}"
        out.append({"id": call_id, "name": name, "arguments": json.dumps({"k": f"value {number:03}"})})
    return out


def parts_of(syntax: ToolSyntax, call: dict[str, str]) -> tuple[str, str]:
    """Return a call's two parts: its header, and its arguments as they stand in the text."""
    return call["id" if syntax.has_ids else "name"], syntax.written(call["arguments"])


def slots_of(calls: Calls, syntax: ToolSyntax, texts: Mapping[str, bool]) -> Slots:
    """Return the parts of all calls of a batch.

    `texts` are the family's markers and end tokens, and whether each is a token.
    """
    import numpy as np

    headers = calls.ids if syntax.has_ids else calls.names
    fine = _known(headers, calls.names, syntax)
    if type(syntax) in LITERAL:
        arguments = calls.arguments
        fine &= ~arguments.str.contains_any(list(texts)).fill_null(True).to_numpy() & objects(arguments)
        return Slots(headers, arguments, fine, np.zeros(len(fine), dtype=np.int64))
    arguments, counts = _written(calls.arguments, syntax, texts)
    return Slots(headers, arguments.fill_null(""), fine & arguments.is_not_null().to_numpy(), counts)


def _known(headers: pl.Series, names: pl.Series, syntax: ToolSyntax) -> np.ndarray[Any, Any]:
    """Return which headers name their function; each distinct pair is asked once."""
    import polars as pl

    frame = pl.DataFrame({"header": headers, "name": names})
    kinds = frame.unique()
    form = CALL_ID if syntax.has_ids else NAME
    known = [
        form.fullmatch(header) is not None and syntax.name_of(header) == name
        for header, name in kinds.iter_rows()
    ]
    told = kinds.with_columns(known=pl.Series(known, dtype=pl.Boolean))
    joined = frame.join(told, on=["header", "name"], how="left", maintain_order="left")
    return joined["known"].fill_null(False).to_numpy(writable=True)


def _written(
    arguments: pl.Series, syntax: ToolSyntax, texts: Mapping[str, bool]
) -> tuple[pl.Series, np.ndarray[Any, Any]]:
    """Return the arguments as written (null: not for sure read back) and the markers in each."""
    import polars as pl

    kinds = arguments.unique()
    write = _Writer(syntax, texts)
    made = [write(text) for text in kinds.to_list()]
    told = pl.DataFrame(
        {
            "arguments": kinds,
            "written": pl.Series([one[0] for one in made], dtype=pl.String),
            "markers": pl.Series([one[1] for one in made], dtype=pl.Int64),
        }
    )
    joined = arguments.to_frame("arguments").join(told, on="arguments", how="left", maintain_order="left")
    return joined["written"], joined["markers"].to_numpy()


class _Writer:
    """Writes arguments in a syntax's own form, where that is sure to be read back."""

    def __init__(self, syntax: ToolSyntax, texts: Mapping[str, bool]) -> None:
        self.syntax, self.texts = syntax, texts
        self.per_text = self._counts(syntax.written('{"k": "v"}'))
        alike = self._counts(syntax.written('{"k": 1}')) == self.per_text
        two = self._counts(syntax.written('{"k": "v", "l": "v"}')) == [2 * n for n in self.per_text]
        self.sure = two and (alike or isinstance(syntax, KeyedCalls))
        self.tags = _tags(syntax) if isinstance(syntax, ParameterCalls) else re.compile("(?!)")
        self.sure = self.sure and not self.tags.search(syntax.written('{"k": "v", "l": 1}'))
        self.empty = self._reads_empty()

    def _counts(self, written: str) -> list[int]:
        return [written.count(text) for text in self.texts]

    def _reads_empty(self) -> bool:
        """Whether a call without arguments, between two others, is read back as it is."""
        calls = stand_ins(self.syntax, 3)
        whole = self._counts(self.syntax.write(calls))
        calls[1]["arguments"] = "{}"
        text = self.syntax.write(calls)
        raw, found = text.encode(), []
        for marker in self.syntax.markers:
            needle, at = marker.encode(), -1
            while (at := raw.find(needle, at + 1)) >= 0:
                found.append(Mark(marker, at, at + len(needle), 0))
        found.sort(key=lambda mark: mark.start)
        start = self.syntax.find(raw, found, 0, len(raw))
        if start is None:
            return False
        section = self.syntax.read(raw, found, start, len(raw))
        alike = [
            call.header == given["name"]
            and call.complete
            and call.canonical
            and call.arguments == call.arguments.strip()
            and self.syntax.same_spelling(given["arguments"], call.arguments)
            for call, given in zip(section.calls, calls, strict=False)
        ]
        one = self._counts(self.syntax.written('{"k": "v"}'))
        counts = [a + b for a, b in zip(self._counts(text), one, strict=True)]
        return (
            [len(section.calls), all(alike), bool(section.between), section.open] == [3, True, False, False]
            and self.syntax.written("{}") == ""
            and counts == whole
        )

    def __call__(self, arguments: str) -> tuple[str | None, int]:
        """Return the written form and how many markers are in it; None where it may be read as another."""
        try:
            values = json.loads(arguments)
        except (ValueError, RecursionError):
            return None, 0
        if not self.sure or not isinstance(values, dict) or not (values or self.empty):
            return None, 0
        try:
            written = self.syntax.written(arguments)
            written.encode()
        except (ValueError, RecursionError):
            return None, 0
        if isinstance(self.syntax, ParameterCalls):
            sure = self.tags.search(written) is None
            texts = len(values)
        elif isinstance(self.syntax, KeyedCalls):
            sure, texts = written == written.strip(), _texts_in(values)
        else:
            sure, texts = all(_is_word(key) for key in values), 0
        counts = self._counts(written)
        if not sure or counts != [texts * n for n in self.per_text]:
            return None, 0
        return written, sum(n for n, is_token in zip(counts, self.texts.values(), strict=True) if is_token)


def _tags(syntax: ParameterCalls) -> re.Pattern[str]:
    """Return what tells the family where a call begins and ends, in any white space that it takes."""
    tags = [syntax.call_begin, syntax.call_end, syntax.section_end]
    loose = [r"\s*".join(map(re.escape, _BREAKS.split(tag.strip()))) for tag in tags if tag.strip()]
    _, *inner = syntax.call_begin.split()
    return re.compile("|".join([*loose, *(re.escape(tag) for tag in inner if tag.startswith("<"))]))


_BREAKS = re.compile(r"\s+|(?<=>)(?=<)")
"""Where a tag may be written with other white space than the family's."""


def _texts_in(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_texts_in, value.values()))
    if isinstance(value, list):
        return sum(map(_texts_in, value))
    return isinstance(value, str)


def _is_word(key: str) -> bool:
    return key.isascii() and key.isidentifier()
