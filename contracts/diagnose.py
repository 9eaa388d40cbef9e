"""The diagnosis: fields and framing against what the ids say; every difference gets a loss's name.

Place in the flow: inside the judge, after the rebuild and the truth. Imports both and the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contracts.calls import Mark, ReadCall, ToolSyntax
from contracts.framing import Framing
from contracts.rebuild import Rebuilt
from contracts.records import Fields, Loss, SegmentKind
from contracts.truth import Truth


class _Place:
    """Makes losses at a byte of the raw text."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def __call__(self, name: str, kind: SegmentKind, byte: int | None, detail: str = "") -> Loss:
        # A place counted in a field's own bytes may lie further on: a replacement character has three.
        at = len(self.truth.raw) if byte is None else min(byte, len(self.truth.raw))
        last = max(0, len(self.truth.offsets) - 2)
        return Loss(name, kind, min(self.truth.token_at(at), last), at, detail)


def diagnose(fields: Fields, framing: Framing, rebuilt: Rebuilt, truth: Truth) -> list[Loss]:
    """Name what the fields say that the ids do not, and what the fields can't say."""
    place = _Place(truth)
    out: list[Loss] = []
    if rebuilt.fault is not None:
        start = truth.first(SegmentKind.TOOL_SECTION)
        out.append(place("arguments-altered", SegmentKind.TOOL_SECTION, start, rebuilt.fault))
    out.extend(_reasoning(fields, framing, truth, place))
    out.extend(_content(fields, framing, truth, place))
    if framing.tools_parsed and framing.format.tools is not None:
        out.extend(_calls(rebuilt, truth, framing.format.tools, place))
    out.extend(_leaks(fields, framing, truth, place))
    out.extend(_frame(rebuilt, framing, truth, place))
    return _unique(out)


def _unique(losses: list[Loss]) -> list[Loss]:
    seen: set[tuple[str, SegmentKind]] = set()
    kept = []
    for loss in losses:
        if (loss.name, loss.segment) not in seen:
            seen.add((loss.name, loss.segment))
            kept.append(loss)
    return kept


def _reasoning(fields: Fields, framing: Framing, truth: Truth, place: _Place) -> Iterator[Loss]:
    kind = SegmentKind.REASONING
    wrote, got = truth.text_of(kind), _before_end(fields.reasoning_content, truth)
    start = truth.first(kind)
    answer, content = truth.text_of(SegmentKind.CONTENT), _before_end(fields.content, truth)
    if truth.call_in_reasoning is not None and framing.reasoning_parsed:
        yield place("call-in-reasoning", kind, truth.call_in_reasoning.start)
    if framing.constrained and truth.thinking and truth.closer is None and truth.ends and got:
        yield place("content-in-reasoning", kind, start, "constrained output that never closed its thinking")
    if wrote == got:
        return
    if truth.thinking and not got and (truth.closer is not None or wrote.strip()):
        if wrote.strip() in content and (wrote.strip() or framing.format.closer in content):
            yield place("reasoning-in-content", kind, start)
        elif not wrote.strip():
            yield place("reasoning-stripped", kind, start, "white space was all of it")
        else:
            yield place("reasoning-altered", kind, start, "the reasoning is gone")
    elif not wrote.strip() and answer.strip() and got.strip() and got.strip() in _tail(truth):
        yield place("content-in-reasoning", SegmentKind.CONTENT, truth.first(SegmentKind.CONTENT))
    elif wrote.strip() == got.strip():
        yield place("reasoning-stripped", kind, start)
    elif got and wrote.startswith(got) and wrote[len(got) :].strip():
        rest = wrote[len(got) :]
        moved = rest.strip() in content or content.strip() in rest
        yield place(
            "reasoning-in-content" if moved and content.strip() else "reasoning-altered",
            kind,
            None if start is None else start + len(got.encode("utf-8", "replace")),
            "the parser took a marker's text for the marker" if truth.spelled else "",
        )
    elif wrote and got.startswith(wrote) and got != wrote:
        yield place("content-in-reasoning", SegmentKind.CONTENT, truth.first(SegmentKind.CONTENT))
    elif truth.late_opener is not None and got.strip() == wrote.replace(framing.format.opener, "", 1).strip():
        at = truth.late_opener.start
        yield place("opener-undetermined", SegmentKind.OPENER, at, "one after white space is gone")
    else:
        yield place("reasoning-altered", kind, start)


def _before_end(text: str | None, truth: Truth) -> str:
    """Cut a field where an end token leaked into it: that is named by itself."""
    if not text:
        return ""
    found = [at for mark in truth.ends if (at := _leak_of(mark, text, truth)) >= 0]
    return text[: min(found)] if found else text


def _leak_of(mark: Mark, text: str, truth: Truth) -> int:
    """Return where an end token leaked into a field, -1 where it did not: spelled in ordinary tokens, it
    is the model's own text."""
    spelled = sum(other.text == mark.text for other in truth.spelled)
    if not spelled:
        return text.find(mark.text)
    return text.rfind(mark.text) if text.count(mark.text) > spelled else -1


