"""Deployments as data: which model with which flags on how many GPUs, read from TOML.

Place in the flow: before the server; the CLI and the GPU tests name a deployment and get a server. Imports
`harness.paths` and the stage's own modules; the models that the harness builds only inside a function.

A file holds tables `[NAME]` with these keys: `model` (a folder, a hub name, or `builtin:demo` and
`builtin:tiny`, which the harness builds), `gpus` (0: runs on a CPU), `flags` (a list, passed to SGLang as
it is), `reasoning_parser`, `tool_parser`, `scripted` (true adds what scripted generation needs), `env` (a
table), `timeout_s`, `note`. All but `model` and `gpus` may be left out.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.paths import fixtures_dir
from harness.server.failures import CannotBoot
from harness.server.launch import SGLangServer
from harness.server.progress import BootProgress

SCRIPTED_FLAGS: tuple[str, ...] = ("--enable-custom-logit-processor", "--disable-overlap-schedule")
"""What scripted generation needs: processors allowed, and no schedule that runs one token ahead of them.

Only for servers on loopback: a custom logit processor is pickled code that the server runs.
"""

_BUILTIN = "builtin:"


@dataclass(frozen=True, slots=True)
class Deployment:
    """One way to serve one model. `flags` are those beside the parsers' and the scripted ones."""

    name: str
    model: str
    gpus: int
    flags: tuple[str, ...] = ()
    reasoning_parser: str | None = None
    tool_parser: str | None = None
    scripted: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    note: str = ""

    def all_flags(self) -> tuple[str, ...]:
        """Everything that SGLang is given beside model, host and port."""
        flags = list(self.flags)
        if self.reasoning_parser:
            flags += ["--reasoning-parser", self.reasoning_parser]
        if self.tool_parser:
            flags += ["--tool-call-parser", self.tool_parser]
        return (*flags, *(SCRIPTED_FLAGS if self.scripted else ()))

    def model_path(self) -> str:
        """The folder or hub name to serve; builds a built-in model into the cache if it is not there yet."""
        if not self.model.startswith(_BUILTIN):
            return os.path.expanduser(self.model)  # noqa: PTH111  # a hub name is no path
        from harness.models import demo_model, tiny_model

        builders = {"demo": demo_model, "tiny": tiny_model}
        return str(builders[self.model.removeprefix(_BUILTIN)]())

    def server(
        self,
        *,
        extra_flags: tuple[str, ...] = (),
        port: int | None = None,
        log_path: Path | None = None,
        on_progress: Callable[[BootProgress], None] | None = None,
    ) -> SGLangServer:
        """A server of this deployment, not started yet."""
        return SGLangServer(
            self.model_path(),
            flags=(*self.all_flags(), *extra_flags),
            port=port,
            log_path=log_path,
            device="gpu" if self.gpus else "cpu",
            timeout=self.timeout_s,
            on_progress=on_progress,
            env=self.env,
        )


def deployments_file() -> Path:
    """The file of the deployments that come with shardgate."""
    return fixtures_dir() / "deployments.toml"


def load_deployments(file: str | os.PathLike[str] | None = None) -> dict[str, Deployment]:
    """All deployments of a file (default: shardgate's own), by name. Raises `CannotBoot` saying why not."""
    path = Path(file) if file is not None else deployments_file()
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CannotBoot(
            "the deployments can't be read",
            where=str(path),
            why=str(error),
            remedy="give a TOML file with a table per deployment; fixtures/deployments.toml shows the form",
        ) from error
    return {name: _deployment(name, table, path) for name, table in tables.items()}


def load_deployment(name: str, file: str | os.PathLike[str] | None = None) -> Deployment:
    """One deployment by name. Raises `CannotBoot` when the file is unreadable or has none of that name."""
    known = load_deployments(file)
    if name not in known:
        raise CannotBoot(
            f"there is no deployment {name!r}",
            where=str(file or deployments_file()),
            why=f"it has: {', '.join(known)}",
            remedy="give one of these names, or a file of your own that has it",
        )
    return known[name]


def _is_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (lambda v: isinstance(v, str) and v != "", "a text"),
    "gpus": (lambda v: type(v) is int and v >= 0, "a number of GPUs, 0 for a CPU"),
    "flags": (_is_strings, "a list of texts, each flag and each value its own"),
    "reasoning_parser": (lambda v: isinstance(v, str), "a text"),
    "tool_parser": (lambda v: isinstance(v, str), "a text"),
    "scripted": (lambda v: isinstance(v, bool), "true or false"),
    "env": (
        lambda v: isinstance(v, dict) and all(isinstance(x, str) for x in v.values()),
        "a table of texts",
    ),
    "timeout_s": (lambda v: type(v) in (int, float) and v > 0, "a number of seconds"),
    "note": (lambda v: isinstance(v, str), "a text"),
}


def _deployment(name: str, table: Any, path: Path) -> Deployment:
    def wrong(why: str) -> CannotBoot:
        return CannotBoot(
            f"deployment {name!r} is not well formed",
            where=str(path),
            why=why,
            remedy="correct the file; the keys are described in harness/server/deployments.py",
        )

    if not isinstance(table, dict):
        raise wrong("it is no table")
    for key in ("model", "gpus"):
        if key not in table:
            raise wrong(f"{key!r} is missing")
    for key, value in table.items():
        if key not in _CHECKS:
            raise wrong(f"{key!r} is no known key; known are {', '.join(_CHECKS)}")
        right, form = _CHECKS[key]
        if not right(value):
            raise wrong(f"{key!r} must be {form}, not {value!r}")
    if table["model"].startswith(_BUILTIN) and table["model"] not in ("builtin:demo", "builtin:tiny"):
        raise wrong(f"there is no built-in model {table['model']!r}; there are builtin:demo and builtin:tiny")
    return Deployment(name=name, **{**table, "flags": tuple(table.get("flags", ()))})
