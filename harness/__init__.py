"""shardgate's harness: boots SGLang, asks in three modes, rebuilds, judges, reports.

Place in the flow: above `contracts`, which it may import; nothing heavy is imported until it is used.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {"judge": "harness.offline", "SGLangServer": "harness.server"}

__all__ = ["SGLangServer", "judge"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'harness' has no attribute {name!r}")
