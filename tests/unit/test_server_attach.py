"""Attaching to what is no SGLang server: nobody there, a web server, a wrong key, silence."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from harness.server import Unreachable, attach
from harness.server.attach import _without_secrets, tokenizer_sha256
from harness.server.hardware import free_port
from harness.server.http import call


class Foreign(BaseHTTPRequestHandler):
    """A web server that knows none of SGLang's paths, and asks for a key under one of them."""

    status = 404

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def foreign() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Foreign)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_nobody_listens() -> None:
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    with pytest.raises(Unreachable, match="does not answer") as told:
        attach(url)
    assert url in told.value.where
    assert "refused" in told.value.why


@pytest.mark.parametrize("status", [200, 404])
def test_a_web_server_is_no_sglang(status: int, foreign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Foreign, "status", status)
    with pytest.raises(Unreachable, match="no SGLang server") as told:
        attach(foreign)
    assert f"HTTP {status}" in told.value.why


def test_a_refused_key_is_told(foreign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Foreign, "status", 401)
    with pytest.raises(Unreachable, match="refuses us") as told:
        attach(foreign)
    assert "--api-key" in told.value.why


def test_what_speaks_no_http_is_told() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unreachable, match="does not answer"):
            call(url, "/model_info", timeout=0.3)


@pytest.mark.parametrize("url", ["http://", "nonsense://x", "http://127.0.0.1:99999"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(Unreachable):
        attach(url)


def test_a_proxy_is_not_asked_about_loopback(foreign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert call(foreign, "/").status == 404


def test_keys_stay_out_of_the_facts() -> None:
    said = _without_secrets("launch_command", "--model x --api-key s3cret --admin-api-key=s3cret --tp 2")
    assert said == "--model x --api-key <redacted> --admin-api-key=<redacted> --tp 2"


def test_the_tokenizers_fingerprint(tmp_path: Path) -> None:
    assert tokenizer_sha256(tmp_path) is None
    (tmp_path / "tiktoken.model").write_bytes(b"ranks")
    assert tokenizer_sha256(tmp_path) == hashlib.sha256(b"ranks").hexdigest()
    (tmp_path / "tokenizer.json").write_text(json.dumps({}))
    assert tokenizer_sha256(tmp_path) == hashlib.sha256(b"{}").hexdigest()
