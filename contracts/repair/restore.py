"""The row that a stored digest was made of, found again: byte for byte, or not at all.

Place in the flow: under repair. Imports digests, fields and fidelity's judge of `contracts`.

`content_sha256` covers the prompt's digest, the response's ids and every column that training sees. Where a
row was changed after it was sealed, values that its ids and its other columns suggest are tried in the
changed columns' places until the digest is the stored one. What has that digest *is* the sealed row.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from contracts.digests import CONTENT_COLUMNS, content_sha256, ids_bytes, prompt_sha256
from contracts.digests import _json as json_bytes
from contracts.fields import fields_of, judgement_columns, target_of, with_fields
from contracts.formats import Format
from contracts.records import Fields, ThinkingMode
from contracts.rules.fidelity import judge_row
from contracts.shard import Row, dump, encode_matched_stop
from contracts.tokens import Codec

TRIES = 40_000
"""Digests per row, at the most."""

UNREADABLE = (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
"""What reading a row of any content may raise."""


def restored(row: Row, fmt: Format, codec: Codec) -> Row | None:
    """Return the row that has the stored content digest; None where none was found."""
    stored = row["content_sha256"]
    prompt = prompt_sha256(row)
    head = hashlib.sha256(prompt)
    head.update(ids_bytes(row["response_token_ids"]))
    frame = _Frame(head, row)
    options = [_Options(frame, values) for values in _options(row, fmt, codec)]
    for base in _bases(options):
        for changes in _deviations(options):
            chosen = dict(base)
            for change in changes:
                chosen.update(change)
            if frame.digest(chosen) == stored:
                found = {**row, **frame.values(chosen), "prompt_sha256": prompt}
                return found if content_sha256(found) == stored else None
            if frame.tries > TRIES:
                return None
    return None


Coded = Mapping[int, bytes]
"""Values of columns as the digest has them: the column's place among `CONTENT_COLUMNS`, its JSON."""

LARGE = 1 + max(CONTENT_COLUMNS.index(name) for name in ("messages", "response_text_raw", "tool_calls"))
"""The columns before this place hold the texts; what is hashed of them is kept from try to try."""


class _Frame:
    """The digest of a row with some columns exchanged."""

    def __init__(self, head: Any, row: Row) -> None:
        self._head = head
        self._told: dict[tuple[int, bytes], Any] = {}
        self._own = [self._code(at, row[name]) for at, name in enumerate(CONTENT_COLUMNS)]
        self._hashed: dict[tuple[bytes, ...], Any] = {}
        self.tries = 0

    def _code(self, at: int, value: Any) -> bytes:
        made = _logprobs(value) if CONTENT_COLUMNS[at] == "output_logprobs" else value
        text = json_bytes(made)
        # One object for each value, so that looking it up compares no long texts.
        known = self._told.setdefault((at, text), (text, value))
        return bytes(known[0])

    def coded(self, values: Mapping[str, Any]) -> Coded:
        """Return columns as the digest has them."""
        places = ((CONTENT_COLUMNS.index(name), value) for name, value in values.items())
        return {at: self._code(at, value) for at, value in places}

    def values(self, chosen: Coded) -> dict[str, Any]:
        """Return the columns that were coded."""
        return {CONTENT_COLUMNS[at]: self._told[at, text][1] for at, text in chosen.items()}

    def digest(self, chosen: Coded) -> bytes:
        """Return the row's digest with these columns in the others' places."""
        self.tries += 1
        parts = self._own.copy()
        for at, text in chosen.items():
            parts[at] = text
        texts = tuple(parts[:LARGE])
        begun = self._hashed.get(texts)
        if begun is None:
            begun = self._head.copy()
            begun.update(b"[" + b",".join(texts))
            self._hashed[texts] = begun
        digest = begun.copy()
        digest.update(b"," + b",".join(parts[LARGE:]) + b"]")
        return bytes(digest.digest())


class _Options:
    """What a group of columns may have been, coded, the likeliest first; made when they are asked for."""

    def __init__(self, frame: _Frame, values: Iterator[Mapping[str, Any]]) -> None:
        self._frame, self._values = frame, values
        self._made: list[Coded] = []

    def first(self) -> Coded:
        """Return the likeliest, nothing where there is none."""
        return next(iter(self), {})

    def __iter__(self) -> Iterator[Coded]:
        yield from self._made
        for value in self._values:
            coded = self._frame.coded(value)
            if coded not in self._made:
                self._made.append(coded)
                yield coded


def _logprobs(values: Any) -> Any:
    if values is None:
        return None
    import array

    return array.array("f", values).tobytes().hex()


def _bases(options: Sequence[_Options]) -> Iterator[Coded]:
    """Yield what to deviate from: the row as it is, and the row with all that can be derived derived."""
    yield {}
    derived: dict[int, bytes] = {}
    for group in options:
        derived.update(group.first())
    yield derived


def _deviations(options: Sequence[_Options]) -> Iterator[tuple[Coded, ...]]:
    yield ()
    for count in (1, 2, 3):
        for groups in combinations(options, count):
            yield from product(*groups)


