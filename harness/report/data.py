"""Results as plain JSON values, and JSON that is safe on any terminal.

Place in the flow: `--json` of every command. Imports the standard library and the text helpers only.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import date
from enum import Enum
from pathlib import PurePath
from typing import Any

from harness.report.text import without_secrets


def plain(value: Any) -> Any:
    """Return `value` (records, enums, mappings, sequences, paths) as what `json.dumps` takes.

    Raises:
        TypeError: a value that has no JSON form; nothing is turned into text silently.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        if isinstance(pairs.get("flags"), Mapping):
            pairs["flags"] = without_secrets(pairs["flags"])
        return {key: plain(item) for key, item in pairs.items()}
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [plain(item) for item in items]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"no JSON form for {type(value).__name__}")


def dumps(value: Any) -> str:
    """Return indented JSON in ASCII: what a model generated can't act on the reader's terminal."""
    return json.dumps(plain(value), indent=2, ensure_ascii=True, sort_keys=False)