def _tail(truth: Truth) -> str:
    return truth.raw.decode("utf-8", "replace")


def _content(fields: Fields, framing: Framing, truth: Truth, place: _Place) -> Iterator[Loss]:
    kind = SegmentKind.CONTENT
    got = _before_end(fields.content, truth)
    first_section = truth.sections[0][0] if truth.sections and framing.tools_parsed else None
    parts = [(a, b) for k, a, b in truth.segments if k is kind]
    if first_section is None:
        wrote = truth.text_of(kind)
        if wrote != got and wrote.strip() == got.strip():
            yield place("content-stripped", kind, truth.first(kind))
        elif wrote.strip() and not (
            got or fields.tool_calls or wrote.strip() in (fields.reasoning_content or "")
        ):
            yield place("content-altered", kind, truth.first(kind), "the content is gone")
        return
    before = b"".join(truth.raw[a:b] for a, b in parts if a < first_section).decode("utf-8", "replace")
    after = b"".join(truth.raw[a:b] for a, b in parts if a >= first_section).decode("utf-8", "replace")
    after_at = next((a for a, _ in parts if a >= first_section), None)
    if got == before + after and after:
        yield place("order-lost", kind, after_at, "text after the calls stands before them")
    elif after and after not in got:
        if after.strip():
            yield place("text-after-call-dropped", kind, after_at, f"{len(after)} characters")
        else:
            yield place("call-whitespace", SegmentKind.TOOL_SECTION, after_at)
    if got != before and got != before + after:
        if got.strip() == before.strip():
            yield place("content-stripped", kind, truth.first(kind))
        elif before.strip() not in got:
            yield place("content-altered", kind, truth.first(kind))


def _calls(rebuilt: Rebuilt, truth: Truth, syntax: ToolSyntax, place: _Place) -> Iterator[Loss]:
    kind = SegmentKind.TOOL_SECTION
    got, wrote = list(rebuilt.calls), list(truth.calls)
    matched, missing, invented = _align(got, wrote, syntax)
    for call in tuple(missing):
        moved = next((given for given in invented if not _unlike(given, call, syntax)), None)
        if moved is not None:
            missing.remove(call)
            invented.remove(moved)
            yield place(
                "order-lost", kind, call.start, f"the call of {call.header.strip()[:60]} stands elsewhere"
            )
    for call in missing:
        if call.complete:
            yield place("call-dropped", kind, call.start, call.header.strip()[:80])
        else:
            yield place("call-malformed", kind, call.start, "a call that breaks off is gone")
    if invented and truth.call_in_reasoning is None:
        yield place("call-invented", kind, truth.first(kind), str(invented[0]["name"])[:80])
    for given, call in matched:
        yield from _one_call(given, call, syntax, place)
    for start, end in truth.between:
        text = truth.raw[start:end]
        name = "text-between-calls-dropped" if text.strip() else "call-whitespace"
        yield place(name, kind, start)
    if truth.sections and not wrote:
        yield place("section-lost", kind, truth.sections[0][0])
    if truth.section_open and got:
        yield place("call-malformed", kind, truth.sections[-1][0], "the section was never closed")
    if len(truth.sections) > 1:
        yield place("call-malformed", kind, truth.sections[1][0], "more than one section")


_ALONE = 6
"""What it costs a call to have no partner; a pair costs at most as much as two without."""


_TABLE = 10_000
"""Calls handed out times calls written, above which calls are paired in order."""


