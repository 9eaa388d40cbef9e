"""What can go wrong between the client and a server, one type per way in which a caller must act.

Place in the flow: beside the client. Imports `contracts.errors` only.

    ClientError                  base; `body` is what came before the fault
        RequestRefused           the request was never sent: it asks for what the mode or the server can't do
        ServerGone               refused, reset, or cut before the answer was whole
        ServerTimeout            nothing came within the time allowed
        HttpStatusError          the server said no: `status`, its own message
        MalformedResponse        an answer came that is not what the API promises
"""

from __future__ import annotations

from contracts.errors import ShardgateError

EXCERPT = 300
"""Characters of a body that an error message shows."""


class ClientError(ShardgateError):
    """A request that gave no capture. `body` holds the bytes that came, whole or cut."""

    def __init__(
        self, what: str, where: str = "", why: str = "", remedy: str = "", *, body: bytes = b""
    ) -> None:
        super().__init__(what, where, why, remedy)
        self.body = body


class RequestRefused(ClientError):
    """The request was not sent."""


class ServerGone(ClientError):
    """No server, or one that went away in the middle of an answer."""


class ServerTimeout(ClientError):
    """The server is there and says nothing."""


class HttpStatusError(ClientError):
    """The server answered with an error; `status` is the HTTP status, or the code inside a stream."""

    def __init__(
        self,
        what: str,
        where: str = "",
        why: str = "",
        remedy: str = "",
        *,
        body: bytes = b"",
        status: int = 0,
    ) -> None:
        super().__init__(what, where, why, remedy, body=body)
        self.status = status


class MalformedResponse(ClientError):
    """The body is not what the API promises; the message names the field."""


def excerpt(body: bytes) -> str:
    """Return the start of a body as one printable line."""
    return one_line(body[: 4 * EXCERPT].decode("utf-8", "replace"))


def one_line(text: str) -> str:
    """Return the start of a text as one printable line: servers put tracebacks into their messages."""
    line = " ".join(text.split())
    line = "".join(char if char.isprintable() else "�" for char in line)
    return line if len(line) <= EXCERPT else line[:EXCERPT] + "…"


def status_error(status: int, message: str, *, where: str = "", body: bytes = b"") -> HttpStatusError:
    """Return the error for an answer with an error status (or an error event inside a stream)."""
    if status in (401, 403):
        remedy = "pass the server's API key"
    elif status == 404:
        remedy = "check the base URL: it is the server's root, without /v1"
    elif status in (429, 503):
        remedy = "the server is busy or not ready: wait for /health, or lower the concurrency"
    elif status >= 500:
        remedy = "read the server's log at this time: the fault is on its side"
    else:
        remedy = "change the request as the server's message says"
    answer = f"HTTP status {status}" if status else "an error"
    return HttpStatusError(
        what=f"the server answered with {answer}",
        where=where,
        why=one_line(message) or "it gave no message",
        remedy=remedy,
        body=body,
        status=status,
    )
