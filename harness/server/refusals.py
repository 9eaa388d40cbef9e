"""What is refused before anything is started: no SGLang, a wrong path, flags that are ours, a taken port.

Place in the flow: asked by the launcher first of all. Imports the stage's own modules only.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.server.failures import CannotBoot
from harness.server.flags import asked
from harness.server.hardware import port_is_free

OWN = {"model_path": "model_path", "host": "host=", "port": "port="}
"""Settings that the launcher gives SGLang itself, and the argument by which a caller sets them."""


def sglang_version() -> str:
    """The version of the installed SGLang. Raises `CannotBoot` when there is none."""
    if importlib.util.find_spec("sglang") is None:
        raise CannotBoot(
            "SGLang is not installed",
            where=sys.prefix,
            why="booting a server needs it; judging a running one and auditing shards don't",
            remedy="install shardgate[cpu] or, on a GPU box, shardgate[gpu]",
        )
    return importlib.metadata.version("sglang")


def refuse_own_flags(flags: Sequence[str]) -> None:
    """Raise `CannotBoot` for a flag that the launcher sets itself."""
    for name in OWN.keys() & asked(flags).keys():
        raise CannotBoot(
            f"--{name.replace('_', '-')} among the flags",
            why="the harness sets it itself, since it must know where the server answers",
            remedy=f"give it as the argument {OWN[name]}",
        )


def looks_local(model_path: str) -> bool:
    """Whether a model is meant as a folder or file of this machine, not as a hub name."""
    given = Path(model_path).expanduser()
    return given.exists() or model_path.startswith((os.sep, ".", "~")) or model_path == ""


def refuse_wrong_path(model_path: str) -> None:
    """Raise `CannotBoot` for a local model path at which there is no model."""
    path = Path(model_path).expanduser()
    if not looks_local(model_path) or path.is_file():
        return
    if any((path / name).is_file() for name in ("config.json", "params.json")):
        return
    there = "it holds no config.json" if path.is_dir() else "there is no such file or folder"
    raise CannotBoot(
        "the model path is wrong",
        where=model_path,
        why=there,
        remedy="give a folder with config.json, tokenizer and weights, or a hub name (org/model)",
    )


def refuse_taken_port(host: str, port: int) -> None:
    """Raise `CannotBoot` when nothing could listen there now."""
    if not port_is_free(host, port):
        raise CannotBoot(
            f"port {port} can't be used",
            where=f"{host}:{port}",
            why="another process listens there, or the address is not this machine's",
            remedy="choose another port, or leave the port out and a free one is found",
        )