def _options(row: Row, fmt: Format, codec: Codec) -> list[Iterator[dict[str, Any]]]:
    """Return what each group of columns may have been, the likeliest first, what it is now included.

    The judge's columns come last: what they may have been takes a judgement each to find out.
    """
    ids, prompt = row["response_token_ids"], row["prompt_token_ids"]
    last = encode_matched_stop(ids[-1])
    ended = _ends(row, fmt, codec)
    finish = [*ended, ("length", None), ("abort", None), (row["finish_reason"], row["matched_stop"])]
    alike = [*finish, *((word, row["matched_stop"]) for word in ("stop", "length", "tool_calls", "abort"))]
    alike += [(row["finish_reason"], None), (row["finish_reason"], last)]
    decoded = _decoded(ids, codec)
    text = [
        (value, source) for value in (decoded, row["response_text_raw"]) for source in ("derived", "served")
    ]
    named = [(row["response_text_raw"], row["text_source"]), (decoded, row["text_source"])]
    boundary = [{"start": len(prompt), "length": len(ids)}]
    closer = codec.token_id(fmt.closer) if fmt.closer else None
    counted = [None, row["reasoning_tokens"]]
    if closer in ids:
        counted += [ids.index(closer) + 1, ids.index(closer)]
    switches = (
        [{}, {fmt.template_switch: False}, {fmt.template_switch: True}] if fmt.template_switch else [{}]
    )
    endpoints = [("chat", "/v1/chat/completions"), ("generate", "/generate")]
    return [
        _fields(row, fmt, codec),
        iter(
            [
                {"prompt_tokens": p, "completion_tokens": c}
                for p in (len(prompt), row["prompt_tokens"])
                for c in (len(ids), row["completion_tokens"])
            ]
        ),
        ({"finish_reason": f, "matched_stop": m} for f, m in alike),
        ({"response_text_raw": value, "text_source": source} for value, source in (*named, *text)),
        ({"loss_mask": mask} for mask in (row["loss_mask"], None, boundary)),
        ({"reasoning_tokens": value} for value in counted),
        ({"output_logprobs": value} for value in (row["output_logprobs"], None)),
        ({"constraint": value} for value in (row["constraint"], None)),
        ({"transport": t, "endpoint": e} for t, e in ((row["transport"], row["endpoint"]), *endpoints)),
        ({"thinking_mode": v} for v in (row["thinking_mode"], *map(str, ThinkingMode))),
        ({"template_kwargs": v} for v in (row["template_kwargs"], *map(dump, switches))),
        _judged(row, fmt, codec),
    ]


def _ends(row: Row, fmt: Format, codec: Codec) -> list[tuple[str, str | None]]:
    """Return the finish reasons with what matched that the response's last id allows, the likeliest first."""
    last = row["response_token_ids"][-1]
    if last not in [codec.token_id(text) for text in fmt.end_tokens]:
        return [("length", None)]
    begins = [codec.token_id(text) for text in (fmt.tools.begins if fmt.tools else ())]
    stopped: list[tuple[str, str | None]] = [("stop", encode_matched_stop(last)), ("stop", None)]
    called: tuple[str, str | None] = ("tool_calls", None)
    has_calls = any(token in begins for token in row["response_token_ids"])
    return [called, *stopped] if has_calls else [*stopped, called]


def _decoded(ids: list[int], codec: Codec) -> str:
    return codec.decode_bytes(ids).decode("utf-8", "replace")


def copies(row: Row) -> list[Fields]:
    """Return the fields as the row has them twice: in its columns, and in its last message."""
    own = Fields(row["reasoning_content"], row["content"], row["tool_calls"])
    messages = row["messages"] or []
    if not messages or messages[-1] is None:
        return [own]
    last = messages[-1]
    return [own, Fields(last["reasoning_content"], last["content"] or None, last["tool_calls"])]


def _fields(row: Row, fmt: Format, codec: Codec) -> Iterator[dict[str, Any]]:
    """Yield fields with the messages that they make: of the columns, the last message, the ids, mixed."""
    told = copies(row)
    with contextlib.suppress(*UNREADABLE):
        told.insert(0, fields_of(row, fmt, codec))
    told.append(told[-1])
    rest = (row["messages"] or [])[:-1]
    names = ("reasoning_content", "content", "tool_calls")
    for values in product(*(dict.fromkeys(getattr(one, name) for one in told) for name in names)):
        for content in dict.fromkeys((values[1], values[1] or None, values[1] or "")):
            fields = Fields(values[0], content, values[2])
            columns = dict(zip(names, (values[0], content, values[2]), strict=True))
            yield {**columns, "messages": [*rest, target_of(fields)]}
            yield {**columns, "messages": row["messages"]}


def _judged(row: Row, fmt: Format, codec: Codec) -> Iterator[dict[str, Any]]:
    """Yield claims, verdict and losses as the judge finds them for what the fields may have been."""
    decoded = _decoded(row["response_token_ids"], codec)
    own = (row["finish_reason"], row["matched_stop"])
    ends = dict.fromkeys((*_ends(row, fmt, codec), own))
    likeliest: list[dict[str, Any]] = []
    for fields in _fields(row, fmt, codec):
        told = {name: value for name, value in fields.items() if name != "messages"}
        if told not in likeliest:
            likeliest.append(told)
        if len(likeliest) == 6:
            break
    for one, (finish, matched) in product(likeliest, ends):
        for source in dict.fromkeys((row["text_source"], "derived", "served")):
            candidate = {
                **with_fields(row, Fields(one["reasoning_content"], one["content"], one["tool_calls"])),
                "response_text_raw": decoded if source == "derived" else row["response_text_raw"],
                "text_source": source,
                "finish_reason": finish,
                "matched_stop": matched,
            }
            try:
                yield judgement_columns(judge_row(candidate, fmt, codec))
            except UNREADABLE:
                continue
    yield {name: row[name] for name in ("claims", "verdict", "losses")}
