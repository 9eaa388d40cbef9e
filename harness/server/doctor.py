"""The doctor: what can be found wrong before an hour of loading.

Place in the flow: beside the launcher; `shardgate doctor` prints what it finds. Imports the stage's own
modules only. Nothing is booted and nothing is written (but a built-in model at its first use); of the
network, at most the hub is asked for one file's head.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.server.checkpoint import checkpoint_bytes, local_folder
from harness.server.checkup import Check, Need, Outcome, end_import, packages, start_import
from harness.server.checkup_machine import accelerators, limits, memory, storage
from harness.server.checkup_model import model_checks
from harness.server.cpu import cpu_environment
from harness.server.deployments import Deployment
from harness.server.failures import ServerError
from harness.server.flags import asked, text_of
from harness.server.hardware import needs_cpu_platform
from harness.server.preflight import BROKEN_TEMPLATE, doubts
from harness.server.refusals import OWN, ranks_here, wrong_counts

IMPORT_SECONDS = 90.0

_MACHINE = {"gpus": accelerators, "host-memory": memory, "disk": storage, "limits": limits}

_OUTCOMES: dict[str, Outcome] = {"error": "error", "warning": "warning", "notice": "ok"}


def examine(
    model_path: str | None = None,
    flags: Sequence[str] = (),
    *,
    device: str = "auto",
    port: int | None = None,
    log_folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    quick: bool = False,
) -> tuple[Check, ...]:
    """All checks for booting that model with these flags here; of the machine alone where no model is given.

    `quick` leaves out the import of SGLang, which takes some 10 s in a process of its own.
    """
    on_cpu = needs_cpu_platform() if device == "auto" else device == "cpu"
    environment = {**os.environ, **(env or {})}
    wrong = list(_wrong_flags(flags))
    if on_cpu and not wrong:
        environment |= cpu_environment(flags, environment)
    process = None if quick else start_import(environment, () if wrong else flags)
    try:
        found = list(packages())
        need = Need(
            ranks=0 if on_cpu else ranks_here(flags),
            on_cpu=on_cpu,
            port=port,
            log_folder=log_folder,
            environment=environment,
        )
        if (fraction := _fraction(flags)) is not None:
            need = replace(need, mem_fraction=fraction)
        try:
            need = replace(
                need,
                weights=checkpoint_bytes(model_path) if model_path else 0,
                downloads=model_path is not None and local_folder(model_path) is None,
            )
        except OSError as error:
            found.append(_unreadable("model", error))
            model_path = None
        for name, part in _MACHINE.items():
            found += _guarded(name, part(need))
        if model_path is not None:
            found += _guarded("model", model_checks(model_path, flags, environment))
            found += _guarded("parsers", _doubts(model_path, flags))
        found += wrong
        if process is not None:
            found += end_import(process, IMPORT_SECONDS)
            process = None
        return tuple(found)
    finally:
        if process is not None:
            process.kill()
            process.communicate()


def examine_deployment(
    deployment: Deployment, *, port: int | None = None, quick: bool = False
) -> tuple[Check, ...]:
    """All checks for a deployment: of each member of a group, or of a running server by its URL."""
    if deployment.url is not None:
        return (*packages(), _running(deployment))
    if deployment.servers:
        found: list[Check] = []
        for number, member in enumerate(deployment.members()):
            for check in examine_deployment(member, quick=quick or number > 0):
                name = f"{member.name}: {check.name}"
                found.append(replace(check, name=name))
        return tuple(found)
    try:
        ready = deployment.filled()
        model = ready.model_path()
    except ServerError as error:
        broken = Check("deployment", "error", error.what, error.why, error.remedy)
        return (*examine(None, device=_device(deployment), port=port, quick=quick), broken)
    except ModuleNotFoundError as error:
        lacking = Check(
            "model",
            "error",
            f"{deployment.model} can't be built: {error.name} is not installed",
            "the built-in models are made on this machine at their first use",
            "install shardgate[cpu]",
        )
        return (*examine(None, device=_device(deployment), port=port, quick=quick), lacking)
    except OSError as error:
        broken = _unreadable("model", error)
        return (*examine(None, device=_device(deployment), port=port, quick=quick), broken)
    return examine(
        model, ready.all_flags(), device=_device(deployment), port=port, env=ready.env, quick=quick
    )


def _device(deployment: Deployment) -> str:
    return "gpu" if deployment.gpus else "cpu"


def _running(deployment: Deployment) -> Check:
    try:
        server = deployment.attach()
    except ServerError as error:
        return Check("server", "error", f"{error.what}: {error.where}", error.why, error.remedy)
    facts = server.facts
    return Check("server", "ok", f"{server.base_url} serves {facts.model} with SGLang {facts.engine_version}")


def _fraction(flags: Sequence[str]) -> float | None:
    try:
        value = float(text_of(flags, "mem_fraction_static") or "")
    except ValueError:
        return None
    return value if 0 < value <= 1 else None


def _guarded(name: str, checks: Iterator[Check]) -> Iterator[Check]:
    """The checks; a folder or file that this user may not read ends these, not the whole examination."""
    try:
        yield from checks
    except OSError as error:
        yield _unreadable(name, error)


def _unreadable(name: str, error: OSError) -> Check:
    what = f"{error.filename or 'a file'}: {error.strerror or error}"
    why = "the boot would read or write there too"
    return Check(
        name, "error", what, why, "give this user the right, or move it: HF_HOME, XDG_CACHE_HOME, TMPDIR"
    )


def _wrong_flags(flags: Sequence[str]) -> Iterator[Check]:
    for name in wrong_counts(flags):
        flag = f"--{name.replace('_', '-')}"
        what = f"{flag} {text_of(flags, name) or ''}".rstrip()
        yield Check("flags", "error", what, "it takes a whole number, 1 or more", f"correct {flag}")
    for name in OWN.keys() & asked(flags).keys():
        yield Check(
            "flags",
            "error",
            f"--{name.replace('_', '-')} among the flags",
            "the harness sets it itself",
            f"give it as the argument {OWN[name]}",
        )


def _doubts(model_path: str, flags: Sequence[str]) -> Iterator[Check]:
    """What the model's files say against the parsers, and what the reader should know of them."""
    if local_folder(model_path, text_of(flags, "revision")) is None:
        return
    for doubt in doubts(model_path, flags):
        if doubt.what == BROKEN_TEMPLATE:
            continue  # told by the check of the model's files
        yield Check("parsers", _OUTCOMES[doubt.severity], doubt.what, doubt.why, doubt.remedy)
