"""Deployments as data: which model with which flags on how many GPUs, read from TOML.

Place in the flow: before the server; the CLI and the GPU tests name a deployment and get a server. Imports
`harness.paths` and the stage's own modules; the models that the harness builds only inside a function.

A file holds tables `[NAME]` of three kinds, told apart by their keys:

- a server to boot: `model` (a folder, a hub name, or `builtin:demo` and `builtin:tiny`, which the harness
  builds) and `gpus` (0: runs on a CPU); may be given: `flags` (a list, passed to SGLang as it is),
  `reasoning_parser`, `tool_parser`, `trust_remote_code`, `scripted` (true adds what scripted generation
  needs), `env` (a table), `timeout_s`;
- a server that runs: `url`;
- a group: `servers` (names of the same file, one may stand there more than once) behind one router; may be
  given: `router_flags`, `timeout_s`.

Each may have a `note`. `{NAME}` and `{NAME:default}` in a model, URL, flag or variable stand for an
environment variable of whoever boots (capital letters, digits and `_`): a node's rank, the head's address.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.paths import fixtures_dir
from harness.server.attach import AttachedServer, attach
from harness.server.failures import CannotBoot
from harness.server.http import LOOPBACK
from harness.server.launch import SGLangServer
from harness.server.progress import BootProgress

SCRIPTED_FLAGS: tuple[str, ...] = ("--enable-custom-logit-processor", "--disable-overlap-schedule")
"""What scripted generation needs: processors allowed, and no schedule that runs one token ahead of them.

