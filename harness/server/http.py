"""The few HTTP calls that judging a server takes, synchronous and free of dependencies.

Place in the flow: below readiness and attaching; captures have a client of their own. Imports the standard
library and the stage's failures only.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.server.failures import NoAnswer, Unreachable

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP status and the decoded JSON body; None where the body is empty or no JSON."""

    status: int
    body: Any


def is_loopback(base_url: str) -> bool:
    """Whether the URL names this machine by a loopback address."""
    return urllib.parse.urlsplit(base_url).hostname in LOOPBACK


def call(
    base_url: str,
    path: str,
    payload: Mapping[str, Any] | None = None,
    *,
    timeout: float = 10.0,
    api_key: str | None = None,
) -> Answer:
    """GET, or POST of a JSON payload; every HTTP status is an answer.

    Raises `Unreachable` when no HTTP answer comes: refused, reset, or not HTTP; `NoAnswer` when none came
    in time.
    """
    headers = {"Accept": "application/json"}
    if payload is not None:
        headers["Content-Type"] = "application/json"
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    data = None if payload is None else json.dumps(payload).encode()
    # A proxy from the environment can't reach this machine's loopback.
    handlers = [urllib.request.ProxyHandler({})] if is_loopback(base_url) else []
    opener = urllib.request.build_opener(*handlers)
    try:
        request = urllib.request.Request(base_url + path, data=data, headers=headers)
        with opener.open(request, timeout=timeout) as reply:
            return Answer(reply.status, _json(reply.read()))
    except urllib.error.HTTPError as error:
        with error:
            try:
                return Answer(error.code, _json(error.read()))
            except OSError:
                return Answer(error.code, None)
    except urllib.error.URLError as error:
        reason = error.reason
        if isinstance(reason, TimeoutError):
            raise _unreachable(base_url, path, f"no answer within {timeout:g} s", NoAnswer) from error
        raise _unreachable(base_url, path, str(reason)) from error
    except TimeoutError as error:
        raise _unreachable(base_url, path, f"no answer within {timeout:g} s", NoAnswer) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unreachable(base_url, path, f"{type(error).__name__}: {error}") from error


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