def _align(
    got: list[dict[str, Any]], wrote: list[ReadCall], syntax: ToolSyntax
) -> tuple[list[tuple[dict[str, Any], ReadCall]], list[ReadCall], list[dict[str, Any]]]:
    """Pair the calls handed out with those that the model wrote, in order, the likest ones together."""
    rows, columns = len(got), len(wrote)
    alike = [_unlike(given, call, syntax) for given, call in zip(got, wrote, strict=False)]
    if (rows == columns and not any(alike)) or rows * columns > _TABLE:
        shared = len(alike)
        return list(zip(got, wrote, strict=False)), wrote[shared:], got[shared:]
    cost = [[_ALONE * (rows - i + columns - j) for j in range(columns + 1)] for i in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            pair = cost[i + 1][j + 1] + _unlike(got[i], wrote[j], syntax)
            cost[i][j] = min(pair, _ALONE + cost[i + 1][j], _ALONE + cost[i][j + 1])
    matched: list[tuple[dict[str, Any], ReadCall]] = []
    missing: list[ReadCall] = []
    invented: list[dict[str, Any]] = []
    i = j = 0
    while i < rows and j < columns:
        if cost[i][j] == cost[i + 1][j + 1] + _unlike(got[i], wrote[j], syntax):
            matched.append((got[i], wrote[j]))
            i, j = i + 1, j + 1
        elif cost[i][j] == _ALONE + cost[i][j + 1]:
            missing.append(wrote[j])
            j += 1
        else:
            invented.append(got[i])
            i += 1
    return matched, [*missing, *wrote[j:]], [*invented, *got[i:]]


def _unlike(given: dict[str, Any], call: ReadCall, syntax: ToolSyntax) -> int:
    """Tell how unlike two calls are: nothing where name and arguments are the same."""
    named = syntax.name_of(call.header)
    name = 0 if named == given["name"] else 4 if named is None else 5
    if syntax.same_spelling(given["arguments"], call.arguments):
        return name
    return name + (1 if syntax.same_meaning(given["arguments"], call.arguments) else 3)


def _one_call(given: dict[str, Any], call: ReadCall, syntax: ToolSyntax, place: _Place) -> Iterator[Loss]:
    kind = SegmentKind.TOOL_SECTION
    header = call.header.strip()
    if syntax.name_of(header) != given["name"]:
        yield place("call-name-rewritten", kind, call.start, f"{header[:60]!r} became {given['name'][:60]!r}")
    if syntax.has_ids and given["id"] != header:
        yield place("call-id-rewritten", kind, call.start, f"{header[:60]!r} became {given['id'][:60]!r}")
    if call.header != header or call.arguments != call.arguments.strip():
        yield place("call-whitespace", kind, call.start)
    if not syntax.same_spelling(given["arguments"], call.arguments):
        same = syntax.same_meaning(given["arguments"], call.arguments)
        yield place("arguments-respelled" if same else "arguments-altered", kind, call.start)
    if not call.complete:
        yield place("call-malformed", kind, call.start, "the call breaks off")
    elif not call.canonical:
        yield place("call-respelled", kind, call.start)


def _leaks(fields: Fields, framing: Framing, truth: Truth, place: _Place) -> Iterator[Loss]:
    """Markers that the model generated as markers and that a field holds as text."""
    fmt, parsed = framing.format, framing.reasoning_parsed
    reasoning, content = fields.reasoning_content or "", fields.content or ""
    if truth.late_opener is not None and fmt.opener in reasoning:
        yield place("marker-leaked", SegmentKind.REASONING, truth.late_opener.start, fmt.opener)
    if truth.openers and not parsed and content.startswith(fmt.opener):
        yield place("marker-leaked", SegmentKind.OPENER, truth.first(SegmentKind.OPENER), fmt.opener)
    if truth.closer is not None and not parsed and fmt.closer in content:
        yield place("marker-leaked", SegmentKind.CLOSER, truth.closer.start, fmt.closer)
    if parsed and (stray := _stray_closer(truth, framing, content)) is not None:
        yield place("marker-leaked", SegmentKind.CLOSER, stray.start, fmt.closer)
    if fmt.tools is not None:
        for mark in truth.marks:
            if mark.text in fmt.tools.markers and mark.text in content:
                kind = truth.kind_at(mark.start)
                yield place("marker-leaked", kind, mark.start, mark.text)
                break
    for mark in truth.ends:
        if _leak_of(mark, content, truth) >= 0 or _leak_of(mark, reasoning, truth) >= 0:
            yield place("marker-leaked", SegmentKind.END, mark.start, mark.text)
            break


def _stray_closer(truth: Truth, framing: Framing, content: str) -> Mark | None:
    """Return a closer, generated as one, that the content holds and that closes no opener in it.

    An answer that talks about `<think>` and `</think>` in pairs is no leak.
    """
    fmt = framing.format
    if not fmt.closer or fmt.closer not in content:
        return None
    depth = 0
    for mark in truth.marks:
        if truth.kind_at(mark.start) is SegmentKind.CONTENT:
            depth += (mark.text == fmt.opener) - (mark.text == fmt.closer)
            if depth < 0:
                return mark
    handed, wrote = content.count(fmt.closer), truth.text_of(SegmentKind.CONTENT).count(fmt.closer)
    return truth.closer if handed > wrote else None


def _frame(rebuilt: Rebuilt, framing: Framing, truth: Truth, place: _Place) -> Iterator[Loss]:
    """Framing facts that the fields do not carry: opener, closer, end."""
    kinds = [kind for kind, _ in rebuilt.pieces]
    if framing.reasoning_parsed and truth.late_opener is None:
        if kinds.count(SegmentKind.OPENER) != truth.openers:
            start = truth.first(SegmentKind.OPENER)
            yield place("opener-undetermined", SegmentKind.OPENER, start or 0, f"{truth.openers} generated")
        if (SegmentKind.CLOSER in kinds) != (truth.closer is not None):
            at = truth.closer.start if truth.closer else _after(truth, SegmentKind.REASONING)
            yield place("closer-undetermined", SegmentKind.CLOSER, at)
    if not framing.end_in_text:
        end = truth.text_of(SegmentKind.END)
        if framing.stop_string:
            body = truth.raw.decode("utf-8", "replace")
            if not body.endswith(framing.end_text):
                yield place("stop-string-trimmed", SegmentKind.END, None)
        elif end != framing.end_text:
            yield place("end-undetermined", SegmentKind.END, truth.first(SegmentKind.END))


def _after(truth: Truth, kind: SegmentKind) -> int | None:
    return next((b for k, _, b in truth.segments if k is kind), 0)
