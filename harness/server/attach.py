"""A server that already runs: what it says about itself, and whether it can be used.

Place in the flow: the other way into the server stage, next to booting. Imports the stage's own modules and
`contracts.records`; neither torch nor sglang.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.records import ServerFacts
from harness.masks import masked_command
from harness.server.failures import NoAnswer, NotReady, Unreachable
from harness.server.families import local_file, remote_code_sha256
from harness.server.flags import DECISIVE
from harness.server.http import is_loopback
from harness.server.ready import info, is_warm, prove_generation

REPORTED: tuple[str, ...] = (
    *DECISIVE,
    "ep_size",
    "device",
    "max_total_tokens",
    "sampling_backend",
    "grammar_backend",
    "enable_lora",
    "launch_command",
)
"""The settings kept in `ServerFacts.flags`, of the several hundred that `/server_info` reports."""


def server_facts(base_url: str, *, timeout: float = 10.0, api_key: str | None = None) -> ServerFacts:
    """What the server reports about itself, from `/model_info` and `/server_info`.

    Fingerprints and vocabulary size are read from the model's folder where the server runs on this machine
    and the folder is there; elsewhere they are None.

    Raises `Unreachable` or `NotReady`.
    """
    base_url = base_url.rstrip("/")
    model = info(base_url, "model_info", timeout=timeout, api_key=api_key)
    server = info(base_url, "server_info", timeout=timeout, api_key=api_key)
    # A weight update changes what /model_info says, /server_info keeps telling of the start.
    merged = {**server, **{key: value for key, value in model.items() if key in server or value is not None}}
    path = str(merged.get("model_path", ""))
    folder = Path(str(merged.get("tokenizer_path") or path))
    local = is_loopback(base_url) and folder.is_dir()
    return ServerFacts(
        base_url=base_url,
        model=path,
        engine="sglang",
        engine_version=_text(merged.get("version")),
        revision=_text(merged.get("revision")),
        weight_version=_text(merged.get("weight_version")),
        reasoning_parser=_text(merged.get("reasoning_parser")),
        tool_parser=_text(merged.get("tool_call_parser")),
        tokenizer_sha256=tokenizer_sha256(folder) if local else None,
        chat_template_sha256=_template_sha256(merged.get("chat_template"), folder if local else None),
        vocab_size=_vocab_size(Path(path)) if is_loopback(base_url) else None,
        quantization=_text(merged.get("quantization")),
        kv_cache_dtype=_text(merged.get("kv_cache_dtype")),
        speculative=_text(merged.get("speculative_algorithm")),
        lora=json.dumps(merged["lora_paths"]) if merged.get("lora_paths") else None,
        flags={key: _without_secrets(key, merged[key]) for key in REPORTED if key in merged}
        | _remote_code(merged, base_url),
    )


def _remote_code(merged: dict[str, Any], base_url: str) -> dict[str, str]:
    """The digest of the model's own Python code, where it was allowed to run and lies on this machine."""
    path = str(merged.get("model_path", ""))
    if merged.get("trust_remote_code") is not True or not is_loopback(base_url):
        return {}
    config = local_file(path, "config.json", _text(merged.get("revision")))
    digest = remote_code_sha256(config.parent) if config else None
    return {"remote_code_sha256": digest} if digest else {}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _without_secrets(key: str, value: Any) -> Any:
    # SGLang tells its own API keys here, and facts end up in shards and certificates.
    if key == "launch_command" and isinstance(value, str):
        return masked_command(value, "<redacted>")
    return value


def tokenizer_sha256(folder: Path) -> str | None:
    """SHA-256 of the tokenizer's file: `tokenizer.json`, else `tiktoken.model`, else `tokenizer.model`."""
    for name in ("tokenizer.json", "tiktoken.model", "tokenizer.model"):
        if (folder / name).is_file():
            return hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return None


def _template_sha256(flag: object, folder: Path | None) -> str | None:
    """SHA-256 of the chat template's text: the file given by flag, else the model's own."""
    if isinstance(flag, str):
        given = Path(flag)
        return _digest(given.read_text("utf-8")) if folder and given.is_file() else None
    if folder is None:
        return None
    if (folder / "chat_template.jinja").is_file():
        return _digest((folder / "chat_template.jinja").read_text("utf-8"))
    template = _load(folder / "tokenizer_config.json").get("chat_template")
    return _digest(template) if isinstance(template, str) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _load(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _vocab_size(folder: Path) -> int | None:
    config = _load(folder / "config.json")
    size = config.get("vocab_size", (config.get("text_config") or {}).get("vocab_size"))
    return size if isinstance(size, int) else None


@dataclass(frozen=True, slots=True)
class AttachedServer:
    """A running server of somebody else: never started, never stopped from here."""

    base_url: str
    facts: ServerFacts
    api_key: str | None = None

    @property
    def pid(self) -> None:
        """Not ours to know."""

    @property
    def log_path(self) -> None:
        """Not ours to read."""

    @property
    def command(self) -> str | None:
        """How the server says that it was started; None where its version does not tell."""
        return _text(self.facts.flags.get("launch_command"))

    def alive(self) -> bool:
        """Whether it still answers."""
        try:
            self.check()
        except (NotReady, Unreachable):
            return False
        return True

    def check(self) -> None:
        """Raise `Unreachable` or `NotReady` unless the server still answers."""
        info(self.base_url, "model_info", timeout=10.0, api_key=self.api_key)


def attach(
    url: str,
    *,
    api_key: str | None = None,
    wait: float = 0.0,
    prove: bool = True,
    patience: float = 60.0,
) -> AttachedServer:
    """Judge a running server by what it reports; `wait` seconds for one that is still warming up.

    `prove` has it generate a few tokens, the only proof that its weights are there; `patience` is the seconds
    that this may take (`/health` 20 at most, the first answer 10).

    Raises `Unreachable` (nobody listens, no SGLang, wrong key) or `NotReady` (warming up, no generation).
    """
    base_url = url.rstrip("/")
    if "://" not in base_url:
        base_url = f"http://{base_url}"
    base_url = base_url.removesuffix("/v1")
    until = time.monotonic() + wait
    model = info(base_url, "model_info", timeout=min(10.0, patience), api_key=api_key)
    while not is_warm(base_url, timeout=min(20.0, patience), api_key=api_key):
        if time.monotonic() >= until:
            raise NotReady(
                "the server is still warming up",
                where=base_url + "/health",
                why="it answers, but says that it is not ready for requests, or can't say that it is",
                remedy="wait and try again; if it stays so, its scheduler is stuck: read the server's log",
            )
        time.sleep(0.5)
    if model.get("is_generation") is False:
        raise NotReady(
            "the server does not generate",
            where=base_url + "/model_info",
            why=f"it serves {model.get('model_path')} as an embedding or reward model",
            remedy="give the URL of a server that was started for generation",
        )
    try:
        # Half of a prefill/decode pair can't answer alone; its /health asked a made-up partner.
        server = info(base_url, "server_info", timeout=min(10.0, patience), api_key=api_key)
        if prove and server.get("disaggregation_mode") in (None, "null"):
            prove_generation(base_url, timeout=patience, api_key=api_key)
        return AttachedServer(base_url, server_facts(base_url, api_key=api_key), api_key)
    except NoAnswer as error:
        # The port answers; what needs the scheduler (these do, /model_info does not) waits for ever.
        raise NotReady(
            "the server does not generate",
            where=error.where,
            why=f"its port answers and /health says 200; what needs its scheduler gets {error.why}",
            remedy="its scheduler is stuck, stopped or overloaded: read the server's log",
        ) from error
