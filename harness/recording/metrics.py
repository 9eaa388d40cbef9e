"""A run's numbers as OpenMetrics on a port, for whoever scrapes it.

Place in the flow: beside the runner. Imports the standard library and `contracts.errors`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from contracts.errors import ShardgateError

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class MetricsPort:
    """Serves `text()` at `/metrics` inside the block, on loopback unless another host is given."""

    def __init__(self, text: Callable[[], str], port: int, host: str = "127.0.0.1") -> None:
        """Bind the port; 0 takes a free one, see `port`.

        Raises:
            ShardgateError: the port is taken.
        """

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.split("?")[0] == "/metrics"
                body = text().encode() if found else b"the numbers are at /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Stay silent: a scraper comes every few seconds."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise ShardgateError(
                what="the port for the metrics can't be had",
                where=f"{host}:{port}",
                why=error.strerror or str(error),
                remedy="give another one (--metrics-port), or 0 for a free one",
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    @property
    def port(self) -> int:
        """Return the port that is listened on."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
