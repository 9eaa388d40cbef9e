"""What this machine offers a server: accelerators, processors, ports. No torch: it would take seconds.

Place in the flow: asked by the launcher and by the GPU tests. Imports the standard library only.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
from pathlib import Path

from harness.server.failures import CannotBoot


def gpu_names() -> tuple[str, ...]:
    """The NVIDIA GPUs that `nvidia-smi` lists and `CUDA_VISIBLE_DEVICES` leaves visible, by name."""
    if shutil.which("nvidia-smi") is None:
        return ()
    try:
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    names = tuple(line.strip() for line in said.splitlines() if line.strip())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return names
    chosen = [part.strip() for part in visible.split(",") if part.strip()]
    # An index that does not exist hides itself and every one after it, as CUDA has it.
    kept: list[str] = []
    for part in chosen:
        if part.isdigit() and int(part) < len(names):
            kept.append(names[int(part)])
        elif part.startswith(("GPU-", "MIG-")):
            kept.append(part)
        else:
            break
    return tuple(kept)


def gpu_count() -> int:
    """How many NVIDIA GPUs a server started here could use."""
    return len(gpu_names())


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
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(address[0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address[4])
    except OSError:
        return False
    return True


def free_port(host: str) -> int:
    """A free port below the ephemeral range: one from inside it could go to any outgoing connection
    between now and the moment, tens of seconds later, at which SGLang binds it."""
    for port in random.sample(range(20000, 32000), 200):
        if port_is_free(host, port):
            return port
    raise CannotBoot(
        f"no free port on {host}",
        where="ports 20000-31999",
        why="none of 200 ports tried could be bound",
        remedy="check that the host is an address of this machine, or give a port",
    )
