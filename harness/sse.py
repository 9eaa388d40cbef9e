"""Server-sent events out of a byte stream, however it is cut into chunks.

Place in the flow: under the wire. Imports the standard library only.

Works on bytes: the format's line ends are CRLF, LF and CR alone, and a text split would also break lines at
U+2028, U+0085 and others that may stand inside JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

DONE = b"[DONE]"
"""The data of the event that ends an OpenAI-style stream."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event: its type ("message" where none is named) and its data lines joined by LF."""

    event: str
    data: bytes


class SseSplitter:
    """Feed it chunks, take events; the events do not depend on where the chunks are cut."""

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[bytes] = []
        self._event = ""
        self._first_line = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that `chunk` completes."""
        return self._take(self._pending + chunk, final=False)

    def close(self) -> list[SseEvent]:
        """Return what an end of stream completes: a last line, and an event without its blank line."""
        events = self._take(self._pending, final=True)
        if self._data:
            events.append(self._dispatch())
        return events

    def _take(self, text: bytes, *, final: bool) -> list[SseEvent]:
        events: list[SseEvent] = []
        start = 0
        while True:
            end, after = _line_end(text, start, final)
            if end < 0:
                break
            self._line(text[start:end], events)
            start = after
        self._pending = text[start:]
        if final and self._pending:
            self._line(self._pending, events)
            self._pending = b""
        return events

    def _line(self, line: bytes, events: list[SseEvent]) -> None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                events.append(self._dispatch())
            self._event = ""
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")

    def _dispatch(self) -> SseEvent:
        event = SseEvent(self._event or "message", b"\n".join(self._data))
        self._data, self._event = [], ""
        return event


def _line_end(text: bytes, start: int, final: bool) -> tuple[int, int]:
    """Return where the line from `start` ends and the next begins; (-1, -1) while that can't be told."""
    feed = text.find(b"\n", start)
    carriage = text.find(b"\r", start, feed if feed >= 0 else len(text))
    if carriage < 0:
        return (feed, feed + 1) if feed >= 0 else (-1, -1)
    if carriage + 1 < len(text):
        return carriage, carriage + (2 if text[carriage + 1 : carriage + 2] == b"\n" else 1)
    # A CR at the very end may be half of a CRLF.
    return (carriage, carriage + 1) if final else (-1, -1)


def sse_events(body: bytes) -> tuple[SseEvent, ...]:
    """Return the events of a whole stream."""
    splitter = SseSplitter()
    return (*splitter.feed(body), *splitter.close())
