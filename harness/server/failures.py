"""Every way a server can let us down, as one exception tree, and the log lines that tell which it was.

Place in the flow: the bottom of the server stage. Imports the standard library only.

    ServerError
    ├── CannotBoot     nothing was started: port taken, model path wrong, SGLang not installed, bad deployment
    ├── BootFailed     the server died, or its log said that it never will be ready
    ├── BootTimeout    neither ready nor dead when the time was up
    ├── Mismatch       it runs, but reports another model, version, parser or flag than asked for
    ├── NotReady       it answers, but is warming up or does not generate what it is asked
    ├── ServerDied     it was ready, and is gone
    └── Unreachable    nobody listens there, or what listens is no SGLang
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class ServerError(Exception):
    """A server fault, told as what happened, where, why, and what to do; `log_lines` are the log's own words.

    `str()` gives a message of several lines that can be shown to a user as it is.
    """

    def __init__(
        self, what: str, *, where: str = "", why: str = "", remedy: str = "", log_lines: Sequence[str] = ()
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.remedy = remedy
        self.log_lines = tuple(log_lines)

    def __str__(self) -> str:
        parts = [self.what]
        for label, text in (("where", self.where), ("why", self.why), ("what to do", self.remedy)):
            if text:
                parts.append(f"  {label}: {text}")
        if self.log_lines:
            parts.append("  the log says:")
            parts.extend(f"    {line}" for line in self.log_lines)
        return "\n".join(parts)


class CannotBoot(ServerError):
    """Refused before anything was started."""


class BootFailed(ServerError):
    """The server died while booting, or its log shows that it can't become ready."""


class BootTimeout(ServerError):
    """The server was neither ready nor dead when the time was up."""


class Mismatch(ServerError):
    """The server reports something else than was asked for."""


class NotReady(ServerError):
    """The server answers but is warming up, or does not generate what it is asked."""


class ServerDied(ServerError):
    """The server was ready and is gone."""


class Unreachable(ServerError):
    """Nobody listens at the URL, or what listens is no SGLang server."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One kind of boot failure as SGLang's log shows it. `{0}` in `why` is the pattern's first group.

    `origin` says where the line was seen. `hangs` marks failures after which SGLang does not exit by
    itself, so that waiting for its death would wait for the timeout.
    """

    name: str
    pattern: re.Pattern[str]
    why: str
    remedy: str
    origin: str
    hangs: bool = False


def _sign(name: str, pattern: str, why: str, remedy: str, origin: str, *, hangs: bool = False) -> Sign:
    return Sign(name, re.compile(pattern), why, remedy, origin, hangs)


_SEEN = "seen, SGLang 0.5.23 on a CPU"
_TORCH = "message of torch, as reported with SGLang"

