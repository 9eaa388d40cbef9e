"""The server stage: boots SGLang on GPUs or on a CPU, or attaches to a server that runs.

Place in the flow: first. Imports `contracts.records` and the standard library; SGLang runs as a process of
its own, so this package needs neither torch nor sglang.
"""

from harness.server.aio import attach_async, together
from harness.server.attach import AttachedServer, attach, server_facts
from harness.server.deployments import Deployment, load_deployment, load_deployments
from harness.server.failures import (
    BootFailed,
    BootStalled,
    BootTimeout,
    CannotBoot,
    Mismatch,
    NotReady,
    ServerDied,
    ServerError,
    Unreachable,
)
from harness.server.hardware import gpu_count
from harness.server.launch import SGLangServer
from harness.server.progress import BootProgress, Phase

__all__ = [
    "AttachedServer",
    "BootFailed",
    "BootProgress",
    "BootStalled",
    "BootTimeout",
    "CannotBoot",
    "Deployment",
    "Mismatch",
    "NotReady",
    "Phase",
    "SGLangServer",
    "ServerDied",
    "ServerError",
    "Unreachable",
    "attach",
    "attach_async",
    "gpu_count",
    "load_deployment",
    "load_deployments",
    "server_facts",
    "together",
]
