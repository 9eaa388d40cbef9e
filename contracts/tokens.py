"""Token ids, bytes and text: one tokenizer behind one small protocol.

Place in the flow: under the judge and the rules. Imports numpy-free standard library at the top and
`tokenizers`/`transformers` only when a codec is loaded; never torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from contracts.errors import ShardgateError

TOKENIZER_FILES = ("tokenizer.json", "tiktoken.model", "tokenizer.model")
"""The files that can hold a vocabulary; the first one there makes the tokenizer's fingerprint."""


@runtime_checkable
class Codec(Protocol):
    """What the judge and the rules need of a tokenizer.

    `encode` takes the markers in the text as their own tokens and adds no special tokens. `token_bytes`
    raises `UndecodableToken` for an id that the tokenizer does not know.
    """

    @property
    def vocab_size(self) -> int | None: ...

    @property
    def sha256(self) -> str | None: ...

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]: ...

    def decode_bytes(self, ids: Sequence[int]) -> bytes: ...

    def encode(self, text: str) -> list[int]: ...

    def token_id(self, text: str) -> int | None: ...

    def __hash__(self) -> int: ...


class UndecodableToken(ValueError):
    """A token id that has no bytes in this tokenizer; `index` is its place in the sequence.

    `foreign` is False for a token that the vocabulary has and whose bytes, no UTF-8 in any surrounding, the
    codec can't see.
    """

    foreign = True

    def __init__(self, token_id: int, index: int) -> None:
        super().__init__(f"token id {token_id} at index {index} is not in the tokenizer's vocabulary")
        self.token_id = token_id
        self.index = index


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """Return the GPT-2 byte alphabet (character → byte) that byte-level BPE tokens are spelled in.

    Source: openai/gpt-2 `encoder.py`, `bytes_to_unicode`; printable bytes stand for themselves, the others
    are shifted past U+0100 in byte order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    shifted = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(256 + n): byte for n, byte in enumerate(shifted)})
    return alphabet


class FastCodec:
    """A codec over a `tokenizers.Tokenizer` (what a fast transformers tokenizer holds)."""

    def __init__(self, tokenizer: Any, sha256: str | None = None) -> None:
        self._tokenizer = tokenizer
        self.sha256 = sha256
        self.vocab_size: int | None = tokenizer.get_vocab_size(with_added_tokens=True)
        spec = json.loads(tokenizer.to_str())
        self._added = {int(token["id"]): str(token["content"]) for token in spec.get("added_tokens") or ()}
        self._byte_level = '"ByteLevel"' in json.dumps(spec.get("decoder"))
        self._normalizes = spec.get("normalizer") is not None
        self._cache: dict[int, bytes] = {}

    def _bytes_of(self, token_id: int, index: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None
        if token is None:
            raise UndecodableToken(token_id, index)
        if token_id in self._added:
            return self._added[token_id].encode()
        if self._byte_level:
            alphabet = byte_alphabet()
            return b"".join(bytes((alphabet[char],)) if char in alphabet else char.encode() for char in token)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return str(token).replace("\u2581", " ").encode()

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """Return each token's own bytes, in order."""
        cache = self._cache
        try:
            # All seen before, as soon as some rows are: then no step of Python for each.
            return list(map(cache.__getitem__, ids))
        except KeyError:
            pass
        out = []
        for index, token_id in enumerate(ids):
            found = cache.get(token_id)
            if found is None:
                found = cache[token_id] = self._bytes_of(int(token_id), index)
            out.append(found)
        return out

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Return the bytes that the token ids stand for, special tokens included."""
        return b"".join(self.token_bytes(ids))

    def encode(self, text: str) -> list[int]:
        """Encode the whole text once; markers become their own tokens, nothing is added."""
        clean = text.encode("utf-8", "replace").decode() if _has_surrogate(text) else text
        return list(self._tokenizer.encode(clean, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text as `encode` does, in one call of the library."""
        clean = [text.encode("utf-8", "replace").decode() if _has_surrogate(text) else text for text in texts]
        return [list(one.ids) for one in self._tokenizer.encode_batch_fast(clean, add_special_tokens=False)]

    def to_json(self) -> str:
        """Return the tokenizer as its `tokenizer.json` has it."""
        return str(self._tokenizer.to_str())

    def added(self) -> list[str]:
        """Return the texts of the added tokens."""
        return list(self._added.values())

    def token_id(self, text: str) -> int | None:
        """Return the id of the token whose bytes are exactly `text`, if it is a marker token."""
        found = self._markers.get(text)
        return None if found is None else int(found)

    @cached_property
    def _markers(self) -> dict[str, int]:
        return {content: token_id for token_id, content in self._added.items()}