SIGNS: tuple[Sign, ...] = (
    _sign(
        "unknown-choice",
        r"error: (argument (?:--?[\w/-]+): invalid choice: .*)",
        "{0}",
        "give one of the values that this SGLang version knows",
        _SEEN,
    ),
    _sign(
        "unknown-flag",
        r"error: unrecognized arguments: (.*)",
        "this SGLang version has no flag {0}",
        "check the spelling against `python -m sglang.launch_server --help`, or use the version that has it",
        _SEEN,
    ),
    _sign(
        "bad-argument",
        r"(?:sglang serve|launch_server\.py): error: (.*)",
        "{0}",
        "correct the flag",
        "argparse, SGLang 0.5.23",
    ),
    _sign(
        "port-taken",
        r"(\[Errno 98\][^\n]*|address already in use[^\n]*)",
        "the port is taken: {0}",
        "choose another port, or leave the port out and a free one is found",
        _SEEN,
        hangs=True,
    ),
    _sign(
        "platform-missing",
        r"(SGLANG_PLATFORM='[^']*' not found in discovered platform plugins[^\n]*)",
        "{0}",
        "install shardgate into the same environment as SGLang, so that its CPU platform can be found",
        "sglang/srt/platforms/__init__.py, 0.5.23",
    ),
    _sign(
        "gpu-memory",
        r"((?:torch\.\S*)?OutOfMemoryError[^\n]*|CUDA out of memory[^\n]*|Not enough memory\. [^\n]*)",
        "out of GPU memory: {0}",
        "raise --tp-size, lower --mem-fraction-static or --context-length, or free the GPUs (nvidia-smi)",
        _TORCH,
    ),
    _sign(
        "host-memory",
        r"(MemoryError\b[^\n]*|Cannot allocate memory[^\n]*|DefaultCPUAllocator: [^\n]*)",
        "out of host memory: {0}",
        "free memory on this machine, or lower --max-total-tokens",
        _TORCH,
    ),
    _sign(
        "disk-full",
        r"(No space left on device[^\n]*)",
        "{0}",
        "free disk space where the model cache and /tmp lie",
        "errno 28",
    ),
    _sign(
        "driver-too-old",
        r"(The NVIDIA driver on your system is too old[^\n]*|CUDA driver version is insufficient[^\n]*)",
        "{0}",
        "update the NVIDIA driver, or install the SGLang build for this CUDA version",
        _TORCH,
    ),
    _sign(
        "nccl",
        r"((?:torch\.distributed\.)?DistBackendError[^\n]*|ncclUnhandledCudaError[^\n]*|ncclSystemError[^\n]*)",
        "the GPUs could not be joined: {0}",
        "set NCCL_DEBUG=INFO and read on; check shared memory (/dev/shm) and that no rank died first",
        _TORCH,
    ),
    _sign(
        "checkpoint-damaged",
        r"(SafetensorError: [^\n]*)",
        "a checkpoint file is damaged or half there: {0}",
        "fetch the model again, or compare its files' sizes with the repository's",
        _SEEN,
    ),
    _sign(
        "remote-code",
        r"([^\n]*(?:trust_remote_code=True|--trust-remote-code)[^\n]*)",
        "the model brings code of its own: {0}",
        "read that code, then allow it with --trust-remote-code",
        "message of transformers",
    ),
    _sign(
        "unknown-architecture",
        r"((?:Model architectures|The checkpoint you are)[^\n]*(?:not supported|not recognize)[^\n]*)",
        "{0}",
        "use an SGLang version that supports this model",
        "sglang/srt/models/registry.py and transformers",
    ),
    _sign(
        "model-not-found",
        r"((?:OSError: |HFValidationError: |LocalEntryNotFoundError: |RepositoryNotFoundError: )[^\n]*)",
        "the model could not be read: {0}",
        "check the model path; for a hub name, check the spelling, the login and HF_HUB_OFFLINE",
        _SEEN,
    ),
    _sign(
        "package-missing",
        r"((?:ModuleNotFoundError|ImportError): [^\n]*)",
        "{0}",
        "install what is missing: the extra `cpu` or `gpu` of shardgate brings what a boot needs",
        _SEEN,
    ),
)
"""First match wins, so the specific stand before the general."""

_NOISE = re.compile(
    r"server_args=|^usage:|^\s+\[-|^\s+\[--|UserWarning|^\s+warnings\.warn|Ignore import error"
)
_TELLING = re.compile(
    r"^(?:\S+\.)*\w*(?:Error|Exception)\b(?::|$)|\berror: |\bERROR\b|\[Errno \d+\]|Received sigquit"
    r"|hit an exception|out of memory|\bKilled\b|Segmentation fault|core dumped",
    re.IGNORECASE,
)
_MAX_LINE = 400


def clean_lines(text: str) -> list[str]:
    """The log's lines, progress bars split up, noise (usage text, argument dumps) left out."""
    return [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip() and not _NOISE.search(line)]


def telling_lines(text: str, limit: int = 8) -> tuple[str, ...]:
    """The lines of a log that say why it ended; its last lines where none stands out."""
    lines = clean_lines(text)
    chosen = list(dict.fromkeys(line for line in lines if _TELLING.search(line)))[-limit:]
    return tuple(line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + " …" for line in chosen or lines[-5:])


def find_sign(lines: Iterable[str], *, only_hanging: bool = False) -> tuple[Sign, str] | None:
    """The first known failure that the lines show, with its reason filled in; None when nothing is known."""
    text = "\n".join(lines)
    for sign in SIGNS:
        if only_hanging and not sign.hangs:
            continue
        if match := sign.pattern.search(text):
            return sign, sign.why.format(match.group(1).strip()[:_MAX_LINE])
    return None


def describe_exit(code: int) -> str:
    """`exit code 2`, or the signal's name for the negative codes of `subprocess`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def from_log(kind: type[ServerError], what: str, where: str, log_text: str, fallback: str) -> ServerError:
    """An error of that kind whose reason and remedy come from the log, or `fallback` and the log's end."""
    found = find_sign(clean_lines(log_text))
    why, remedy = (
        (found[1], found[0].remedy) if found else (fallback, "read the log's end; nothing known fits")
    )
    return kind(what, where=where, why=why, remedy=remedy, log_lines=telling_lines(log_text))
