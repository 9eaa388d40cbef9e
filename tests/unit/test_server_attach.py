"""Attaching to what is no SGLang server: nobody there, a web server, a wrong key, silence."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import click
import pytest

from harness.commands.probe import checked_url
from harness.masks import masked_command, masked_words
from harness.server import Unreachable, attach, http
from harness.server.attach import _without_secrets, tokenizer_sha256
from harness.server.failures import NoAnswer
from harness.server.hardware import free_port
from harness.server.http import Answer, call
from harness.server.ready import problem_of


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


@contextlib.contextmanager
def answering(*parts: bytes, endless: bytes = b"", pause: float = 0.0) -> Iterator[str]:
    """A socket that says `parts` to whoever connects, then `endless` again and again, `pause` in between."""
    over = threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError):
            one, _ = listening.accept()
            with one:
                one.recv(65536)
                one.sendall(b"".join(parts))
                while endless and not over.wait(pause):
                    one.sendall(endless)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("parts", "drop"), [((HEAD,), b"X"), ((HEAD, b"\r\n"), b" "), ((), b"H")], ids=["head", "body", "status"]
)
def test_an_answer_by_drops_holds_nobody(parts: tuple[bytes, ...], drop: bytes) -> None:
    """Each byte comes in time, the whole never does."""
    with answering(*parts, endless=drop, pause=0.05) as url:
        with pytest.raises(NoAnswer, match="does not answer") as told:
            call(url, "/model_info", timeout=0.5)
        assert "within 0.5 s" in told.value.why


@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found"])
def test_an_answer_without_an_end_is_told(status: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LONGEST", 1 << 20)
    with answering(b"HTTP/1.1 " + status + b"\r\n\r\n", endless=b" " * 65536) as url:
        with pytest.raises(Unreachable) as told:
            call(url, "/model_info", timeout=30.0)
        assert "longer than 1 MiB" in told.value.why


def test_a_cut_answer_and_one_too_deep_are_told() -> None:
    with answering(HEAD, b'Content-Length: 100\r\n\r\n{"a": 1}') as url:
        with pytest.raises(Unreachable) as told:
            call(url, "/model_info")
        assert "IncompleteRead" in told.value.why
    deep = b"[" * 200_000
    with answering(HEAD, b"Content-Length: %d\r\n\r\n" % len(deep), deep) as url:
        assert call(url, "/model_info").body is None


def proof(**changes: Any) -> Answer:
    """What SGLang 0.5.23 answers to the proof of a generation, with changes in `meta_info`."""
    meta = {
        "finish_reason": {"type": "length", "length": 4},
        "completion_tokens": 4,
        "output_token_logprobs": [[-6.1, 7, None], [-6.0, 9, None], [-5.9, 7, None], [-6.2, 1, None]],
    }
    return Answer(200, {"text": "", "output_ids": [7, 9, 7, 1], "meta_info": meta | changes})


def test_a_generation_that_proves_the_weights() -> None:
    assert problem_of(proof()) is None
    assert problem_of(proof(output_token_logprobs=None)) is None, "not every server can tell"


@pytest.mark.parametrize("value", [None, float("nan"), float("-inf"), True, "x"])
def test_weights_that_are_no_numbers_are_no_proof(value: object) -> None:
    told = problem_of(proof(output_token_logprobs=[[-6.1, 7, None], [value, 0, None]]))
    assert told is not None and "weights are not numbers" in told
    stopped = problem_of(
        proof(finish_reason={"type": "stop", "matched": "NaN happened"}, completion_tokens=1)
    )
    assert stopped is not None and "weights are not numbers" in stopped


@pytest.mark.parametrize(
    "body", [None, [], {"meta_info": 1}, {"meta_info": {"finish_reason": "x", "completion_tokens": 4}}]
)
def test_an_answer_of_another_shape_is_no_proof(body: object) -> None:
    assert problem_of(Answer(200, body)) is not None


@pytest.mark.parametrize("url", ["http://", "nonsense://x", "http://127.0.0.1:99999"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(Unreachable):
        attach(url)


@pytest.mark.parametrize(
    "url", ["http://me:sesame@127.0.0.1:1", "me:sesame@127.0.0.1:1/v1", "http://sesame@h"]
)
def test_a_password_in_a_url_is_refused_and_not_told(url: str) -> None:
    with pytest.raises(Unreachable, match="not supported") as told:
        attach(url)
    assert "sesame" not in str(told.value) and "--api-key" in told.value.remedy
    with pytest.raises(click.BadParameter) as wrong:
        checked_url(url)
    assert "sesame" not in wrong.value.format_message() and "not supported" in wrong.value.format_message()


def test_a_token_in_a_url_is_not_told() -> None:
    with pytest.raises(Unreachable) as told:
        attach("http://127.0.0.1:1?api_key=sesame&x=1&auth-Token=open")
    assert "sesame" not in str(told.value) and "open" not in str(told.value)
    assert "x=1" in told.value.where


def test_an_address_that_is_cut_is_told() -> None:
    with pytest.raises(Unreachable) as told:
        call("http://[::1", "/model_info")
    assert "not valid" in told.value.why


@pytest.mark.parametrize(
    "flag", ["--api", "--api-", "--api-k", "--api-key", "--admin-api", "--admin-api-key"]
)
def test_a_shortened_flags_key_is_not_told(flag: str) -> None:
    for said in (f"x {flag} sesame --tp 2", f"x {flag}=sesame --tp 2", f"x {flag} 'open sesame' --tp 2"):
        assert masked_command(said).endswith("(not shown) --tp 2")
    assert masked_words([flag, "sesame", f"{flag}=sesame", "--tp"]) == [
        *(flag, "(not shown)", f"{flag}=(not shown)", "--tp")
    ]
    assert masked_words(["--worker-urls", "http://me:sesame@h:1/a"])[1] == "http://***@h:1/a"
    assert masked_command("--api-server x --tokenizer-path y") == "--api-server x --tokenizer-path y"


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