class SlowCodec:
    """A codec over a tiktoken-backed transformers tokenizer, such as Kimi-K2's own.

    Needs `tokenizer.model` to be a `tiktoken.Encoding` and `special_tokens` to map text to id.
    """

    def __init__(self, tokenizer: Any, sha256: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._model = tokenizer.model
        self._special: dict[str, int] = dict(tokenizer.special_tokens)
        self._special_text = {token_id: text.encode() for text, token_id in self._special.items()}
        self.sha256 = sha256
        self.vocab_size: int | None = int(self._model.n_vocab)

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """Return each token's own bytes, in order."""
        out = []
        for index, token_id in enumerate(ids):
            special = self._special_text.get(token_id)
            if special is not None:
                out.append(special)
                continue
            try:
                out.append(bytes(self._model.decode_single_token_bytes(token_id)))
            except (KeyError, OverflowError) as error:
                raise UndecodableToken(token_id, index) from error
        return out

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Return the bytes that the token ids stand for, special tokens included."""
        return b"".join(self.token_bytes(ids))

    def encode(self, text: str) -> list[int]:
        """Encode the whole text once; markers become their own tokens, nothing is added."""
        clean = text.encode("utf-8", "replace").decode() if _has_surrogate(text) else text
        return [int(i) for i in self._model.encode(clean, allowed_special=set(self._special))]

    def token_id(self, text: str) -> int | None:
        """Return the id of the marker token whose text is exactly `text`."""
        return self._special.get(text)


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def load_codec(source: Any, *, trust_remote_code: bool = False) -> Codec:
    """Return a codec for a tokenizer folder, a `tokenizer.json`, or a loaded tokenizer object.

    Raises:
        ShardgateError: the path is missing, holds no tokenizer, or needs remote code that was not allowed.
    """
    if isinstance(source, FastCodec | SlowCodec):
        return source
    if isinstance(source, str | os.PathLike):
        return _load_path(Path(source), trust_remote_code)
    if isinstance(source, Codec) and not hasattr(source, "convert_ids_to_tokens"):
        return source
    cached = getattr(source, "_shardgate_codec", None)
    if cached is not None:
        return cached  # type: ignore[no-any-return]
    codec = _wrap(source, None)
    # `tokenizers.Tokenizer` takes no attributes
    with contextlib.suppress(AttributeError):
        source._shardgate_codec = codec
    return codec


def _wrap(tokenizer: Any, sha256: str | None) -> Codec:
    if hasattr(tokenizer, "id_to_token") and hasattr(tokenizer, "to_str"):
        return FastCodec(tokenizer, sha256)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return FastCodec(backend, sha256)
    model = getattr(tokenizer, "model", None)
    if hasattr(model, "decode_single_token_bytes") and hasattr(tokenizer, "special_tokens"):
        return SlowCodec(tokenizer, sha256)
    raise ShardgateError(
        what=f"a {type(tokenizer).__name__} is no tokenizer that shardgate can read",
        why="it is neither a fast tokenizer nor a tiktoken-backed one",
        remedy="pass the model's tokenizer folder, or a fast transformers tokenizer",
    )


def _load_path(path: Path, trust_remote_code: bool) -> Codec:
    if not path.exists():
        raise ShardgateError(
            what="the tokenizer is missing",
            where=str(path),
            why="there is no such file or folder",
            remedy="pass the model's folder, with its tokenizer.json, or the tokenizer.json itself",
        )
    file = path if path.is_file() else path / "tokenizer.json"
    digest = tokenizer_sha256(path)
    if file.is_file() and file.suffix == ".json":
        from tokenizers import Tokenizer

        try:
            return FastCodec(Tokenizer.from_file(str(file)), digest)
        except Exception as error:  # tokenizers raises a bare Exception
            raise ShardgateError(
                what="the tokenizer can't be read",
                where=str(file),
                why=str(error),
                remedy="pass a tokenizer.json written by the tokenizers library",
            ) from error
    if path.is_dir() and digest is None and not (path / "tokenizer_config.json").is_file():
        raise ShardgateError(
            what="the folder holds no tokenizer",
            where=str(path),
            why=f"none of {', '.join(TOKENIZER_FILES)} is in it",
            remedy="pass the model's own folder, with its tokenizer.json, or the tokenizer.json itself",
        )
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(str(path), trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ShardgateError(
            what="the tokenizer can't be loaded",
            where=str(path),
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
            remedy="pass the model's folder; a tokenizer with code of its own needs --trust-remote-code",
        ) from error
    return _wrap(loaded, digest)


def tokenizer_sha256(path: Path) -> str | None:
    """Return the fingerprint of a tokenizer folder or file: SHA-256 of its vocabulary file, hex."""
    files: Iterable[Path] = (path,) if path.is_file() else (path / name for name in TOKENIZER_FILES)
    found = next((file for file in files if file.is_file()), None)
    return None if found is None else hashlib.sha256(found.read_bytes()).hexdigest()
