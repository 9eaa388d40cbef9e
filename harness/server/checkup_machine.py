"""What the doctor finds out about the machine: GPUs, memory, disk, limits, port, proxies.

Place in the flow: below the doctor. Imports the standard library and the stage's own modules.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import resource
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.server.checkpoint import hub_cache
from harness.server.checkup import Check, Need, gigabytes
from harness.server.hardware import Gpu, gpu_users, port_is_free, visible_gpus


def _torch_cuda() -> str | None:
    """The CUDA version that the installed torch was built with, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        text = (Path(spec.submodule_search_locations[0]) / "version.py").read_text("utf-8")
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=\n]*=\s*'([\d.]+)'", text, re.MULTILINE)
    return found[1] if found else None


def _driver_cuda() -> str | None:
    """The newest CUDA version that the driver supports, as `nvidia-smi` prints it."""
    try:
        said = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"CUDA Version:\s*([\d.]+)", said)
    return found[1] if found else None


def accelerators(need: Need) -> Iterator[Check]:
    """Driver, GPUs, who uses them, and whether the model fits; for a boot on a CPU the platform."""
    if need.on_cpu:
        names = {point.name for point in importlib.metadata.entry_points(group="sglang.srt.platforms")}
        if "shardgate_cpu" in names:
            yield Check("platform", "ok", "no GPU wanted: SGLang's CPU platform is there")
        else:
            yield Check(
                "platform",
                "error",
                "SGLang does not find shardgate's CPU platform",
                "the entry point shardgate_cpu is missing from this environment",
                "install shardgate into the same environment as SGLang",
            )
        return
    gpus = visible_gpus(need.environment)
    if not gpus:
        yield Check(
            "gpus",
            "error",
            f"{need.ranks} wanted, none visible",
            "nvidia-smi is not there, lists none, or CUDA_VISIBLE_DEVICES hides them",
            "install the driver, give the container its GPUs (--gpus all), or see CUDA_VISIBLE_DEVICES",
        )
        return
    names_of = ", ".join(f"{number} × {name}" for name, number in _counted(gpus))
    enough = len(gpus) >= need.ranks
    yield Check(
        "gpus",
        "ok" if enough else "error",
        f"{len(gpus)} visible ({names_of}), {need.ranks} wanted",
        "" if enough else "each rank needs a GPU of its own",
        "" if enough else "lower --tp-size, give --nnodes, or make more visible (CUDA_VISIBLE_DEVICES)",
    )
    yield _driver(gpus[0])
    old = [one for one in gpus if _capability(one) is not None and (_capability(one) or 0) < 7.5]
    if old:
        yield Check(
            "capability",
            "error",
            f"{old[0].name} has compute capability {old[0].capability}",
            "SGLang's kernels start at 7.5",
            "use newer GPUs",
        )
    used = gpus[: need.ranks]
    users = [one for one in gpu_users() if one.gpu in {gpu.index for gpu in used}]
    busy = [gpu for gpu in used if gpu.free is not None and gpu.total and gpu.free < 0.9 * gpu.total]
    if users or busy:
        who = "; ".join(map(str, users)) or "processes that can't be seen from here (another container)"
        yield Check(
            "gpu-users",
            "warning",
            f"GPU memory is in use: {who}",
            "SGLang sizes its KV cache by what is free, and unequal GPUs may be refused",
            "end these processes, or leave their GPUs out (CUDA_VISIBLE_DEVICES)",
        )
    else:
        yield Check("gpu-users", "ok", "nobody else uses the GPUs")
    yield _fits(used, need)


def _counted(gpus: Sequence[Gpu]) -> list[tuple[str, int]]:
    names = [gpu.name for gpu in gpus]
    return [(name, names.count(name)) for name in dict.fromkeys(names)]


def _capability(gpu: Gpu) -> float | None:
    try:
        return float(gpu.capability)
    except ValueError:
        return None


def _driver(gpu: Gpu) -> Check:
    driver, built = _driver_cuda(), _torch_cuda()
    words = f"driver {gpu.driver}, CUDA {driver or '?'}; torch is built for CUDA {built or '?'}"
    if driver is None or built is None:
        return Check("driver", "unknown", words)
    if int(driver.split(".")[0]) < int(built.split(".")[0]):
        return Check(
            "driver",
            "error",
            words,
            "a driver runs no CUDA of a newer major version",
            "update the NVIDIA driver, or install torch and SGLang for the driver's CUDA",
        )
    return Check("driver", "ok", words)


def _fits(gpus: Sequence[Gpu], need: Need) -> Check:
    totals = [gpu.total for gpu in gpus if gpu.total]
    if not need.weights or not totals or not need.ranks:
        return Check("gpu-memory", "unknown", "the model's size is not known on this machine")
    share = need.weights // need.ranks
    smallest = min(totals)
    words = f"{gigabytes(share)} of weights for each GPU of {gigabytes(smallest)}"
    if share > smallest * 0.97:
        return Check(
            "gpu-memory",
            "error",
            words,
            "the weights alone don't fit",
            "raise --tp-size (or --pp-size, --nnodes), or take a smaller quantisation",
        )
    if share > smallest * need.mem_fraction * 0.95:
        return Check(
            "gpu-memory",
            "error",
            words,
            f"nothing is left for the KV cache below --mem-fraction-static {need.mem_fraction:g}",
            "raise --tp-size, or --mem-fraction-static if it is low",
        )
    if share > smallest * need.mem_fraction * 0.8:
        return Check(
            "gpu-memory",
            "warning",
            words,
            "little is left for the KV cache: few requests at once",
            "raise --tp-size, or lower --context-length and --max-running-requests",
        )
    return Check("gpu-memory", "ok", words)


