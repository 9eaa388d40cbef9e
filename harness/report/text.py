"""Text that came from outside, made safe to show: model output, file names, log lines.

Place in the flow: under every report. Imports `harness.masks` and the standard library.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from harness.masks import MASK, masked_command

# Control, format (bidi overrides, zero-width, tags), surrogate, private, unassigned, line separators:
# what a terminal or a browser acts on, or does not show, instead of printing it.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MAX_MARKS = 4
_SECRETS = ("api_key", "apikey", "password", "secret", "hf_token", "auth_token", "access_token", "credential")


def safe(text: str, limit: int | None = None) -> str:
    """Return `text` on one line with every character spelled out that could act on or hide in a display.

    `limit` cuts to that many shown characters, the last one being "…".
    """
    out: list[str] = []
    marks = 0
    shown = 0
    for char in text:
        category = unicodedata.category(char)
        # A tower of combining marks would climb over the lines above it.
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if char in _SHORT:
            piece = _SHORT[char]
        elif category in _HIDDEN or marks > _MAX_MARKS:
            piece = _escape(ord(char))
        else:
            piece = char
        out.append(piece)
        shown += len(piece)
        if limit is not None and shown > limit:
            return _cut(out, limit)
    return "".join(out)


def _cut(pieces: list[str], limit: int) -> str:
    """Return whole pieces (half an escape would read as something else) and "…", `limit` long at most."""
    shown = sum(len(piece) for piece in pieces)
    while pieces and shown > limit - 1:
        shown -= len(pieces.pop())
    return "".join(pieces) + "…"


def _escape(code: int) -> str:
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def seconds(value: float) -> str:
    """Return a duration as people say it: `8 s`, `2 min 05 s`, `1 h 04 min`."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def without_keys(command: str) -> str:
    """Return a command line with the values of keys and passwords left out."""
    return masked_command(command)


def without_secrets(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return a server's flags with the values of keys and passwords left out; a report travels."""
    kept: dict[str, Any] = {}
    for key, value in flags.items():
        if value and any(word in key.lower() for word in _SECRETS):
            kept[key] = MASK
        else:
            kept[key] = without_keys(value) if isinstance(value, str) else value
    return kept