Only for servers on loopback: a custom logit processor is pickled code that the server runs.
"""

TRUST_FLAG = "--trust-remote-code"

_BUILTIN = "builtin:"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PLACE = re.compile(r"\{(?P<name>[A-Z][A-Z0-9_]*)(?::(?P<default>[^{}]*))?\}")


def fill(text: str, environment: Mapping[str, str] | None = None, *, where: str = "") -> str:
    """Return `text` with each `{NAME}` and `{NAME:default}` replaced from the environment.

    Raises `CannotBoot` naming a variable that is not set and has no default.
    """
    known = os.environ if environment is None else environment

    def value(found: re.Match[str]) -> str:
        given = known.get(found["name"]) or found["default"]
        if given is None:
            raise CannotBoot(
                f"the environment variable {found['name']} is not set",
                where=where or text,
                why=f"{text!r} takes its value from it",
                remedy=f"set it, for example: export {found['name']}=…",
            )
        return given

    return _PLACE.sub(value, text)


@dataclass(frozen=True, slots=True)
class Deployment:
    """One way to serve one model. `flags` are those beside the parsers', the scripted and the trusting ones.

    Of a group (`servers` is not empty), `gpus` is the sum of its members' and `model` the first member's; of
    a running server (`url` is given), both are empty.
    """

    name: str
    model: str = ""
    gpus: int = 0
    flags: tuple[str, ...] = ()
    reasoning_parser: str | None = None
    tool_parser: str | None = None
    scripted: bool = False
    trust_remote_code: bool = False
    url: str | None = None
    servers: tuple[str, ...] = ()
    router_flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    note: str = ""
    file: Path | None = None
    """The file that it stands in: a group's members are looked up there."""

    def all_flags(self) -> tuple[str, ...]:
        """Everything that SGLang is given beside model, host and port, placeholders as they stand."""
        flags = [*self.flags, *([TRUST_FLAG] if self.trust_remote_code else [])]
        if self.reasoning_parser:
            flags += ["--reasoning-parser", self.reasoning_parser]
        if self.tool_parser:
            flags += ["--tool-call-parser", self.tool_parser]
        return (*flags, *(SCRIPTED_FLAGS if self.scripted else ()))

    def filled(self, environment: Mapping[str, str] | None = None) -> Deployment:
        """The same with every placeholder filled. Raises `CannotBoot` naming a variable that is not set."""

        def value(text: str) -> str:
            return fill(text, environment, where=f"deployment {self.name!r}")

        return replace(
            self,
            model=value(self.model),
            url=None if self.url is None else value(self.url),
            flags=tuple(map(value, self.flags)),
            router_flags=tuple(map(value, self.router_flags)),
            env={name: value(text) for name, text in self.env.items()},
        )

    def model_path(self) -> str:
        """The folder or hub name to serve; builds a built-in model into the cache if it is not there yet."""
        model = fill(self.model, where=f"deployment {self.name!r}")
        if not model.startswith(_BUILTIN):
            return os.path.expanduser(model)  # noqa: PTH111  # a hub name is no path
        from harness.models import demo_model, tiny_model

        builders = {"demo": demo_model, "tiny": tiny_model}
        if model.removeprefix(_BUILTIN) not in builders:
            raise CannotBoot(
                f"there is no built-in model {model!r}",
                where=f"deployment {self.name!r}",
                why="there are builtin:demo and builtin:tiny",
                remedy="give one of these, a model's folder, or a hub name",
            )
        return str(builders[model.removeprefix(_BUILTIN)]())

    def members(self) -> tuple[Deployment, ...]:
        """A group's members in order, placeholders as they stand; none of any other deployment.

        Members on GPUs get theirs by turns, the first one the first ones (`CUDA_VISIBLE_DEVICES`), unless
        their `env` says otherwise.
        """
        known = load_deployments(self.file) if self.servers else {}
        found = []
        visible = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
        taken = 0
        for name in self.servers:
            one = known[name]
            if one.gpus and "CUDA_VISIBLE_DEVICES" not in one.env:
                own = [str(number) for number in range(taken, taken + one.gpus)]
                own = visible[taken : taken + one.gpus] or own
                one = replace(one, env={**one.env, "CUDA_VISIBLE_DEVICES": ",".join(own)})
                taken += one.gpus
            found.append(one)
        return tuple(found)

    def server(
        self,
        *,
        extra_flags: tuple[str, ...] = (),
        host: str = "127.0.0.1",
        port: int | None = None,
        log_path: Path | None = None,
        on_progress: Callable[[BootProgress], None] | None = None,
    ) -> SGLangServer:
        """A server of this deployment, not started yet.

        One that other machines can reach is never scripted: a custom logit processor is code that it would
        run for whoever sends it.

        Raises `CannotBoot` where there is no one server to boot (a URL, a group) or a placeholder is not set.
        """
        if self.url is not None or self.servers:
            raise CannotBoot(
                f"deployment {self.name!r} is no single server to boot",
                where=str(self.file or ""),
                why=f"it names a running server: {self.url}" if self.url else "it is a group of servers",
                remedy="attach to it" if self.url else "boot it as a group (harness.server.group)",
            )
        ready = replace(self.filled(), scripted=self.scripted and host in LOOPBACK)
        return SGLangServer(
            ready.model_path(),
            flags=(*ready.all_flags(), *extra_flags),
            host=host,
            port=port,
            log_path=log_path,
            device="gpu" if self.gpus else "cpu",
            timeout=self.timeout_s,
            on_progress=on_progress,
            env=ready.env,
        )

    def attach(self, *, api_key: str | None = None, wait: float = 0.0) -> AttachedServer:
        """The running server that `url` names. Raises `CannotBoot`, `Unreachable` or `NotReady`."""
        if self.url is None:
            raise CannotBoot(
                f"deployment {self.name!r} names no running server",
                where=str(self.file or ""),
                why="it has no 'url'",
                remedy="boot it instead",
            )
        return attach(self.filled().url or "", api_key=api_key, wait=wait)


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
            remedy="give a TOML file with a table per deployment; docs/deployments.md shows the form",
        ) from error
    found = {name: _deployment(name, table, path) for name, table in tables.items()}
    return {name: _with_members(one, found) if one.servers else one for name, one in found.items()}


def load_deployment(name: str, file: str | os.PathLike[str] | None = None) -> Deployment:
    """One deployment by name. Raises `CannotBoot` when the file is unreadable or has none of that name."""
    known = load_deployments(file)
    if name not in known:
        raise CannotBoot(
            f"there is no deployment {name!r}",
            where=str(file or deployments_file()),
            why=_near(name, known),
            remedy="correct the name, or give a file of your own that has it (--file)",
        )
    return known[name]


