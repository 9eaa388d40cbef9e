"""A user's own rules: a Python file that declares them, loaded once, taken out again when it fails.

Place in the flow: rules. Imports the registry and errors. The file is the user's own code and runs as such:
nothing of it is taken from a shard.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.rules import registry

EXAMPLE = "docs/adding-a-rule.md shows one"


class RulesError(ShardgateError):
    """A file of rules can't be used."""


@dataclass(frozen=True, slots=True)
class OwnRules:
    """A file of rules that was loaded: where it lies, its SHA-256 (hex), and the rules that it declared."""

    path: str
    sha256: str
    rules: tuple[str, ...]


_CHECKS: dict[str, set[Any]] = {}
_LOADED: dict[str, OwnRules] = {}
"""By digest: the same file, given twice or by a worker's parent, is loaded once."""


def load_rules(path: Path | str) -> OwnRules:
    """Run a Python file that declares rules (`contracts.rules.registry`), and return what it declared.

    The contract's fingerprint covers the file's digest. A process that checks shards for another one loads
    the same file again (`own_rules` lists them).

    Raises:
        RulesError: the file is missing, fails, declares no rule, or one whose id is taken.
    """
    path = Path(path)
    try:
        block = path.read_bytes()
    except OSError as error:
        raise RulesError(
            "the rules can't be read",
            where=str(path),
            why=error.strerror or str(error),
            remedy=f"pass a Python file; {EXAMPLE}",
        ) from error
    digest = hashlib.sha256(block).hexdigest()
    if digest in _LOADED:
        return _LOADED[digest]
    before, checks = set(registry.RULES), _checks()
    name = f"shardgate_rules_{digest[:16]}"
    try:
        with _undone_on_failure():
            spec = importlib.util.spec_from_loader(name, loader=None, origin=str(path))
            if spec is None:
                raise ImportError(f"{path} is no module")
            module = importlib.util.module_from_spec(spec)
            module.__file__ = str(path)
            sys.modules[name] = module
            # Standard output may be a report's, or the line to the process that asked.
            with redirect_stdout(sys.stderr):
                exec(compile(block, str(path), "exec"), module.__dict__)
            fresh = tuple(rule for rule in registry.RULES if rule not in before)
            if not fresh:
                raise RulesError(
                    "the file declares no rule", where=str(path), remedy=f"declare one; {EXAMPLE}"
                )
    except ShardgateError as error:
        raise RulesError(
            error.what, where=_place(error, path), why=error.why, remedy=error.remedy or EXAMPLE
        ) from error
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise RulesError(
            "the file of rules fails",
            where=_place(error, path),
            why=f"{type(error).__name__}: {error}",
            remedy=f"mend it; {EXAMPLE}",
        ) from error
    _CHECKS[digest] = _checks() - checks
    _LOADED[digest] = OwnRules(str(path.resolve()), digest, fresh)
    return _LOADED[digest]


@contextmanager
def used(rule: str) -> Iterator[None]:
    """Run a user's check: what it prints goes to standard error, what it raises names the rule.

    Raises:
        RulesError: the check failed.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except ShardgateError:
        raise
    except (Exception, SystemExit) as error:
        files = [own.path for own in _LOADED.values() if rule in own.rules]
        raise RulesError(
            f"the rule `{rule}` fails",
            where=files[0] if files else "a rule that was declared from Python",
            why=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            remedy=f"a bulk rule returns one Boolean polars expression over the shard's columns; {EXAMPLE}",
        ) from error


def own_rules() -> tuple[OwnRules, ...]:
    """Return the files of rules that this process loaded, in order."""
    return tuple(_LOADED.values())


def unload_rules(own: OwnRules) -> None:
    """Take a file's rules out of the registry again."""
    if own.sha256 in _LOADED:
        del _LOADED[own.sha256]
        sys.modules.pop(f"shardgate_rules_{own.sha256[:16]}", None)
        _take_out(set(own.rules), _CHECKS.pop(own.sha256))


def _checks() -> set[Any]:
    return {*registry.ROW_CHECKS, *registry.SET_CHECKS}


def _take_out(rules: set[str], checks: set[Any]) -> None:
    for rule in rules:
        registry.RULES.pop(rule, None)
        registry.BULK.pop(rule, None)
    for check in checks:
        for known in (registry.ROW_CHECKS, registry.SET_CHECKS):
            if check in known:
                known.remove(check)
        registry.SUSPECTS.pop(check, None)
        registry.DISTINCT.pop(check, None)


@contextmanager
def _undone_on_failure() -> Iterator[None]:
    rules, checks = set(registry.RULES), _checks()
    try:
        yield
    except BaseException:
        _take_out(set(registry.RULES) - rules, _checks() - checks)
        raise


def _place(error: BaseException, path: Path) -> str:
    """Return the file, and its line where the failure came from it."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f"{path}, line {error.lineno}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    return f"{path}, line {lines[-1]}" if lines else str(path)
