"""One HTTP exchange with a server: the exact bytes of the answer, or an error that says which side failed.

Place in the flow: under the client. Imports aiohttp and `harness.wire_errors`.

No request is sent twice: a generation that was cut must be seen, and a server that died must be told within
seconds. Every request takes a connection of its own, since a kept one that the server has just closed looks
like a dead server. Proxies from the environment are not used, and no compression is asked for, so that the
bytes kept are the bytes sent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp

from harness.wire_errors import (
    ClientError,
    MalformedResponse,
    RequestRefused,
    ServerGone,
    ServerTimeout,
    excerpt,
    status_error,
)
from harness.wire_json import error_message, json_object

CONNECT_SECONDS = 10.0
"""Time to reach a server; a machine that is there answers or refuses far sooner."""

MAX_BODY_BYTES = 1 << 30
"""The largest body that is read; more is a fault of what sends it."""


def clean_base_url(base_url: str) -> str:
    """Return the server's root URL without a trailing slash or `/v1`.

    Raises:
        RequestRefused: it is not an http(s) URL.
    """
    try:
        parts = urlsplit(base_url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        why = "it has no http:// or https:// in front, or no host"
    except ValueError as error:
        good, why = False, str(error)
    if not good:
        raise RequestRefused(
            what=f"{base_url!r} is not the URL of a server",
            why=why,
            remedy="give it like http://127.0.0.1:30000",
        )
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


def auth_headers(api_key: str | None) -> dict[str, str]:
    """Return the headers that every request carries."""
    headers = {"Accept-Encoding": "identity"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    return headers


def server_gone(url: str, why: str, body: bytes = b"", *, reached: bool = True) -> ServerGone:
    """Return the error for a server that is not there (`reached` false), or not there any more."""
    if not reached:
        what = "the server can't be reached"
    elif body:
        what = "the server went away in the middle of an answer"
    else:
        what = "the server went away without an answer"
    return ServerGone(
        what=what,
        where=url,
        why=why,
        remedy="check that it runs and that this is its URL; if it died, the end of its log says why",
        body=body,
    )


class HttpSession:
    """An open session with one server; at most `concurrency` requests are under way at once."""

    def __init__(self, base_url: str, *, concurrency: int, timeout: float, api_key: str | None) -> None:
        self.base_url = clean_base_url(base_url)
        self._concurrency = concurrency
        self._timeout = timeout
        self._headers = auth_headers(api_key)
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(concurrency)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=CONNECT_SECONDS),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(
        self, path: str, body: Mapping[str, Any], heard: Callable[[], None] | None = None
    ) -> bytes:
        """Send JSON, return the whole body of a 200 answer; `heard` is called as each part of it comes in.

        Raises:
            RequestRefused: the body has no JSON form.
            ServerGone, ServerTimeout, HttpStatusError, MalformedResponse: see `harness.wire_errors`.
        """
        try:
            data = json.dumps(body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise RequestRefused(
                what="the request can't be written as JSON",
                where=self.base_url + path,
                why=str(error),
                remedy="messages, tools and sampling parameters must be plain JSON values",
            ) from None
        return await self._exchange("POST", path, data, heard)

    async def get(self, path: str) -> bytes:
        """Return the whole body of a 200 answer. Raises as `post`."""
        return await self._exchange("GET", path, None)

    async def _exchange(
        self, method: str, path: str, data: bytes | None, heard: Callable[[], None] | None = None
    ) -> bytes:
        if self._session is None:
            raise RuntimeError("the session is not open: use it as an async context manager")
        url = self.base_url + path
        received = bytearray()
        headers = {} if data is None else {"Content-Type": "application/json"}
        try:
            async with (
                self._slots,
                self._session.request(
                    method, url, data=data, headers=headers, allow_redirects=False
                ) as response,
            ):
                async for chunk in response.content.iter_any():
                    received += chunk
                    if heard is not None:
                        heard()
                    if len(received) > MAX_BODY_BYTES:
                        raise _too_large(url, bytes(received[:4096]))
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._told(error, url, bytes(received)) from error
        except RuntimeError as error:
            # What was about to be sent when somebody closed the session: aiohttp has no class for it.
            if not self._session.closed:
                raise
            raise server_gone(url, "the session was closed here", b"", reached=False) from error
        body = bytes(received)
        if status != 200:
            raise status_error(status, answer_message(body), where=url, body=body)
        return body

    def _told(self, error: Exception, url: str, body: bytes) -> ClientError:
        why = str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            connecting = isinstance(error, aiohttp.ConnectionTimeoutError)
            limit = CONNECT_SECONDS if connecting else self._timeout
            return ServerTimeout(
                what=f"no {'connection' if connecting else 'whole answer'} within {limit:g} seconds",
                where=url,
                why=f"{len(body)} bytes came" if body else "no byte came",
                remedy="check the server's log for a hang; a long generation needs a longer timeout",
                body=body,
            )
        if isinstance(error, aiohttp.InvalidURL):
            return RequestRefused(what="the URL is not valid", where=url, why=why, remedy="correct the URL")
        if isinstance(error, aiohttp.ClientResponseError):
            return MalformedResponse(
                what="what answered does not speak HTTP as it should",
                where=url,
                why=why,
                remedy="check the port: another service may listen on it",
                body=body,
            )
        return server_gone(url, why, body, reached=not isinstance(error, aiohttp.ClientConnectorError))


def answer_message(body: bytes) -> str:
    """Return the server's own words out of an error answer of any shape, or how the body begins."""
    try:
        return error_message(json_object(body)) or excerpt(body)
    except MalformedResponse:
        return excerpt(body)


def _too_large(url: str, start: bytes) -> MalformedResponse:
    return MalformedResponse(
        what=f"the response is larger than {MAX_BODY_BYTES} bytes",
        where=url,
        why=f"it begins: {excerpt(start)}",
        remedy="check what answers at this URL; lower max_tokens",
        body=start,
    )
