"""The CPU platform leaves SGLang on a GPU box alone: it is there only for who asks for it by name."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from harness import cpu_platform


@pytest.mark.parametrize("chosen", [None, "", "cuda", "other"])
def test_it_does_not_volunteer(chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    if chosen is not None:
        monkeypatch.setenv("SGLANG_PLATFORM", chosen)
    assert cpu_platform.activate() is None


def test_it_answers_to_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PLATFORM", cpu_platform.PLATFORM_NAME)
    assert cpu_platform.activate() == "harness.cpu_platform:NativeCpuPlatform"


def test_sglang_finds_it_under_its_name() -> None:
    (entry,) = entry_points(group="sglang.srt.platforms", name=cpu_platform.PLATFORM_NAME)
    assert entry.load() is cpu_platform.activate


def test_asking_it_imports_nothing_heavy() -> None:
    code = (
        "import sys, harness.cpu_platform as p; p.activate();"
        "print([m for m in ('torch', 'sglang', 'transformers', 'psutil') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
