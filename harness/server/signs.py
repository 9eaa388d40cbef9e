"""What a server's log says about its end: the signs of `fixtures/boot-failures/signs.toml`, looked for.

Place in the flow: above the exception tree, below whoever waits for a server. Imports the standard library,
`harness.paths` and `harness.server.failures`.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass

from harness.paths import fixtures_dir
from harness.server.failures import ServerError


@dataclass(frozen=True, slots=True)
class Sign:
    """One kind of failure as SGLang's log shows it. `{0}` in `why` is the pattern's first group.

    `hangs` marks failures after which SGLang does not exit by itself, so that waiting for its death would
    take all the time there is. `gpu` marks those for which it matters who uses the GPUs.
    """

    name: str
    pattern: re.Pattern[str]
    why: str
    remedy: str
    hangs: bool = False
    gpu: bool = False


@functools.cache
def signs() -> tuple[Sign, ...]:
    """All signs in their order; the first whose pattern fits names the failure."""
    text = (fixtures_dir() / "boot-failures" / "signs.toml").read_text("utf-8")
    return tuple(
        Sign(**{**table, "pattern": re.compile(table["pattern"], re.MULTILINE)})
        for table in tomllib.loads(text)["sign"]
    )


READY_LINE = "The server is fired up and ready to roll"
"""What SGLang logs when its warm-up is over."""

_NOISE = re.compile(
    r"server_args=|^usage:|^\s+\[-|^\s+\[--|UserWarning|^\s+warnings\.warn|Ignore import error"
    # Whoever logs requests has prompts in the log, and a prompt may talk about any failure.
    r"|Receive: obj=|Finish: obj="
)
_TELLING = re.compile(
    r"^(?:\S+\.)*\w*(?:Error|Exception)\b(?::|$)|\berror: |(?-i:\bERROR\b)|\[Errno \d+\]|Received sigquit"
    r"|hit an exception|\bout of memory\b|(?-i:\bKilled\b)|Segmentation fault|core dumped"
    r"|crashed with exit code|died during initialization|NCCL WARN|Health check failed",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b(?:: |$)")
_MAX_LINE = 400
_MAX_SEARCHED = 4000


def clean_lines(text: str) -> list[str]:
    """The log's lines, progress bars split up, noise (usage text, argument dumps, prompts) left out."""
    return [
        line.rstrip()[:_MAX_SEARCHED]
        for line in re.split(r"[\r\n]+", text)
        if line.strip() and not _NOISE.search(line)
    ]


def telling_lines(text: str, limit: int = 8) -> tuple[str, ...]:
    """The lines of a log that say why it ended; its last lines where none stands out."""
    lines = clean_lines(text)
    chosen = list(dict.fromkeys(line for line in lines if _TELLING.search(line)))[-limit:]
    return tuple(line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + " …" for line in chosen or lines[-5:])


def find_sign(lines: Iterable[str], *, only_hanging: bool = False) -> tuple[Sign, str] | None:
    """The first known failure that the lines show, with its reason filled in; None when nothing is known."""
    text = "\n".join(lines)
    for sign in signs():
        if only_hanging and not sign.hangs:
            continue
        if match := sign.pattern.search(text):
            detail = match.group(1).strip().splitlines()[-1].strip()
            return sign, sign.why.format(detail[:_MAX_LINE])
    return None


def from_log(kind: type[ServerError], what: str, where: str, log_text: str, fallback: str) -> ServerError:
    """An error of that kind whose reason and remedy come from the log, or `fallback` and the log's end."""
    lines = clean_lines(log_text)
    found = find_sign(lines)
    if found:
        why, remedy = found[1], found[0].remedy
    else:
        # What nobody has recorded yet is still told in the log's own words.
        ends = [line for line in lines if _EXCEPTION.search(line)]
        why = f"{fallback}; the log's last error: {ends[-1][:_MAX_LINE]}" if ends else fallback
        remedy = "read the log's end; nothing known fits"
    error = kind(what, where=where, why=why, remedy=remedy, log_lines=telling_lines(log_text))
    error.sign = found[0].name if found else ""
    return error
