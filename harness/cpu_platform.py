"""SGLang on a machine without a GPU: an out-of-tree platform, found through an entry point.

Place in the flow: loaded by SGLang itself, inside the server process, never by this project's own code.
Top level imports the standard library only: SGLang imports this module on every machine where shardgate is
installed, GPU boxes included.

SGLang's own CPU engine needs its compiled CPU kernels, which have no wheel on PyPI. An *out-of-tree*
platform whose dispatch key is `native` takes the pure torch implementation of every fused operator instead,
the `torch_native` attention backend, and the allocators without Triton.
"""

from __future__ import annotations

import os
from typing import Any

PLATFORM_NAME = "shardgate_cpu"
"""The entry point's name, and what `SGLANG_PLATFORM` must say to choose it."""


def activate() -> str | None:
    """The platform class's qualified name if `SGLANG_PLATFORM` chose this platform, else None.

    SGLang's automatic discovery (no `SGLANG_PLATFORM`) asks every installed platform, and one that says
    yes displaces CUDA. So installing shardgate on a GPU box must not change what SGLang finds there.
    """
    if os.environ.get("SGLANG_PLATFORM") != PLATFORM_NAME:
        return None
    return f"{__name__}:NativeCpuPlatform"


def _platform_class() -> type:
    from sglang.srt.platforms.cpu import CpuDeviceMixin
    from sglang.srt.platforms.device_mixin import PlatformEnum
    from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

    class NativeCpuPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]  # sglang is untyped
        """CPU devices, torch's own operators: no Triton, no graphs, no compiled kernels."""

        _enum = PlatformEnum.OOT
        capabilities = PlatformCapabilities()

        def get_default_attention_backend(self) -> str:
            return "torch_native"

        def get_dispatch_key_name(self) -> str:
            return "native"

    return NativeCpuPlatform


def __getattr__(name: str) -> Any:
    """Builds the class when SGLang asks for it by name, so that importing this module needs no SGLang."""
    if name == "NativeCpuPlatform":
        cls = _platform_class()
        globals()[name] = cls
        return cls
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
