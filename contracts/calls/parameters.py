"""Calls as typed parameters between tags: Qwen3-Coder, GLM, DeepSeek's DSML, MiniMax and their like.

Place in the flow: a tool syntax. Imports `contracts.calls.base` and `contracts.calls.jsontext` only.

The model writes each value as plain text; the parser makes JSON of it by the declared type. Written back, a
JSON text becomes the plain text and any other value its JSON: what the type decided is then undone, whatever
the type was, and what the parser changed on the way shows as another text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from contracts.calls.base import (
    Handed,
    Kind,
    Mark,
    ReadCall,
    Section,
    Spelling,
    Texts,
    ToolSyntax,
    same_json,
    text_of,
)
from contracts.calls.jsontext import json_members


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as the model wrote it; `is_text` where the family marks texts, None where it does not."""

    key: str
    value: str
    is_text: bool | None


@dataclass(frozen=True)
class ParameterCalls(ToolSyntax):
    """`section_begin call (separator call)* section_end`; a call is
    `call_begin name name_end (parameter (joiner parameter)*)? call_end`, a parameter
    `parameter_begin key key_end value parameter_end`.

    Each text holds the white space of the family's own spelling. `section_begin` and `section_end` may be
    empty, the one without the other. `key_end_json` is `key_end` for values that are no texts, in families
    that say so. `words` lists JSON words with their own spelling. `marks` are the texts that structure a
    section, `opens` those of them that begin one.
    """

    call_begin: str
    name_end: str
    parameter_begin: str
    key_end: str
    parameter_end: str
    call_end: str
    marks: tuple[str, ...]
    opens: tuple[str, ...]
    key_end_json: str = ""
    joiner: str = ""
    separator: str = ""
    section_begin: str = ""
    section_end: str = ""
    words: tuple[tuple[str, str], ...] = ()
    prefix: str = ""
    lead: str = ""
    lead_alone: bool = False
    prefix_prefilled: bool = False
    keeps_text: bool = True
    spelling: Spelling = "strings"
    kinds: tuple[Kind, ...] = ("string", "integer", "number", "boolean", "array", "object")
    texts: Texts = "any"
    spoils: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the texts that structure a section."""
        return self.marks

    @property
    def begins(self) -> tuple[str, ...]:
        """Return the markers that begin a section."""
        return self.opens

    def name_of(self, header: str) -> str | None:
        """Return the name as it stands, white space included: the parsers hand it out so."""
        return header or None

    def write(self, calls: Sequence[Handed]) -> str:
        """Return the calls in the family's own spelling."""
        inner = self.separator.join(
            f"{self.call_begin}{call['name']}{self.name_end}{self.written(str(call['arguments']))}{self.call_end}"
            for call in calls
        )
        # An escaped lone surrogate has no bytes: the model can't have written it as text.
        return (self.section_begin + inner + self.section_end).encode("utf-8", "replace").decode()

    def written(self, arguments: str) -> str:
        """Return the parameters of a JSON object; other arguments can't be written and stay as they are."""
        if not isinstance(_loaded(arguments), dict):
            return arguments
        return self.joiner.join(self._parameter(key, value) for key, value in json_members(arguments))

    def _parameter(self, key: str, value: str) -> str:
        is_text = value.startswith('"')
        written = json.loads(value) if is_text else dict(self.words).get(value, value)
        end = self.key_end if is_text or not self.key_end_json else self.key_end_json
        return f"{self.parameter_begin}{key}{end}{written}{self.parameter_end}"

    def read(self, raw: bytes, marks: Sequence[Mark], start: int, stop: int) -> Section:
        """Read the calls from `start` on; white space between them that is not the family's is told."""
        opening, closing = self.section_begin.strip().encode(), self.section_end.strip().encode()
        section = Section(start, stop)
        at, end = start, stop
        wrapped = bool(opening) and raw.startswith(opening, start)
        if wrapped:
            at += len(opening)
            found = raw.find(closing, at, stop)
            end = stop if found < 0 else found
            section.open, section.end = found < 0, stop if found < 0 else found + len(closing)
        pattern = _loose(self.call_begin)
        while (begin := pattern.search(raw, at, end)) is not None:
            if not wrapped and (raw[at : begin.start()].strip() if section.calls else begin.start() != start):
                break  # text before a call that no section holds: the call is a section of its own
            self._gap(section, raw, at, begin.start(), self.separator if section.calls else None)
            calls, at = self._calls(raw, begin, end)
            # A family's call outside the family's section is not in its own spelling.
            own = wrapped or not opening
            section.calls.extend(call if own else replace(call, canonical=False) for call in calls)
        if wrapped:
            self._gap(section, raw, at, end, self.section_end)
        elif section.calls:
            tail = b"" if opening else self.section_end.encode()
            section.end = at + (len(tail) if raw.startswith(tail, at) and at + len(tail) <= stop else 0)
        else:
            last = self.call_end.split()[-1].encode() if self.call_end.strip() else b""
            found = raw.find(last, start, stop) if last else -1
            section.end = stop if found < 0 else found + len(last)
        section.open = section.open or any(not call.complete for call in section.calls)
        return section

    def _gap(self, section: Section, raw: bytes, at: int, end: int, own: str | None) -> None:
        """Note what stands between two calls, or before the first (`own` None), unless it is the family's."""
        head = self.section_begin[len(self.section_begin.rstrip()) :] if own is None else own
        lead = self.call_begin[: len(self.call_begin) - len(self.call_begin.lstrip())]
        expected = (
            {head, head + lead} if own is not self.section_end else {own[: len(own) - len(own.lstrip())]}
        )
        if at < end and text_of(raw, at, end) not in expected:
            section.between.append((at, end))

    def _calls(self, raw: bytes, begin: re.Match[bytes], end: int) -> tuple[list[ReadCall], int]:
        """Read the call that begins here, or several where its outer tag holds more than one."""
        following = _loose(self.call_begin).search(raw, begin.end(), end)
        limit = end if following is None else following.start()
        finish = _loose(self.call_end).search(raw, begin.end(), limit)
        until, at = (limit, limit) if finish is None else finish.span()
        if finish is None and self.call_end.strip():
            # A call whose outer tag closes all the same breaks off there.
            last = self.call_end.split()[-1].encode()
            found = raw.find(last, begin.end(), limit)
            until, at = (found, found + len(last)) if found >= 0 else (limit, limit)
        inner = re.escape(self._inner) or rb"(?!)"
        starts = [
            begin.end(),
            *(found.end() for found in re.compile(inner).finditer(raw, begin.end(), until)),
        ]
        if len(starts) == 1:
            return [self._call(raw, begin.start(), begin.end(), until, at, finish is not None)], at
        close = self.call_end.split()[0]
        calls = []
        for number, start in enumerate(starts):
            last_one = number == len(starts) - 1
            body = text_of(raw, start, until if last_one else starts[number + 1] - len(self._inner)).strip()
            header, rest = self._header(body.removesuffix(close))
            whole = finish is not None if last_one else body.endswith(close)
            calls.append(ReadCall(header, rest.strip(), start - len(self._inner), whole, canonical=False))
        return calls, at

    @property
    def _inner(self) -> bytes:
        """Return the tag inside a call's outer tag that begins the call itself, empty for none."""
        _, *inner = self.call_begin.split()
        return inner[0].encode() if len(inner) == 1 and inner[0].startswith("<") else b""

    def _call(self, raw: bytes, start: int, body: int, until: int, at: int, complete: bool) -> ReadCall:
        header, rest = self._header(text_of(raw, body, until))
        arguments = rest.strip()
        left = self.parameter_begin[: len(self.parameter_begin) - len(self.parameter_begin.lstrip())]
        right = self.parameter_end[len(self.parameter_end.rstrip()) :]
        inner = left + arguments + right if arguments else ""
        written = f"{self.call_begin.lstrip()}{header}{self.name_end}{inner}{self.call_end}"
        return ReadCall(header, arguments, start, complete, text_of(raw, start, at) == written)

    def _header(self, body: str) -> tuple[str, str]:
        """Divide a call's text into the name and what follows it."""
        own = self.name_end.strip()
        stops = [(body.find(text), text) for text in (own or "\n", self.parameter_begin.strip())]
        found = min(((at, text) for at, text in stops if at >= 0), default=(len(body), ""))
        after = found[0] + (len(own) if own and found[1] == own else 0)
        return body[: found[0]], body[after:]

    def parameters(self, written: str) -> Iterator[Parameter]:
        """Yield the parameters that a call's text holds, values without the family's own white space."""
        before = self.key_end[len(self.key_end.rstrip()) :]
        after = self.parameter_end[: len(self.parameter_end) - len(self.parameter_end.lstrip())]
        for match in self._pattern().finditer(written):
            is_text = match[2] == self.key_end.strip() if self.key_end_json else None
            yield Parameter(match[1].strip(), match[3].removeprefix(before).removesuffix(after), is_text)

    def _pattern(self) -> re.Pattern[str]:
        ends = [re.escape(end.strip()) for end in (self.key_end, self.key_end_json) if end]
        begin, end = re.escape(self.parameter_begin.strip()), re.escape(self.parameter_end.strip())
        return re.compile(f"{begin}(.*?)({'|'.join(ends)})(.*?){end}", re.DOTALL)

    def same_spelling(self, given: str, written: str) -> bool:
        """Whether arguments, written back as parameters, are the text that the model wrote."""
        return self.written(given).encode("utf-8", "replace").decode().strip() == written.strip()

    def same_meaning(self, given: str, written: str) -> bool:
        """Whether each parameter's value is what the model wrote, by its text or as JSON; none is twice."""
        values = _loaded(given)
        found = list(self.parameters(written))
        if not found and written.strip():
            return same_json(given, written)
        if self._pattern().sub("", written).strip():
            return False  # text outside any parameter
        if not isinstance(values, dict) or sorted(values) != sorted(each.key for each in found):
            return False
        return all(_same_value(values[each.key], each) for each in found)


def _same_value(value: Any, written: Parameter) -> bool:
    text = written.value.strip()
    if isinstance(value, str):
        # Unmarked, a text is what stands there: one stripped, or freed of its quotes, is another.
        if written.is_text is False:
            return same_json(json.dumps(value), text)
        return value == written.value
    if written.is_text:
        return False
    if value is None or isinstance(value, bool):
        return json.dumps(value) == text.lower()
    return same_json(json.dumps(value), text)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@lru_cache(maxsize=256)
def _loose(tag: str) -> re.Pattern[bytes]:
    """Return a pattern for a tag, with any white space where it has some or one tag of it meets the next."""
    parts = re.split(r"\s+|(?<=>)(?=<)", tag.strip())
    return re.compile(rb"\s*".join(re.escape(part.encode()) for part in parts))
