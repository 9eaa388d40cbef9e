"""What is refused before anything is started: no SGLang, a wrong path, wrong flags, a taken port.

Place in the flow: asked by the launcher first of all. Imports the stage's own modules only.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.server.checkpoint import expanded
from harness.server.failures import CannotBoot
from harness.server.flags import asked, has, text_of
from harness.server.hardware import gpu_users, port_is_free, visible_gpus

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
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        raise CannotBoot(
            "SGLang is there, but not installed",
            where=sys.prefix,
            why="its folder can be imported and its package metadata is missing",
            remedy="install it anew in an environment of its own: shardgate[cpu] or shardgate[gpu]",
        ) from None


def refuse_own_flags(flags: Sequence[str]) -> None:
    """Raise `CannotBoot` for a flag that the launcher sets itself."""
    for name in OWN.keys() & asked(flags).keys():
        raise CannotBoot(
            f"--{name.replace('_', '-')} among the flags",
            why="the harness sets it itself, since it must know where the server answers",
            remedy=f"give it as the argument {OWN[name]}",
        )


COUNTS = ("tp_size", "pp_size", "dp_size", "ep_size", "nnodes", "max_total_tokens", "max_running_requests")
"""Flags that take a whole number, 1 or more."""


def wrong_counts(flags: Sequence[str]) -> tuple[str, ...]:
    """The names of the flags that should have a whole number, 1 or more, and have something else."""
    given = asked(flags)
    return tuple(name for name in COUNTS if name in given and not _is_count(given[name]))


def _is_count(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdigit() and int(value[:20]) > 0


def refuse_wrong_counts(flags: Sequence[str]) -> None:
    """Raise `CannotBoot` for a number of ranks or machines that is none."""
    for name in wrong_counts(flags):
        flag = "--" + name.replace("_", "-")
        raise CannotBoot(
            f"{flag} needs a whole number, 1 or more",
            where=f"{flag} {text_of(flags, name) or ''}".rstrip(),
            why="SGLang's own parser would end the boot",
            remedy="correct the number",
        )


def looks_local(model_path: str) -> bool:
    """Whether a model is meant as a folder or file of this machine, not as a hub name."""
    given = expanded(model_path)
    return given.exists() or model_path.startswith((os.sep, ".", "~")) or model_path == ""


def refuse_wrong_path(model_path: str) -> None:
    """Raise `CannotBoot` for a local model path at which there is no model."""
    path = expanded(model_path)
    # A file may be a model too: one in the GGUF format.
    if not looks_local(model_path) or (path.is_file() and path.suffix == ".gguf"):
        return
    if any((path / name).is_file() for name in ("config.json", "params.json")):
        return
    there = "there is no such folder"
    if path.exists():
        there = "it holds no config.json" if path.is_dir() else "it is a file, not a model's folder"
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


def _number(flags: Sequence[str], name: str) -> int:
    text = text_of(flags, name) or "1"
    return int(text) if text.isdigit() and int(text) > 0 else 1


def ranks_here(flags: Sequence[str]) -> int:
    """How many ranks, each with a GPU of its own, these flags start on one machine."""
    ranks = _number(flags, "tp_size") * _number(flags, "pp_size")
    if not has(flags, "enable_dp_attention"):
        # With DP attention the replicas share the tensor-parallel ranks; else each has its own.
        ranks *= _number(flags, "dp_size")
    return -(-ranks // _number(flags, "nnodes"))


def refuse_too_few_gpus(flags: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise `CannotBoot` when CUDA shows fewer GPUs than the flags ask for. Only NVIDIA's are counted."""
    if text_of(flags, "device") not in (None, "cuda") or environment.get("SGLANG_PLATFORM"):
        return
    if Path("/dev/kfd").exists() or os.uname().sysname == "Darwin":
        return
    base = text_of(flags, "base_gpu_id") or "0"
    wanted = ranks_here(flags) + (int(base) if base.isdigit() else 0)
    there = visible_gpus(environment)
    if len(there) >= wanted:
        return
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    users = gpu_users()
    raise CannotBoot(
        f"{wanted} GPU{'s' if wanted > 1 else ''} wanted, {len(there)} visible",
        where="nvidia-smi" + ("" if visible is None else f", CUDA_VISIBLE_DEVICES={visible}"),
        why="--tp-size × --pp-size × --dp-size over --nnodes machines gives the GPUs that this one needs"
        + ("; in use: " + "; ".join(map(str, users[:8])) if users else ""),
        remedy="lower --tp-size, give --nnodes, or make the GPUs visible (CUDA_VISIBLE_DEVICES, the "
        "container's --gpus all)",
    )
