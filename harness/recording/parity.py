"""Prompt parity: the ids that a prompt was, against what it should be; each difference with its cause.

Place in the flow: beside the maker. Imports `contracts` and `harness.modes`. Two questions:

    prompts   are the ids that the server made of a request those that the model's own template gives?
    turns     does the next turn's prompt begin with the ids of the turn before, its prompt and its response?

A template that leaves earlier reasoning out answers the second with no, by its maker's will; a trainer that
takes a conversation for one sequence of ids must know it all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from os import SEEK_END
from pathlib import Path
from typing import Any, Literal

from contracts.formats import Format
from contracts.given import Template
from contracts.records import Json, Prompt, SegmentKind
from contracts.rendering import Unrenderable, renderings
from contracts.shard import ShardError, message_struct
from contracts.tokens import Codec, UndecodableToken
from harness.modes import PROMPT_FIELDS

Kind = Literal["prompts", "turns"]
PARITY_FILE = "parity.jsonl"
SAME = "same"
NOT_COMPARED = "not-compared"
SHOWN = 8
"""Tokens of either side that a difference shows."""

CAUSES: Mapping[str, str] = {
    "other-tools-form": "the declared tools are written in another form than the request has them in: the "
    "engine fills in keys of its own, or the template was made for the bare functions",
    "other-arguments-form": "earlier calls' arguments, or the empty content beside them, reach the "
    "template in another form",
    "tools-left-out": "the declared tools are not in the prompt",
    "request-fields": "fields of the request beside the template's arguments shape the prompt",
    "bos-doubled": "the prompt begins with the BOS token twice: the template writes it and the tokenizer too",
    "bos-added": "the prompt begins with a BOS token that the template does not write",
    "bos-missing": "the BOS token that the template writes is not there",
    "thinking-switch": "the prompt is that of the other thinking mode",
    "system-prompt-added": "a system prompt is there that the request does not have",
    "system-prompt-missing": "the system prompt that the template writes by itself is not there",
    "other-system-prompt": "the system prompt is another one than the template writes by itself",
    "white-space-at-end": "white space at the end differs, behind the generation prompt",
    "generation-prompt": "the generation prompt at the end differs",
    "other-tokens": "the same text in other tokens",
    "split-at-boundary": "the same text, other tokens where the response ends and the template goes on",
    "reasoning-dropped": "the template leaves the reasoning of the earlier turn out",
    "opener-dropped": "the opener of thinking, which ended the prompt before, is not in the history",
    "arguments-rewritten": "a call was read and written again: other spacing, order of keys, id, number form",
    "white-space-trimmed": "white space of the earlier answer was trimmed or added",
    "end-token": "the earlier answer ends with another token than the model generated",
    "earlier-turns": "what stood before the earlier answer is written another way now",
    "differs": "the texts differ; none of the known causes gives this one",
}
"""Cause → what it means, in plain words."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One prompt that is not what it should be: the row, from which token on, why, and both sides there."""

    sample_id: str
    kind: Kind
    cause: str
    position: int
    expected: str
    found: str

    def line(self) -> str:
        """Return it as a line of `parity.jsonl`."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True)
class Turn:
    """An answered turn: its prompt's and response's ids, the response's segments, and its reasoning.

    `segments` are run lengths over the response's ids.
    """

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    segments: Sequence[tuple[SegmentKind, int]]
    reasoning: str | None


class Parity:
    """Finds the causes; `template` None: what needs it is told as `differs`."""

    def __init__(self, codec: Codec, fmt: Format, template: Template | None) -> None:
        self._codec = codec
        self._format = fmt
        self._template = template
        self._likely = 0

    def prompt(
        self, sample_id: str, prompt: Prompt, made: Sequence[int], used: Sequence[int]
    ) -> Drift | None:
        """Hold the ids that were used against those that the template made; None where they are the same."""
        if list(made) == list(used):
            return None
        return self._drift(
            sample_id, "prompts", self._prompt_cause(prompt, list(made), list(used)), made, used
        )

    def turn(self, sample_id: str, before: Turn, prompt_ids: Sequence[int]) -> Drift | None:
        """Say whether a prompt goes on from the turn before; None where it does."""
        told = [*before.prompt_ids, *before.response_ids]
        if list(prompt_ids[: len(told)]) == told:
            return None
        return self._drift(
            sample_id, "turns", self._turn_cause(before, told, list(prompt_ids)), told, prompt_ids
        )

    def _drift(
        self, sample_id: str, kind: Kind, cause: str, expected: Sequence[int], found: Sequence[int]
    ) -> Drift:
        at = _parting(expected, found)
        shown = (self._text(ids[at : at + SHOWN]) or "" for ids in (expected, found))
        return Drift(sample_id, kind, cause, at, *shown)

    def _text(self, ids: Sequence[int]) -> str | None:
        try:
            return self._codec.decode_bytes(list(ids)).decode("utf-8", "replace")
        except UndecodableToken:
            return None

    def _prompt_cause(self, prompt: Prompt, made: list[int], used: list[int]) -> str:
        if used[1:] == made:
            return "bos-doubled" if used[0] == used[1] else "bos-added"
        if made[1:] == used:
            return "bos-missing"
        ours, theirs = self._text(made), self._text(used)
        if ours is None or theirs is None:
            return "differs"
        if ours == theirs:
            return "other-tokens"
        if ours.rstrip() == theirs.rstrip():
            return "white-space-at-end"
        known = self._rendered_otherwise(prompt, ours, theirs)
        return known or self._edges(prompt, ours, theirs)

    def _rendered_otherwise(self, prompt: Prompt, ours: str, theirs: str) -> str | None:
        """Return the cause by which the template itself gives the text that was used."""
        if self._template is None:
            return None
        variants = list(self._variants(prompt))
        # What one row was, the next ones mostly are too.
        order = sorted(range(len(variants)), key=lambda number: number != self._likely)
        for number in order:
            cause, tools, kwargs = variants[number]
            try:
                messages = [message_struct(message) for message in prompt.messages]
                texts = renderings(self._template, messages, tools, kwargs, datetime.now(UTC))
                if any(text == theirs for text in texts):
                    self._likely = number
                    return cause or _form(prompt, ours, theirs)
            except (Unrenderable, ShardError):
                continue
        return None

    def _variants(self, prompt: Prompt) -> Iterator[tuple[str, list[Any] | None, Mapping[str, Json]]]:
        tools = [dict(tool) for tool in prompt.tools] if prompt.tools else None
        kwargs = dict(prompt.template_kwargs)
        switch = self._format.template_switch
        yield "", tools, kwargs
        yield "tools-left-out", None, kwargs
        for value in (True, False):
            yield "thinking-switch", tools, {**kwargs, switch: value}
        fields = {name: prompt.sampling[name] for name in PROMPT_FIELDS if name in prompt.sampling}
        yield "request-fields", tools, {**kwargs, **fields}

    def _edges(self, prompt: Prompt, ours: str, theirs: str) -> str:
        """Return the cause where one text is the other with a piece more, at its begin or its end."""
        head = _parting(ours, theirs)
        if head == min(len(ours), len(theirs)):
            return "generation-prompt"
        tail = _parting(ours[head:][::-1], theirs[head:][::-1])
        first = next((str(message.get("content") or "") for message in prompt.messages), "")
        # What differs ends before the first message begins.
        before = len(ours) - tail <= ours.find(first)
        if before and prompt.messages[0].get("role") != "system":
            if head + tail >= len(ours):
                return "system-prompt-added"
            return "system-prompt-missing" if head + tail >= len(theirs) else "other-system-prompt"
        last = str(prompt.messages[-1].get("content") or "")
        if last and head >= ours.rfind(last) + len(last.rstrip()):
            return "generation-prompt"
        return "differs"

    def _turn_cause(self, before: Turn, told: list[int], now: list[int]) -> str:
        then, text = self._text(told), self._text(now)
        if then is None or text is None:
            return "differs"
        at = _parting(told, now)
        if text.startswith(then):
            return "split-at-boundary" if at >= len(told) - 2 else "other-tokens"
        reasoning = (before.reasoning or "").strip()
        head = _parting(then, text)
        if reasoning and reasoning in then[max(head - len(reasoning), 0) :] and reasoning not in text[head:]:
            return "reasoning-dropped"
        start = len(before.prompt_ids)
        opener = self._format.opener
        if at < start:
            rest = (self._text(told[at:start]) or "").strip()
            return "opener-dropped" if opener and rest == opener else "earlier-turns"
        kind = _segment(before.segments, at - start)
        if kind is SegmentKind.TOOL_SECTION:
            return "arguments-rewritten"
        if kind is SegmentKind.END:
            return "end-token"
        if "".join(text[head:].split()).startswith("".join(then[head:].split())):
            return "white-space-trimmed"
        if kind in (SegmentKind.OPENER, SegmentKind.CLOSER):
            return "reasoning-dropped"
        return "differs"


def _form(prompt: Prompt, ours: str, theirs: str) -> str:
    """Return what is written in another form where the template gives both texts: the tools, or calls."""
    if not prompt.tools:
        return "other-arguments-form"
    said = next((str(m.get("content")) for m in prompt.messages if m.get("content")), "")
    calls = any(message.get("tool_calls") for message in prompt.messages)
    later = said and _parting(ours, theirs) > ours.find(said) >= 0
    return "other-arguments-form" if calls and later else "other-tools-form"


def _parting(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the first place where two sequences differ; the shorter one's length where none does."""
    both = min(len(one), len(other))
    return next((at for at in range(both) if one[at] != other[at]), both)


def _segment(segments: Sequence[tuple[SegmentKind, int]], at: int) -> SegmentKind | None:
    for kind, length in segments:
        if at < length:
            return kind
        at -= length
    return None


class ParityFile:
    """The run folder's `parity.jsonl`: a line for each difference of a row that is captured.

    Lines are written some times a minute, after their rows; a run that is killed leaves the last ones out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []

    def add(self, drifts: Iterable[Drift]) -> None:
        """Take lines to write."""
        self._lines += [drift.line() for drift in drifts]

    def flush(self) -> None:
        """Write what is there; where that can't be, it is tried again next time."""
        if not self._lines:
            return
        data = "".join(self._lines).encode("utf-8", "replace")
        with suppress(OSError):  # the store says that the disk is full, and stops the run
            with self._path.open("ab+") as file:
                size = file.seek(0, SEEK_END)
                if size:
                    file.seek(size - 1)
                    # What a killed run left unfinished ends here.
                    data = data if file.read(1) == b"\n" else b"\n" + data
                file.write(data)
            self._lines = []
