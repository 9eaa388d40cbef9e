"""Every way a server can let us down, as one exception tree. What a log says of it is for `signs`.

Place in the flow: the bottom of the server stage. Imports `harness.masks` and the standard library.

    ServerError
    ├── CannotBoot     nothing was started: port taken, model path wrong, SGLang not installed, bad deployment
    ├── BootFailed     the server died, or its log said that it never will be ready
    │   └── BootStalled    it lives, and has given no sign of life for too long
    ├── BootTimeout    neither ready nor dead when the time was up
    ├── Mismatch       it runs, but reports another model, version, parser or flag than asked for
    ├── NotReady       it answers, but is warming up or does not generate what it is asked
    ├── ServerDied     it was ready, and is gone
    └── Unreachable    nobody listens there, or what listens is no SGLang
        └── NoAnswer       somebody listens, and no answer came in time
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from harness.masks import masked_urls


class ServerError(Exception):
    """A server fault, told as what happened, where, why, and what to do; `log_lines` are the log's own words.

    `str()` gives a message of several lines that can be shown to a user as it is.
    """

    def __init__(
        self, what: str, *, where: str = "", why: str = "", remedy: str = "", log_lines: Sequence[str] = ()
    ) -> None:
        super().__init__(masked_urls(what))
        # URLs come from users and servers, with what they hold of passwords and tokens.
        self.what = masked_urls(what)
        self.where = masked_urls(where)
        self.why = masked_urls(why)
        self.remedy = remedy
        self.log_lines = tuple(log_lines)
        self.sign = ""
        """The name of the sign that the log showed, from `fixtures/boot-failures/signs.toml`; else empty."""

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


class BootStalled(BootFailed):
    """The server lives, but has neither logged nor read anything for too long."""


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


class NoAnswer(Unreachable):
    """Somebody listens at the URL, but no answer came in time."""


def describe_exit(code: int) -> str:
    """`exit code 2`, or the signal's name for the negative codes of `subprocess`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
