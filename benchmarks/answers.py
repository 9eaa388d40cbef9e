"""A load generator: recorded answers of a real SGLang server, sent again byte for byte.

Place in the flow: under `benchmarks.capture`, in a process of its own. Imports `benchmarks.data`, `contracts`
and `harness`.

No server on a CPU is faster than the client, so the client's ceiling can't be seen against one. Recorded are
whole answers of the tiny model's server, `/server_info` and the like included; what is sent again is exactly
that, as fast as a socket takes it. It judges nothing and invents nothing: a request that was not recorded
gets a 404, and the run fails.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.data import _texts
from contracts.tokens import Codec
from harness.paths import cache_dir
from harness.scripted import custom_params, processor_text

VERSION = "4"
TOKENS = 300
PROMPTS = 64

Key = tuple[str, bytes]
"""A request's path, and what of its body tells the answer."""


def key_of(path: str, body: bytes) -> Key:
    """Return what an answer is found by: of a generation the prompt's ids alone."""
    at = body.find(b'"input_ids":')
    return path, b"" if at < 0 else body[at : body.find(b"]", at)].replace(b" ", b"")


def answers() -> Path:
    """Return the file of recorded answers; recorded on first use, in some minutes."""
    path = cache_dir() / "benchmark" / f"answers-{VERSION}.pickle"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        record(path)
    return path


def questions() -> list[dict[str, str]]:
    """Return the prompts: none of them is answered in few words."""
    asked = ("Explain in detail how {} works.", "Tell me a long story about {}.")
    things = [
        "a steam engine",
        "the moon",
        "a compiler",
        "bread",
        "a violin",
        "the ocean",
        "a clock",
        "photosynthesis",
        "a bridge",
        "a market",
        "chess",
        "a telescope",
        "the weather",
        "a bicycle",
        "a library",
        "a volcano",
        "the heart",
        "a ship",
        "glass",
        "a camera",
        "the post",
        "a forest",
        "money",
        "a radio",
        "sleep",
        "a river",
        "paper",
        "an airport",
        "salt",
        "a garden",
        "the alphabet",
        "a train",
    ]
    return [{"prompt": form.format(thing)} for form in asked for thing in things]


def scripts(codec: Codec) -> list[list[int]]:
    """Return what the answers consist of: real text, thought and answer, in the model's own tokens.

    A model that runs on a CPU babbles, and its markers stand anywhere; what is to be timed are the answers of
    one that works, in which every claim holds.
    """
    end = codec.token_id("<|im_end|>")
    assert end is not None
    found = []
    for part in _texts(random.Random(6)):
        half = len(part) // 2
        ids = codec.encode(f"{part[:half].strip()}</think>{part[half:].strip()}")
        if len(ids) < TOKENS:
            continue
        # Fewer characters a try until it fits: what a cut leaves may take other tokens.
        for size in range(TOKENS * len(part) // len(ids), 0, -8):
            ids = codec.encode(f"{part[: size // 2].strip()}</think>{part[size // 2 : size].strip()}")
            if len(ids) < TOKENS:
                break
        found.append([*ids, end])
        if len(found) == PROMPTS:
            return found
    raise AssertionError("there is no end of texts")


def record(path: Path) -> None:
    """Boot a server, capture every question through a forwarder, keep what passed."""
    from contracts.tokens import load_codec
    from harness.server import load_deployment

    kept: dict[Key, tuple[int, bytes]] = {}
    folder, prompts = path.with_suffix(".run"), path.with_suffix(".jsonl")
    with load_deployment("tiny").server() as server:
        codec = load_codec(Path(server.model_path))
        with forwarded(server.base_url, kept, scripts(codec)) as url:
            prompts.write_text("".join(f"{json.dumps(one)}\n" for one in questions()), "utf-8")
            words = [sys.executable, "-m", "harness", "capture", str(prompts), "-o", str(folder)]
            words += ["--base-url", url, "--no-tripwire", "--concurrency", "32", "--fixed-concurrency"]
            words += ["--sampling", json.dumps({"max_tokens": TOKENS}), "--patience", "900"]
            subprocess.run(words, check=True)
    beside = path.with_suffix(".tmp")
    beside.write_bytes(pickle.dumps(kept))
    beside.replace(path)


class forwarded:
    """A forwarder in front of a server: hands everything on, and keeps status and body of what came back.

    Each generation of `TOKENS` tokens is asked for with the next script, so that the server makes that text.
    """

    def __init__(self, target: str, kept: dict[Key, tuple[int, bytes]], scripts: list[list[int]]) -> None:
        left = list(scripts)
        given: dict[Key, list[int]] = {}
        lock = threading.Lock()

        def scripted(body: bytes) -> bytes:
            asked = json.loads(body)
            params = asked.get("sampling_params", {})
            if params.get("max_new_tokens") != TOKENS:
                return body
            with lock:
                # A request that is sent again gets its own script again.
                key = key_of("", body)
                if key not in given:
                    given[key] = left[len(given)]
            params["custom_params"] = custom_params(given[key])
            return json.dumps({**asked, "custom_logit_processor": processor_text()}).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.hand_on(None)

            def do_POST(self) -> None:
                self.hand_on(self.rfile.read(int(self.headers["Content-Length"])))

            def hand_on(self, body: bytes | None) -> None:
                headers = {"Content-Type": "application/json"} if body is not None else {}
                sent = scripted(body) if body else body
                request = urllib.request.Request(target + self.path, sent, headers)
                try:
                    with urllib.request.urlopen(request, timeout=900) as reply:
                        status, told = reply.status, reply.read()
                except urllib.error.HTTPError as error:
                    status, told = error.code, error.read()
                kept[key_of(self.path, body or b"")] = status, told
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(told)))
                self.end_headers()
                self.wfile.write(told)

            def log_message(self, format: str, *args: object) -> None:
                """Stay silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Replay(asyncio.Protocol):
    """One connection: each whole request gets its recorded answer."""

    def __init__(self, told: Callable[[str, bytes], bytes]) -> None:
        self._told = told
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._data) < end + 4 + length:
                return
            path = self._data.split(b" ", 2)[1].decode()
            body = self._data[end + 4 : end + 4 + length]
            self._data = self._data[end + 4 + length :]
            self._transport.write(self._told(path, body))


async def replay(path: Path) -> None:
    """Serve the recorded answers on a free port, told on standard output, until the process is ended."""
    kept: dict[Key, tuple[int, bytes]] = pickle.loads(path.read_bytes())
    whole = {
        key: b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % (status, len(body))
        + body
        for key, (status, body) in kept.items()
    }
    unknown = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"
    server = await asyncio.get_running_loop().create_server(
        lambda: Replay(lambda path, body: whole.get(key_of(path, body), unknown)),
        "127.0.0.1",
        0,
        backlog=4096,
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(replay(Path(sys.argv[1])))
