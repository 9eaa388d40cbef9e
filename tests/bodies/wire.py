"""A port whose wire leads to one server or another, or to none: servers that go away, without a boot each.

Place in the flow: none; imported by tests only.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit


class Wire:
    """Listens on a port of loopback inside the block; bytes go to `lead`'s target and back as they come.

    `cut` closes the port and every connection, as a server that dies does. `url` stays the same throughout.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self._port}"

    def lead(self, target: str) -> None:
        """Open the port, leading to the server at the URL `target`."""
        parts = urlsplit(target)
        self._do(self._listen(parts.hostname or "", parts.port or 0))

    def cut(self) -> None:
        """Close the port and what goes through it."""
        self._do(self._close())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _listen(self, host: str, port: int) -> None:
        async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection(host, port)
                self._open |= {writer, far_writer}
                await asyncio.gather(_pass(reader, far_writer), _pass(far_reader, writer))
                self._open -= {writer, far_writer}

        self._server = await asyncio.start_server(through, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
