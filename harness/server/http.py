"""The few HTTP calls that judging a server takes, synchronous and free of dependencies.

Place in the flow: below readiness and attaching; captures have a client of their own. Imports the standard
library and the stage's failures only.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from harness.server.failures import NoAnswer, Unreachable

LOOPBACK = ("127.0.0.1", "localhost", "::1")
LONGEST = 64 << 20
"""Bytes of an answer's body at most; what is asked here takes some thousands."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP status and the decoded JSON body; None where the body is empty or no JSON."""

    status: int
    body: Any


def is_loopback(base_url: str) -> bool:
    """Whether the URL names this machine by a loopback address."""
    return urllib.parse.urlsplit(base_url).hostname in LOOPBACK


def has_userinfo(url: str) -> bool:
    """Whether the URL names a user, with or without a password. Raises `ValueError` for one that is none."""
    return "@" in urllib.parse.urlsplit(url).netloc


def call(
    base_url: str,
    path: str,
    payload: Mapping[str, Any] | None = None,
    *,
    timeout: float = 10.0,
    api_key: str | None = None,
) -> Answer:
    """GET, or POST of a JSON payload; every HTTP status is an answer.

    Raises `Unreachable` when no HTTP answer comes: refused, reset, not HTTP, or one without end; `NoAnswer`
    when none came in time. `timeout` is for all of it, so that an answer by drops holds nobody.
    """
    _refuse_userinfo(base_url, path)
    headers = {"Accept": "application/json"}
    if payload is not None:
        headers["Content-Type"] = "application/json"
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    data = None if payload is None else json.dumps(payload).encode()
    # A proxy from the environment can't reach this machine's loopback.
    proxies = [urllib.request.ProxyHandler({})] if is_loopback(base_url) else []
    late = f"no answer within {timeout:g} s"
    with _Deadline(timeout) as deadline:
        opener = urllib.request.build_opener(*proxies, _Http(deadline), _Https(deadline))
        try:
            request = urllib.request.Request(base_url + path, data=data, headers=headers)
            with opener.open(request, timeout=timeout) as reply:
                return Answer(reply.status, _json(_body(reply, deadline)))
        except urllib.error.HTTPError as error:
            with error:
                try:
                    return Answer(error.code, _json(_body(error, deadline)))
                except TimeoutError:
                    raise _unreachable(base_url, path, late, NoAnswer) from error
                except _TooLong as long:
                    raise _unreachable(base_url, path, str(long)) from error
                except (OSError, http.client.HTTPException):
                    return Answer(error.code, None)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            if deadline.over or isinstance(reason, TimeoutError):
                raise _unreachable(base_url, path, late, NoAnswer) from error
            plain = isinstance(error, urllib.error.URLError | _TooLong)
            why = str(reason) if plain else f"{type(error).__name__}: {error}"
            raise _unreachable(base_url, path, why) from error


def _refuse_userinfo(base_url: str, path: str) -> None:
    try:
        held = has_userinfo(base_url)
    except ValueError as error:
        raise _unreachable(base_url, path, f"the URL is not valid: {error}") from error
    if held:
        raise Unreachable(
            "a user or password in the URL is not supported",
            where=base_url,
            why="SGLang asks for an API key, and a password in a URL gets into logs and reports",
            remedy="leave it out; give the server's key by SHARDGATE_API_KEY or --api-key",
        )


class _TooLong(ValueError):
    pass


def _body(reply: Any, deadline: _Deadline) -> bytes:
    data: bytes = reply.read(LONGEST + 1)
    if deadline.over:
        raise TimeoutError
    if len(data) > LONGEST:
        raise _TooLong(f"its answer is longer than {LONGEST >> 20} MiB, and none of SGLang's is")
    if lacking := getattr(reply, "length", None):
        raise http.client.IncompleteRead(data, lacking)
    return data


class _Deadline:
    """Shuts the connections of one call when its time is up: a socket's own timeout is for each read anew."""

    def __init__(self, seconds: float) -> None:
        self.over = False
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()
        for one in self._sockets:
            one.close()

    def _end(self) -> None:
        self.over = True
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def watch(self, one: socket.socket) -> None:
        """End this connection too."""
        # A handle of our own: TLS takes the connection's away.
        self._sockets.append(one.dup())
        if self.over:
            raise TimeoutError


class _Watched(http.client.HTTPConnection):
    deadline: _Deadline

    def connect(self) -> None:
        super().connect()
        self.deadline.watch(self.sock)


class _WatchedTls(http.client.HTTPSConnection, _Watched):
    """The connection is watched from before its handshake on: by way of the class above, in this order."""


class _Http(urllib.request.HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(partial(_watched, self._deadline, _Watched), request)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(partial(_watched, self._deadline, _WatchedTls), request)


def _watched(deadline: _Deadline, kind: type[_Watched], *given: Any, **more: Any) -> _Watched:
    made = kind(*given, **more)
    made.deadline = deadline
    return made


_TLS = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted here: name its authority by SSL_CERT_FILE",
    "WRONG_VERSION_NUMBER": "it speaks no TLS there: write http:// instead of https://",
    "RECORD_LAYER_FAILURE": "it speaks no TLS there: write http:// instead of https://",
    "UNEXPECTED_EOF_WHILE_READING": "it may speak no TLS there: write http:// instead of https://",
}
"""What OpenSSL says, and what to do about it."""


def _unreachable(base_url: str, path: str, why: str, kind: type[Unreachable] = Unreachable) -> Unreachable:
    remedy = "check the URL and that the server runs; a server that is still loading refuses connections"
    if base_url.startswith("http://") and ("BadStatusLine" in why or "RemoteDisconnected" in why):
        remedy = "something else answers there: check the port, and whether it wants https://"
    for word, told in _TLS.items():
        if word in why:
            remedy = told
    return kind("the server does not answer", where=base_url + path, why=why, remedy=remedy)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