def _near(name: str, known: Mapping[str, Deployment]) -> str:
    """What the user may have meant; all names where they are few."""
    if not known:
        return "the file is empty"
    if near := difflib.get_close_matches(name, known, n=3, cutoff=0.5):
        return f"did you mean {' or '.join(near)}?"
    if len(known) <= 8:
        return f"it has: {', '.join(known)}"
    return f"it has {len(known)} others, such as {', '.join(list(known)[:3])}"


def _is_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_Check = tuple[Callable[[Any], bool], str]
_TEXT: _Check = (lambda v: isinstance(v, str) and v != "", "a text")
_SWITCH: _Check = (lambda v: isinstance(v, bool), "true or false")
_STRINGS: _Check = (_is_strings, "a list of texts, each flag and each value its own")

_CHECKS: dict[str, _Check] = {
    "model": _TEXT,
    "gpus": (lambda v: type(v) is int and v >= 0, "a number of GPUs, 0 for a CPU"),
    "flags": _STRINGS,
    "reasoning_parser": _TEXT,
    "tool_parser": _TEXT,
    "scripted": _SWITCH,
    "trust_remote_code": _SWITCH,
    "url": _TEXT,
    "servers": (lambda v: _is_strings(v) and v != [], "a list of names, one at least"),
    "router_flags": _STRINGS,
    "env": (
        lambda v: isinstance(v, dict) and all(map(_VARIABLE.fullmatch, v)) and _is_strings([*v.values()]),
        "a table of texts, each name one that a shell takes (letters, digits and _)",
    ),
    "timeout_s": (lambda v: type(v) in (int, float) and v > 0, "a number of seconds"),
    "note": (lambda v: isinstance(v, str), "a text"),
}

_ONLY: dict[str, tuple[str, ...]] = {
    "url": ("url", "note"),
    "servers": ("servers", "router_flags", "timeout_s", "note"),
}
"""The keys that a table with this key may have."""

_OF_GROUPS = ("router_flags",)


def _wrong(name: str, path: Path, why: str) -> CannotBoot:
    return CannotBoot(
        f"deployment {name!r} is not well formed",
        where=str(path),
        why=why,
        remedy="correct the file; docs/deployments.md describes the keys",
    )


def _deployment(name: str, table: Any, path: Path) -> Deployment:
    if not isinstance(table, dict):
        raise _wrong(name, path, "it is no table")
    for key, value in table.items():
        if key not in _CHECKS:
            raise _wrong(name, path, f"{key!r} is no known key; known are {', '.join(_CHECKS)}")
        right, form = _CHECKS[key]
        if not right(value):
            raise _wrong(name, path, f"{key!r} must be {form}, not {value!r}")
    for kind, allowed in _ONLY.items():
        if kind in table and (others := [key for key in table if key not in allowed]):
            raise _wrong(name, path, f"{kind!r} excludes {', '.join(map(repr, others))}")
    if not _ONLY.keys() & table.keys():
        _check_server(name, table, path)
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
    }
    return Deployment(name=name, file=path, **given)


def _check_server(name: str, table: Mapping[str, Any], path: Path) -> None:
    for key in ("model", "gpus"):
        if key not in table:
            raise _wrong(name, path, f"{key!r} is missing (neither 'url' nor 'servers' is given)")
    for key in _OF_GROUPS:
        if key in table:
            raise _wrong(name, path, f"{key!r} belongs to a group: 'servers' is missing")
    if table["model"].startswith(_BUILTIN) and table["model"] not in ("builtin:demo", "builtin:tiny"):
        raise _wrong(
            name,
            path,
            f"there is no built-in model {table['model']!r}; there are builtin:demo and builtin:tiny",
        )
    if TRUST_FLAG in table.get("flags", ()):
        raise _wrong(name, path, f"{TRUST_FLAG} among the flags: say trust_remote_code = true")


def _with_members(group: Deployment, known: Mapping[str, Deployment]) -> Deployment:
    path = group.file or Path()
    for member in group.servers:
        if member not in known:
            raise _wrong(group.name, path, f"'servers' names {member!r}, which is not in this file")
        if known[member].servers:
            raise _wrong(group.name, path, f"'servers' names {member!r}, which is a group itself")
    members: Sequence[Deployment] = [known[member] for member in group.servers]
    model = next((one.model for one in members if one.model), "")
    return replace(group, gpus=sum(one.gpus for one in members), model=model)
