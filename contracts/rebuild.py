"""The reconstruction: response fields and framing become the response's text again.

Place in the flow: after capture, before the judge. Imports framing, layouts and records of `contracts`.
Nothing here can see a response's token ids: that is what makes the claim `rebuilt` worth something.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from contracts.framing import Framing
from contracts.layouts import Parts, Piece
from contracts.records import Fields, Json, Mode, SegmentKind


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The rebuilt text in pieces, each attributed to its segment; `calls` are the decoded tool calls.

    `fault` says why the fields could not be read (a tool call without a name, JSON that is none).
    """

    pieces: tuple[Piece, ...]
    calls: tuple[dict[str, Json], ...]
    fault: str | None = None

    @property
    def text(self) -> str:
        """Return the whole rebuilt text."""
        return "".join(text for _, text in self.pieces)


def read_calls(tool_calls: str | None) -> tuple[tuple[dict[str, Json], ...], str | None]:
    """Decode the wire's tool calls to `(name, arguments, id)` objects, and say what is wrong with them."""
    if tool_calls is None:
        return (), None
    try:
        decoded = json.loads(tool_calls)
    except (ValueError, RecursionError) as error:
        return (), f"tool_calls is not JSON: {error}"
    if decoded is None:
        return (), None
    if not isinstance(decoded, list):
        return (), "tool_calls is not a JSON list"
    calls = []
    for call in decoded:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return (), "a tool call has no function name"
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            return (), "a tool call's arguments are not a string"
        call_id = call.get("id")
        calls.append({"name": function["name"], "arguments": arguments, "id": str(call_id or "")})
    return tuple(calls), None


def rebuild(fields: Fields, framing: Framing) -> Rebuilt:
    """Rebuild a response's text from what was handed out and the format's declared framing alone."""
    fmt = framing.format
    content = fields.content or ""
    end: list[Piece] = [] if framing.end_in_text else [(SegmentKind.END, framing.end_text)]
    calls, fault = read_calls(fields.tool_calls)
    if not framing.reasoning_parsed:
        reasoning, closed = "", False
    else:
        reasoning = fields.reasoning_content or ""
        # Content or calls can only follow reasoning that was closed: the framing policy of every format here.
        closed = bool(content or calls) and bool(framing.forced or reasoning)
    parts = Parts(
        reasoning=reasoning,
        content=content,
        calls=calls if fmt.tools is not None else (),
        closed=closed,
        opened=framing.opener_generated,
    )
    # Without any parser the content is the whole text, the family's frames included.
    raw = framing.mode is Mode.RAW
    pieces = [(SegmentKind.CONTENT, content)] if raw else fmt.layout.pieces(fmt, parts)
    pieces.extend(end)
    return Rebuilt(tuple(piece for piece in pieces if piece[1]), calls, fault)
