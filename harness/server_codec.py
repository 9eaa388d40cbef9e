"""A codec that asks the server: for who has no copy of the model's tokenizer.

Place in the flow: in place of `contracts.tokens.load_codec`, under the judge. Imports `contracts.tokens`,
`harness.http` and the standard library; synchronous, since codecs are.

`/tokenize` and `/detokenize` speak text, and a token may be a fragment of a character, which alone decodes
to U+FFFD. Such a token's bytes are found by setting it between tokens whose bytes are known, until the
whole decodes without a replacement: E4 BD before 80 is a character, and BD 80 after EE too. The known tokens
come from encoding private-use characters, which no merge of a vocabulary covers. A token that stays
undecodable (bytes that are UTF-8 in no surrounding, such as FF) raises `UnseenBytes`, an `UndecodableToken`.

What it can't do: tell the vocabulary's size or the tokenizer's fingerprint (both are None). A server whose
tokenizer normalises text on the way out gives normalised bytes.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from contracts.tokens import UndecodableToken
from harness.http import answer_message, auth_headers, clean_base_url, server_gone
from harness.wire_errors import HttpStatusError, MalformedResponse, ServerTimeout, status_error
from harness.wire_json import error_message, json_object

REPLACEMENT = "\ufffd"
BATCH = 512
"""Token lists per `/detokenize` request."""

# Planes whose second byte is free (E1-EC, EE, EF; F1-F3): any continuation bytes make a character.
_THREE_BYTES = 0xEE
_FOUR_BYTES = 0xF3


class UnseenBytes(UndecodableToken):
    """A token whose bytes the server can't show: not one that its vocabulary lacks."""

    foreign = False

    def __str__(self) -> str:
        return (
            f"token id {self.token_id} at index {self.index} stands for bytes that are UTF-8 in no "
            "surrounding, which the server's /detokenize can't show: give the model's tokenizer with "
            "--tokenizer PATH"
        )