def _available_memory() -> int | None:
    """Bytes of host memory that can be had: what is available, or what the control group leaves."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    room = int(found[1]) * 1024 if found else None
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            left = int(Path(limit).read_text()) - int(Path(usage).read_text())
        except (OSError, ValueError):
            continue
        room = left if room is None else min(room, left)
    return room


def memory(need: Need) -> Iterator[Check]:
    """Host memory and shared memory."""
    room = _available_memory()
    # A boot on a CPU keeps weights and torch in memory: some 2.5 GB beside them (SGLang 0.5.23, measured).
    floor = need.weights + (2_500_000_000 if need.on_cpu else 0)
    if room is None:
        yield Check("host-memory", "unknown", "how much memory is available is not told here")
    elif need.on_cpu and room < floor:
        yield Check(
            "host-memory",
            "error",
            f"{gigabytes(room)} available, a boot on a CPU takes about {gigabytes(floor)}",
            "weights, torch and KV cache lie in host memory",
            "free memory, raise the container's limit, or lower --max-total-tokens",
        )
    elif not need.on_cpu and room < 4_000_000_000 * max(1, need.ranks):
        yield Check(
            "host-memory",
            "warning",
            f"{gigabytes(room)} available for {need.ranks} ranks",
            "each rank's CUDA context, pinned buffers and file cache take some gigabytes",
            "free memory or raise the container's limit",
        )
    else:
        yield Check("host-memory", "ok", f"{gigabytes(room)} available")
    try:
        shared = os.statvfs("/dev/shm")
    except OSError:
        yield Check("shared-memory", "unknown", "there is no /dev/shm")
        return
    free = shared.f_bavail * shared.f_frsize
    if free >= 1_000_000_000 or need.ranks < 2:
        yield Check("shared-memory", "ok", f"{gigabytes(free)} free in /dev/shm")
    else:
        yield Check(
            "shared-memory",
            "error" if free < 128_000_000 else "warning",
            f"{free / 1e6:.0f} MB free in /dev/shm for {need.ranks} ranks",
            "NCCL joins the ranks of one machine through it",
            "in a container give --shm-size 32g or --ipc=host",
        )


def storage(need: Need) -> Iterator[Check]:
    """Free disk space where a boot writes."""
    places = {
        "log": need.log_folder or Path(tempfile.gettempdir()),
        "temporary files": Path(tempfile.gettempdir()),
        "compiled kernels": Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser(),
    }
    if need.downloads:
        places["model cache"] = hub_cache()
    short, told = [], []
    for name, path in places.items():
        there = next((one for one in (path, *path.parents) if one.exists()), Path("/"))
        free = shutil.disk_usage(there).free
        told.append(f"{name} {gigabytes(free)}")
        if free < (20_000_000_000 if name == "model cache" else 1_000_000_000):
            short.append(f"{name} in {path}: {gigabytes(free)}")
        if not os.access(there, os.W_OK):
            short.append(f"{name} in {path}: this user may not write there")
    if short:
        yield Check(
            "disk",
            "error",
            "; ".join(short),
            "a boot writes its log, compiled kernels and, for a hub name, the model",
            "free space, or move it: HF_HOME, TMPDIR, XDG_CACHE_HOME",
        )
    else:
        yield Check("disk", "ok", "free: " + ", ".join(told))


def limits(need: Need) -> Iterator[Check]:
    """Open files, the port, and proxies that would swallow calls to this machine itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # SGLang raises the soft limit to 65535, and leaves it as it is where the hard one is lower.
    if soft < 8192 and 0 <= hard < 65535:
        yield Check(
            "open-files",
            "warning",
            f"at most {soft} open files",
            "many requests at once need more, and the hard limit keeps SGLang from raising it",
            f"`ulimit -n {hard}` before the boot, or raise the hard limit to 65535",
        )
    else:
        yield Check("open-files", "ok", f"{soft if soft >= 8192 else 65535} open files")
    if need.port is not None and not port_is_free(need.host, need.port):
        yield Check(
            "port",
            "error",
            f"port {need.port} can't be used",
            listener(need.port) or "another process listens there, or the address is not this machine's",
            "choose another port, or leave the port out and a free one is found",
        )
    else:
        yield Check("port", "ok", f"port {need.port} is free" if need.port else "a free port will be chosen")
    proxies = [name for name in ("http", "https", "all") if name in urllib.request.getproxies()]
    if "http" in proxies or "all" in proxies:
        bypassed = bool(urllib.request.proxy_bypass("127.0.0.1"))
        yield Check(
            "proxy",
            "ok" if bypassed else "warning",
            "a proxy is set" + (", calls to this machine go past it" if bypassed else ""),
            "" if bypassed else "other clients' calls to 127.0.0.1 would go to the proxy (shardgate's don't)",
            "" if bypassed else "export NO_PROXY=127.0.0.1,localhost",
        )


def listener(port: int) -> str:
    """Who listens on a TCP port of this machine, in words; empty where that can't be seen."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        except OSError:
            continue
        inodes |= {row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(str(entry.readlink()) in wanted for entry in folder.iterdir()):
                name = (folder.parent / "comm").read_text().strip()
                return f"pid {folder.parent.name} ({name}) listens there"
        except OSError:
            continue
    return ""
