"""How long earlier boots of the same model took on this machine, phase by phase: what is left of this one.

Place in the flow: beside progress; the launcher notes every boot that became ready. Imports the standard
library, platformdirs, and `harness.server.flags`.

`boots.json` lies in the user's state folder. It is a help for people, nothing rests on it: a file that is
broken, or that can't be written, is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from harness.server.flags import asked

KEPT_BOOTS = 5
"""Boots kept of one model with one set of flags; what is told is their median."""
KEPT_KEYS = 50
_LONGEST = 7 * 24 * 3600.0
_NO_MATTER = ("random_seed", "log_level", "served_model_name", "api_key", "weight_version", "nccl_port")
"""Flags that change from boot to boot and take no time."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds that each phase takes as a rule; empty when this machine has not booted the model yet."""

    seconds: Mapping[str, float] = field(default_factory=dict)


def history_file() -> Path:
    """Where the boots are noted."""
    return platformdirs.user_state_path("shardgate") / "boots.json"


def boot_key(model_path: str, flags: Sequence[str], device: str) -> str:
    """What two boots must share to be compared: model, device, and the flags that cost time."""
    kept = {name: value for name, value in sorted(asked(flags).items()) if name not in _NO_MATTER}
    text = json.dumps([model_path, device, kept], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _load(path: Path) -> dict[str, list[dict[str, float]]]:
    """The noted boots by key, whatever is not well formed left out."""
    try:
        # A pipe in its place would be waited for.
        loaded: Any = json.loads(path.read_text("utf-8")) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return {}
    boots = loaded.get("boots") if isinstance(loaded, dict) else None
    if not isinstance(boots, dict):
        return {}
    return {key: kept for key, value in boots.items() if (kept := _sane(value))}


def _sane(value: object) -> list[dict[str, float]]:
    if not isinstance(value, list):
        return []
    return [
        {str(name): float(took) for name, took in boot.items()}
        for boot in value
        if isinstance(boot, dict)
        and boot
        and all(isinstance(took, int | float) and 0 <= took < _LONGEST for took in boot.values())
    ]


def earlier(key: str, path: Path | None = None) -> Durations:
    """The median of each phase over the noted boots of that key."""
    boots = _load(path or history_file()).get(key, [])
    names = {name for boot in boots for name in boot}
    return Durations({name: statistics.median(boot.get(name, 0.0) for boot in boots) for name in names})


def note(key: str, durations: Mapping[str, float], path: Path | None = None) -> None:
    """Note a boot that became ready. Never raises: a full disk must not fail a boot."""
    path = path or history_file()
    boots = _load(path)
    noted = [*boots.pop(key, []), {name: round(took, 2) for name, took in durations.items()}][-KEPT_BOOTS:]
    # The latest key last, so that the oldest is dropped first.
    boots[key] = noted
    kept = dict(list(boots.items())[-KEPT_KEYS:])
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix="boots-", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"version": 1, "boots": kept}, file)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