class ServerCodec:
    """The `contracts.tokens.Codec` of a running server, by URL. Answers are kept, so ask often.

    `timeout` is in seconds, per request.

    Raises:
        ClientError: from every method, when the server is gone or lacks the endpoints.
    """

    vocab_size: int | None = None
    sha256: str | None = None

    def __init__(self, base_url: str, *, timeout: float = 60.0, api_key: str | None = None) -> None:
        self.base_url = clean_base_url(base_url)
        self._parts = urlsplit(self.base_url)
        self._timeout = timeout
        self._headers = auth_headers(api_key) | {"Content-Type": "application/json"}
        self._connection: http.client.HTTPConnection | None = None
        self._bytes: dict[int, bytes | None] = {}
        self._encoded: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> list[int]:
        """Encode the whole text once; markers become their own tokens, nothing is added."""
        known = self._encoded.get(text)
        if known is None:
            clean = text.encode("utf-8", "replace").decode()
            answer = self._post("/tokenize", {"prompt": clean, "add_special_tokens": False})
            tokens = answer.get("tokens")
            if not isinstance(tokens, list) or not all(type(token_id) is int for token_id in tokens):
                raise self._lacks("/tokenize", "tokens", answer)
            known = self._encoded[text] = tuple(tokens)
        return list(known)

    def token_id(self, text: str) -> int | None:
        """Return the id of the token that is exactly `text`, if encoding gives one token for it."""
        ids = self.encode(text)
        return ids[0] if len(ids) == 1 and self._texts([ids])[0] == text else None

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """Return each token's own bytes, in order. Raises `UndecodableToken`; `UnseenBytes` is one."""
        self._learn(sorted({int(token_id) for token_id in ids} - self._bytes.keys()))
        out = []
        for index, token_id in enumerate(ids):
            found = self._bytes[token_id]
            if found is None:
                raise UnseenBytes(token_id, index)
            if not found:
                raise UndecodableToken(token_id, index)
            out.append(found)
        return out

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Return the bytes that the token ids stand for, special tokens included."""
        return b"".join(self.token_bytes(ids))

    def close(self) -> None:
        """Close the connection; the next question opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _learn(self, wanted: Sequence[int]) -> None:
        """Fill `_bytes`: b"" for an id that the server's vocabulary lacks, None for one it can't show."""
        if not wanted:
            return
        anchor_ids, anchor = self._anchor
        try:
            # A leading space of a SentencePiece token is dropped at the start of a text: never decode alone.
            texts = self._texts([[*anchor_ids, token_id] for token_id in wanted])
        except HttpStatusError as error:
            # Some tokenizers fail on an id that they lack, and the whole batch with it: find that id.
            if error.status in (401, 403, 404):
                raise
            if len(wanted) == 1:
                self._bytes[wanted[0]] = b""
                return
            self._learn(wanted[: len(wanted) // 2])
            self._learn(wanted[len(wanted) // 2 :])
            return
        for token_id, text in zip(wanted, texts, strict=True):
            own = text.removeprefix(anchor)
            if REPLACEMENT not in own and text.startswith(anchor):
                self._bytes[token_id] = own.encode("utf-8", "surrogatepass")
            elif [token_id] == self.encode(REPLACEMENT):
                self._bytes[token_id] = REPLACEMENT.encode()
            else:
                self._bytes[token_id] = self._fragment(token_id)

    def _fragment(self, token_id: int) -> bytes | None:
        """Return the bytes of a token that is no whole character, None where no surrounding shows them."""
        known = self._byte_tokens
        frames = [
            (before, after)
            for before in _BEFORE
            for after in _AFTER
            if all(byte in known for byte in before + after)
        ]
        anchor_ids, anchor = self._anchor
        tries = [
            [*anchor_ids, *(known[b] for b in before), token_id, *(known[b] for b in after)]
            for before, after in frames
        ]
        for (before, after), text in zip(frames, self._texts(tries), strict=True):
            whole = text.removeprefix(anchor).encode("utf-8", "surrogatepass")
            clean = REPLACEMENT not in text and text.startswith(anchor)
            if clean and whole.startswith(before) and whole.endswith(after):
                return whole[len(before) : len(whole) - len(after)]
        return None

    @cached_property
    def _anchor(self) -> tuple[list[int], str]:
        """A token sequence to decode behind, and its text."""
        ids = self.encode("a")
        return ids, self._texts([ids])[0]

    @cached_property
    def _byte_tokens(self) -> dict[int, int]:
        """Byte → the id of the token that is this byte alone, for the lead and continuation bytes in use."""
        found: dict[int, int] = {}
        for char in _SPELLED:
            spelled, ids = char.encode(), self.encode(char)
            if len(ids) == len(spelled):
                found.update(zip(spelled, ids, strict=True))
        return found

    def _texts(self, lists: Sequence[Sequence[int]]) -> list[str]:
        texts: list[str] = []
        for start in range(0, len(lists), BATCH):
            batch = [list(ids) for ids in lists[start : start + BATCH]]
            answer = self._post("/detokenize", {"tokens": batch, "skip_special_tokens": False})
            part = answer.get("text")
            if (
                not isinstance(part, list)
                or len(part) != len(batch)
                or not all(isinstance(t, str) for t in part)
            ):
                raise self._lacks("/detokenize", "text", answer)
            texts += part
        return texts

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = self.base_url + path
        status, payload = self._exchange(url, path, json.dumps(body).encode())
        if status != 200:
            raise status_error(status, answer_message(payload), where=url, body=payload)
        data = json_object(payload)
        if data.get("object") == "error":
            raise status_error(int(data.get("code") or 0), error_message(data), where=url, body=payload)
        return data

    def _exchange(self, url: str, path: str, data: bytes) -> tuple[int, bytes]:
        reused = self._connection is not None
        for attempt in range(2):
            connection = self._connection or self._connect()
            self._connection = connection
            try:
                connection.request("POST", self._parts.path + path, body=data, headers=self._headers)
                response = connection.getresponse()
                return response.status, response.read()
            except TimeoutError as error:
                self.close()
                raise ServerTimeout(
                    what=f"no answer within {self._timeout:g} seconds",
                    where=url,
                    why=str(error) or "no byte came",
                    remedy="check the server's log for a hang",
                ) from error
            except (OSError, http.client.HTTPException) as error:
                self.close()
                # A kept connection that the server closed while idle says nothing about the server; asking
                # twice is harmless, since nothing is generated.
                if not reused or attempt:
                    refused = isinstance(error, ConnectionRefusedError | socket.gaierror)
                    raise server_gone(url, str(error) or type(error).__name__, reached=not refused) from error
        raise AssertionError("unreachable")

    def _connect(self) -> http.client.HTTPConnection:
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout)

    def _lacks(self, path: str, name: str, answer: dict[str, Any]) -> MalformedResponse:
        return MalformedResponse(
            what=f"the answer has no usable {name!r}",
            where=self.base_url + path,
            why=f"it has {', '.join(sorted(answer)) or 'nothing'}",
            remedy="give the model's tokenizer folder with --tokenizer PATH",
        )


def _chars(lead: int, tails: Iterable[bytes]) -> list[str]:
    return [(bytes((lead,)) + tail).decode() for tail in tails]


_SPELLED = _chars(_THREE_BYTES, (bytes((0x80, b)) for b in (0x80, 0x8F, 0x90, 0xA0))) + _chars(
    _FOUR_BYTES, (bytes((0xB0, 0x80, b)) for b in (0x80, 0x8F, 0x90, 0xA0))
)
_BEFORE = (
    b"",
    bytes((_THREE_BYTES, 0x80)),
    bytes((_THREE_BYTES,)),
    bytes((_FOUR_BYTES,)),
)
_AFTER = (
    b"",
    b"\x80",
    b"\xa0",
    b"\x90",
    b"\x80\x80",
    b"\xa0\x80",
    b"\x90\x80",
    b"\x8f\x80",
    b"\x80\x80\x80",
    b"\x90\x80\x80",
    b"\x8f\x80\x80",
)
