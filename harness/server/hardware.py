"""What this machine offers a server: accelerators, processors, ports. No torch: it would take seconds.

Place in the flow: asked by the launcher and by the GPU tests. Imports the standard library only.
"""

from __future__ import annotations

import os
import pwd
import random
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.server.failures import CannotBoot


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as `nvidia-smi` describes it; memory in bytes, None where it does not tell."""

    index: int
    uuid: str
    name: str
    total: int | None
    free: int | None
    capability: str
    driver: str


@dataclass(frozen=True, slots=True)
class GpuUser:
    """A process that holds memory of a GPU."""

    gpu: int
    pid: int
    user: str
    name: str
    used: int | None

    def __str__(self) -> str:
        held = f" holds {self.used / 2**30:.1f} GiB" if self.used is not None else ""
        return f"GPU {self.gpu}: pid {self.pid} ({self.user}, {self.name}){held}"


def _ask(what: str, fields: str) -> list[list[str]]:
    """The rows of an `nvidia-smi` query; none where there is no driver or it does not answer."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        said = subprocess.run(
            ["nvidia-smi", f"--query-{what}={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    width = fields.count(",") + 1
    rows = ([cell.strip() for cell in line.split(",")] for line in said.splitlines() if line.strip())
    return [row for row in rows if len(row) == width]


def _bytes(mebibytes: str) -> int | None:
    return int(mebibytes) * 2**20 if mebibytes.isdigit() else None


def all_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine, visible or not."""
    rows = _ask("gpu", "index,uuid,name,memory.total,memory.free,compute_cap,driver_version")
    return tuple(
        Gpu(int(row[0]), row[1], row[2], _bytes(row[3]), _bytes(row[4]), row[5], row[6])
        for row in rows
        if row[0].isdigit()
    )


def visible_gpus(environment: Mapping[str, str] | None = None) -> tuple[Gpu, ...]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves visible, in its order."""
    found = all_gpus()
    visible = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    kept: list[Gpu] = []
    # A part of a GPU (MIG) is not in nvidia-smi's list, and counts. What does not exist hides itself and
    # everything after it, as CUDA has it.
    for part in (part.strip() for part in visible.split(",")):
        fits = [
            one
            for one in found
            if (part.isdigit() and one.index == int(part)) or (len(part) > 4 and one.uuid.startswith(part))
        ]
        if part.startswith("MIG-"):
            fits = [Gpu(-1, part, "part of a GPU (MIG)", None, None, "", found[0].driver)] if found else []
        if not fits:
            break
        kept.append(fits[0])
    return tuple(kept)


def gpu_users() -> tuple[GpuUser, ...]:
    """Who holds GPU memory here. In a container other containers' processes may stay hidden."""
    rows = _ask("compute-apps", "gpu_uuid,pid,process_name,used_memory")
    if not rows:
        return ()
    numbers = {one.uuid: one.index for one in all_gpus()}
    return tuple(
        GpuUser(numbers.get(row[0], -1), int(row[1]), _owner(row[1]), Path(row[2]).name, _bytes(row[3]))
        for row in rows
        if row[1].isdigit()
    )


def _owner(pid: str) -> str:
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return "a user of another container"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def gpu_count() -> int:
    """How many NVIDIA GPUs a server started here could use."""
    return len(visible_gpus())


def needs_cpu_platform() -> bool:
    """Whether SGLang finds no accelerator here by itself. ROCm (`/dev/kfd`) and Apple's GPUs count as one."""
    if os.environ.get("SGLANG_PLATFORM"):
        return False
    return gpu_count() == 0 and not Path("/dev/kfd").exists() and os.uname().sysname != "Darwin"


def processors() -> tuple[int, ...]:
    """The processors that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now. A port that is merely in TIME_WAIT counts as free."""
    try:
        return _is_free(*_address(host), port)
    except (OSError, UnicodeError):
        return False


def _address(host: str) -> tuple[int, tuple[Any, ...]]:
    """A host's address family and address. Raises `OSError` or `UnicodeError` where it is none."""
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return int(found[0]), found[4]


def _is_free(family: int, address: tuple[Any, ...], port: int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address[0], port, *address[2:]))
    except (OSError, OverflowError):
        return False
    return True


def free_port(host: str) -> int:
    """A free port below the ephemeral range: one from inside it could go to any outgoing connection
    between now and the moment, tens of seconds later, at which SGLang binds it."""
    try:
        family, address = _address(host)  # once: each look-up may take seconds
    except (OSError, UnicodeError) as error:
        raise CannotBoot(
            f"there is no host {host!r}",
            where=host,
            why=str(error),
            remedy="give an address of this machine, such as 127.0.0.1 or 0.0.0.0",
        ) from None
    for port in random.sample(range(20000, 32000), 200):
        if _is_free(family, address, port):
            return port
    raise CannotBoot(
        f"no free port on {host}",
        where="ports 20000-31999",
        why="none of 200 ports tried could be bound",
        remedy="check that the host is an address of this machine, or give a port",
    )
