"""The numbers and allowed values that the rules use: `thresholds.toml`, and a user's file laid over it.

Place in the flow: under the rules; the contract's fingerprint covers them. Imports `contracts.errors` and
`contracts.records` only. Each value and what it is for stands in the TOML file, and there alone.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.records import Profile, Severity

DEFAULTS = Path(__file__).with_name("thresholds.toml")
OFF = "off"


class ThresholdsError(ShardgateError):
    """A file of thresholds can't be used; the error says which key and why."""


@lru_cache(maxsize=1)
def _defaults() -> Mapping[str, Any]:
    return tomllib.loads(DEFAULTS.read_text(encoding="utf-8"))


def _value(name: str, low: float | None = None, high: float | None = None) -> Any:
    """Return a field whose default the TOML file holds; `low` and `high` bound it, both included."""

    def default() -> Any:
        found = _defaults()[name]
        return tuple(found) if isinstance(found, list) else dict(found) if isinstance(found, dict) else found

    return field(default_factory=default, metadata={"low": low, "high": high})


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The numbers and allowed values that the rules use; `thresholds.toml` says what each is for.

    `severities` overrides rules' severities by profile (None: off). `source` is the user's file, "" without.
    """

    min_loss_tokens: int = _value("min_loss_tokens", 0)
    max_length: int = _value("max_length", 0)
    context_length: int = _value("context_length", 0)
    min_adjacent_loss_tokens: int = _value("min_adjacent_loss_tokens", 0)
    loop_tokens: int = _value("loop_tokens", 8)
    same_response_prompts: int = _value("same_response_prompts", 0)
    prompt_shape_rows: int = _value("prompt_shape_rows", 2)
    clean_splits: int = _value("clean_splits", 0)
    min_rows: int = _value("min_rows", 0)
    created_after: str = _value("created_after")
    days_ahead: int = _value("days_ahead", 0, 36500)
    required_sampling: tuple[str, ...] = _value("required_sampling")
    finish_reasons: tuple[str, ...] = _value("finish_reasons")
    bos_tokens: tuple[str, ...] = _value("bos_tokens")
    pad_tokens: tuple[str, ...] = _value("pad_tokens")
    media_tokens: tuple[str, ...] = _value("media_tokens")
    draft_coverage: float = _value("draft_coverage", 0, 1)
    rate_min_rows: int = _value("rate_min_rows", 1)
    drift_min_change: float = _value("drift_min_change", 0, 1)
    drift_min_z: float = _value("drift_min_z", 0)
    caps: Mapping[str, float] = _value("caps", 0, 1)
    severities: Mapping[Profile, Mapping[str, Severity | None]] = field(default_factory=dict)
    source: str = field(default="", compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return every value by name as JSON has it, without `source`: what the fingerprint covers."""
        out = {item.name: getattr(self, item.name) for item in fields(self) if item.compare}
        overrides = {str(p): {r: str(s or OFF) for r, s in own.items()} for p, own in self.severities.items()}
        return {**out, "caps": dict(self.caps), "severities": {p: own for p, own in overrides.items() if own}}


def load_thresholds(path: Path | str | None = None) -> Thresholds:
    """Return the thresholds of a TOML file, laid over the defaults; None gives the defaults.

    That `[caps]` and `[severity.*]` name rules, and weaken no fidelity rule, is checked by the audit, which
    knows the rules (`contracts.rules.severities.check_severities`).

    Raises:
        ThresholdsError: the file is missing or no TOML, a key is unknown, a value has the wrong type or is
            out of range.
    """
    if path is None:
        return Thresholds()
    path = Path(path)
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ThresholdsError(
            "the thresholds can't be read",
            where=str(path),
            why=error.strerror or str(error),
            remedy=f"pass a TOML file; {DEFAULTS.name} in the package shows every key",
        ) from error
    except ValueError as error:
        raise ThresholdsError(
            "the thresholds are no TOML",
            where=str(path),
            why=str(error),
            remedy="mend the line that is named",
        ) from error
    severities = _severities(given.pop("severity", {}), path)
    known = {item.name: item for item in fields(Thresholds) if item.metadata}
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            raise _refused(
                path, key, "there is no such key", f"the keys are {', '.join([*known, 'severity'])}"
            )
        default, bounds = _defaults()[key], known[key].metadata
        if key == "caps":
            values[key] = {**default, **_caps(value, path)}
        else:
            values[key] = _checked(value, default, bounds["low"], bounds["high"], path, key)
    return Thresholds(**values, severities=severities, source=str(path))


def _refused(path: Path, key: str, why: str, remedy: str) -> ThresholdsError:
    return ThresholdsError(f"the threshold `{key}` can't be used", where=str(path), why=why, remedy=remedy)


def _checked(value: Any, default: Any, low: float | None, high: float | None, path: Path, key: str) -> Any:
    """Return a value of the default's type and within its bounds; a day is checked as one."""
    if isinstance(default, list):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise _refused(path, key, f"it is {value!r}, not a list of texts", f"write it as {default!r} is")
        return tuple(value)
    if isinstance(default, str):
        text = value.isoformat() if type(value) is date else value
        try:
            return date.fromisoformat(text).isoformat()
        except (TypeError, ValueError):
            raise _refused(path, key, f"{value!r} is no day", f"write it as {default!r} is") from None
    wanted = (int,) if isinstance(default, int) else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        kind = "a whole number" if wanted == (int,) else "a number"
        raise _refused(path, key, f"it is {value!r}, not {kind}", f"write it as {default!r} is")
    if not ((low is None or value >= low) and (high is None or value <= high)):
        bounds = f"at least {low:g}" if high is None else f"from {low:g} to {high:g}"
        raise _refused(path, key, f"{value!r} is out of range", f"the value must be {bounds}")
    return value if wanted == (int,) else float(value)


def _caps(given: Any, path: Path) -> dict[str, float]:
    if not isinstance(given, dict):
        raise _refused(path, "caps", "it is no table", "write [caps], and below it rule or verdict = share")
    return {key: _checked(value, 1.0, 0, 1, path, f"caps.{key}") for key, value in given.items()}


def _severities(given: Any, path: Path) -> dict[Profile, dict[str, Severity | None]]:
    words: dict[str, Severity | None] = {**{str(s): s for s in Severity}, OFF: None}
    out: dict[Profile, dict[str, Severity | None]] = {}
    tables = given if isinstance(given, dict) else {"": given}
    for profile, rules in tables.items():
        if profile not in set(Profile) or not isinstance(rules, dict):
            remedy = f"write [severity.PROFILE], PROFILE one of {', '.join(Profile)}"
            raise _refused(path, f"severity.{profile}", "it is no profile's table", remedy)
        for rule, word in rules.items():
            if not isinstance(word, str) or word not in words:
                why, remedy = f"{word!r} is no severity", f"the severities are {', '.join(words)}"
                raise _refused(path, f"severity.{profile}.{rule}", why, remedy)
        out[Profile(profile)] = {rule: words[word] for rule, word in rules.items()}
    return {profile: own for profile, own in out.items() if own}
