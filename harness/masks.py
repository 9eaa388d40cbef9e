"""Keys and passwords in what is shown: command lines, URLs, errors.

Place in the flow: under the server stage, the reports and the commands. Imports the standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "(not shown)"

# argparse takes a flag's beginning for the flag: --api-k is --api-key.
_SHORTENED = frozenset(
    name[:length]
    for name in ("--api-key", "--admin-api-key")
    for length in range(len("--api"), len(name) + 1)
)
_NAME = r"--[\w-]*(?:api[-_]key|password|secret|auth[-_]token|hf[-_]token)"
_FLAG = re.compile(_NAME)
_SHORT = "|".join(sorted(_SHORTENED, key=len, reverse=True))
_VALUE = r"""('[^']*'|"[^"]*"|\S+)"""
_FLAG_AND_VALUE = re.compile(rf"(?<![\w-])({_NAME}|{_SHORT})(\s+|=){_VALUE}")
_USER = re.compile(r"(\w://)[^/\s?#'\"]*@")
_QUERY = re.compile(
    r"([?&][^=&#\s]*(?:token|key|secret|password|credential|signature)[^=&#\s]*=)[^&#\s'\"]+", re.IGNORECASE
)


def is_key_flag(word: str) -> bool:
    """Whether a flag's value is a key or a password."""
    return word in _SHORTENED or _FLAG.fullmatch(word) is not None


def masked_urls(text: str) -> str:
    """The text with what URLs in it have of users, passwords and tokens left out."""
    return _QUERY.sub(r"\1***", _USER.sub(r"\1***@", text))


def masked_command(text: str, mask: str = MASK) -> str:
    """A command line without the values of keys and passwords."""
    return masked_urls(_FLAG_AND_VALUE.sub(lambda found: f"{found[1]}{found[2]}{mask}", text))


def masked_words(words: Sequence[str]) -> list[str]:
    """The words of a command without the values of keys and passwords; each stays one word."""
    out: list[str] = []
    hidden = False
    for word in words:
        name, equals, _ = word.partition("=")
        if hidden and not word.startswith("--"):
            out.append(MASK)
        else:
            out.append(f"{name}={MASK}" if equals and is_key_flag(name) else masked_urls(word))
        hidden = not equals and is_key_flag(word)
    return out
