"""A real HTTP gateway in front of a real server: hands everything on, but for what a test takes away.

Place in the flow: started by the gateway tests in a thread of this process. Imports aiohttp.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from aiohttp import ClientSession, web

Body = dict[str, Any]


class Proxy:
    """`request(path, body)` and `answer(path, body)` may change what passes; paths: chat, stream, generate.

    `stream(bytes)` may change a whole stream; without it, and without `answer`, a stream passes as it comes.
    `closed` names paths that answer 404. The base URL is there inside the `with`.
    """

    def __init__(
        self,
        target: str,
        *,
        request: Callable[[str, Body], None] | None = None,
        answer: Callable[[str, Body], None] | None = None,
        stream: Callable[[bytes], bytes] | None = None,
        closed: tuple[str, ...] = (),
    ) -> None:
        self._target = target
        self._request, self._answer, self._stream = request, answer, stream
        self._closed = closed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.base_url = ""
        self.authorizations: set[str | None] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _open(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._hand_on)
        self._session = ClientSession()
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.base_url = f"http://{host}:{port}"

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _hand_on(self, incoming: web.Request) -> web.StreamResponse:
        if incoming.path in self._closed:
            return web.Response(status=404)
        self.authorizations.add(incoming.headers.get("Authorization"))
        body = await incoming.read()
        kind = "generate" if incoming.path == "/generate" else "chat"
        if body:
            asked = json.loads(body)
            kind = "stream" if kind == "chat" and asked.get("stream") else kind
            if self._request is not None:
                self._request(kind, asked)
            body = json.dumps(asked).encode()
        headers = {
            key: incoming.headers[key] for key in ("Content-Type", "Authorization") if key in incoming.headers
        }
        async with self._session.request(
            incoming.method, self._target + incoming.path_qs, data=body or None, headers=headers
        ) as reply:
            streams = reply.content_type == "text/event-stream"
            shown = {"Content-Type": reply.headers.get("Content-Type", "application/json")}
            if streams and self._stream is None and self._answer is None:
                out = web.StreamResponse(status=reply.status, headers=shown)
                await out.prepare(incoming)
                async for chunk in reply.content.iter_any():
                    await out.write(chunk)
                return out
            data = await reply.read()
        if streams and self._stream is not None:
            data = self._stream(data)
        if self._answer is not None and reply.status == 200:
            data = self._events(kind, data) if streams else self._json(kind, data)
        return web.Response(status=reply.status, body=data, headers=shown)

    def _events(self, kind: str, data: bytes) -> bytes:
        events = []
        for event in data.split(b"\n\n"):
            if event.startswith(b"data: {"):
                event = b"data: " + self._json(kind, event.removeprefix(b"data: "))
            events.append(event)
        return b"\n\n".join(events)

    def _json(self, kind: str, data: bytes) -> bytes:
        try:
            body = json.loads(data)
        except ValueError:
            return data
        assert self._answer is not None
        if isinstance(body, dict):
            self._answer(kind, body)
        return json.dumps(body).encode()


def change_at(body: Any, path: str, change: Callable[[Any], Any]) -> None:
    """Change what stands at a path of the form `choices[].message.content`; None takes it away."""
    head, _, rest = path.partition(".")
    key = head.removesuffix("[]")
    if not isinstance(body, Mapping) or key not in body:
        return
    if rest:
        for inner in body[key] if head.endswith("[]") and isinstance(body[key], list) else [body[key]]:
            change_at(inner, rest, change)
        return
    value = change(body[key])
    if value is None:
        del body[key]  # type: ignore[attr-defined]
    else:
        body[key] = value  # type: ignore[index]
