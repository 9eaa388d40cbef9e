"""What the client says of a peer that is no server at all, or that breaks off. Imports `harness.http`.

The peers here are sockets that send a few bytes and close; none of them plays SGLang.
"""

from __future__ import annotations

import asyncio

import pytest

from harness.http import HttpSession, clean_base_url
from harness.wire_errors import ClientError, HttpStatusError, MalformedResponse, RequestRefused, ServerGone


def ask(answer: bytes, body: dict[str, object] | None = None) -> bytes:
    """POST to a socket that answers with `answer` and closes."""

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def go() -> bytes:
        server = await asyncio.start_server(peer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, HttpSession(url, concurrency=2, timeout=20, api_key="secret") as session:
            return await session.post("/generate", body or {})

    return asyncio.run(go())


def http(status: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {size}", *headers])
    return head.encode() + b"\r\n\r\n" + body


def test_the_bytes_come_back_as_they_were_sent() -> None:
    body = b'{"text": "\xff\x00\r\n"}'
    assert ask(http("200 OK", body)) == body


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        http("200 OK", b'{"text": "so f', length=500),
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ne\r\ndata: {"a": 1}\r\n',
    ],
    ids=["nothing", "short", "chunk"],
)
def test_an_answer_that_breaks_off_is_a_server_gone(answer: bytes) -> None:
    with pytest.raises(ServerGone) as caught:
        ask(answer)
    sent = answer.partition(b"\r\n\r\n")[2]
    assert bool(caught.value.body) == bool(sent)
    assert caught.value.body in answer
    assert "went away" in caught.value.what and "log" in caught.value.remedy


def test_a_request_whose_session_was_closed_is_a_server_gone() -> None:
    """A capture run closes the client of a server that is away while requests still wait to be sent."""

    async def go() -> None:
        async with HttpSession("http://127.0.0.1:9", concurrency=1, timeout=20, api_key=None) as session:
            pass
        await session.get("/health")

    with pytest.raises(ServerGone, match="session was closed"):
        asyncio.run(go())


def test_what_is_not_http_is_told_from_a_dead_server() -> None:
    with pytest.raises(MalformedResponse, match="port"):
        ask(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        ("502 Bad Gateway", b"<html><h1>Bad Gateway</h1></html>", "Bad Gateway"),
        ("500 Internal Server Error", b'{"object":"error","message":"no parse","code":500}', "no parse"),
        ("422 Unprocessable", b'{"detail":[{"loc":["body"],"msg":"missing"}]}', "missing"),
        ("401 Unauthorized", b"", "API key"),
        ("404 Not Found", b'{"detail":"Not Found"}', "base URL"),
        ("302 Found", b"", "302"),
    ],
)
def test_an_error_status_carries_the_server_s_words(status: str, body: bytes, words: str) -> None:
    with pytest.raises(HttpStatusError) as caught:
        ask(http(status, body, "Location: http://127.0.0.1:9/"))
    assert caught.value.status == int(status[:3])
    assert caught.value.body == body
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_server_s_traceback_stays_in_the_body() -> None:
    body = b'{"object":"error","message":"bad input\\n\\n  File \\"x.py\\", line 1\\n' + b"x" * 5000 + b'"}'
    with pytest.raises(HttpStatusError, match="bad input") as caught:
        ask(http("400 Bad Request", body))
    assert "\n" not in caught.value.why and len(caught.value.why) < 400
    assert caught.value.body == body


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"bytes"])
def test_a_request_without_a_json_form_is_not_sent(value: object) -> None:
    with pytest.raises(RequestRefused, match="JSON"):
        ask(b"", {"temperature": value})


@pytest.mark.parametrize(
    ("given", "clean"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/", "http://h:1"),
        ("http://h:1/v1/", "http://h:1"),
        ("https://h/pre/v1", "https://h/pre"),
    ],
)
def test_the_base_url_is_the_server_s_root(given: str, clean: str) -> None:
    assert clean_base_url(given) == clean


@pytest.mark.parametrize("given", ["", "localhost:30000", "ftp://h", "http://", "http://[::1", "http://h:x"])
def test_what_is_not_a_url_is_refused(given: str) -> None:
    with pytest.raises(ClientError, match="http://127"):
        clean_base_url(given)
