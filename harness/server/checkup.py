"""What the doctor's checks are made of, and those of the packages.

Place in the flow: below the doctor. Imports the standard library only; SGLang and torch are looked at from
outside (their metadata, a process of its own), since importing them takes seconds.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Outcome = Literal["ok", "warning", "error", "unknown"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: whether it is as a boot needs it, what was seen, why it matters, what to do."""

    name: str
    outcome: Outcome
    what: str
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Need:
    """What a boot asks of the machine. `ranks` are the GPUs on this machine; 0 for a boot on a CPU."""

    ranks: int = 0
    on_cpu: bool = True
    weights: int = 0
    mem_fraction: float = 0.85
    host: str = "127.0.0.1"
    port: int | None = None
    log_folder: Path | None = None
    downloads: bool = False
    environment: Mapping[str, str] | None = None


def gigabytes(size: int) -> str:
    """A size in words, such as `595.2 GB` (10^9 bytes)."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def installed(name: str) -> str | None:
    """The version of an installed package, None where it is not."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pinned(package: str) -> dict[str, str]:
    """The exact versions that an installed package asks for, by lower-case name."""
    try:
        wanted = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found = (re.match(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*==\s*([^\s;,]+)", line) for line in wanted)
    return {match[1].lower(): match[2] for match in found if match}


def packages() -> Iterator[Check]:
    """Python, SGLang, and the packages that SGLang pins."""
    yield Check("python", "ok", f"Python {sys.version.split()[0]}, {sys.prefix}")
    have = installed("sglang")
    if have is None:
        yield Check(
            "sglang",
            "error",
            "SGLang is not installed",
            "booting a server needs it; judging a running one and auditing shards don't",
            "install shardgate[cpu] or, on a GPU box, shardgate[gpu]",
        )
        return
    tested = _pinned("shardgate").get("sglang", "0.5.23")
    if have == tested:
        yield Check("sglang", "ok", f"SGLang {have}")
    else:
        yield Check(
            "sglang",
            "warning",
            f"SGLang {have}, tested is {tested}",
            "flags, parsers and log lines change between versions",
            f"pip install sglang=={tested}, or run the suite with this one",
        )
    pins = _pinned("sglang")
    for name in ("torch", "transformers", "tokenizers"):
        version = installed(name)
        pin = pins.get(name)
        if version is None:
            yield Check(name, "error", f"{name} is not installed", "SGLang needs it", f"pip install {name}")
        elif pin and version.split("+")[0] != pin:
            why, remedy = f"SGLang {have} asks for {pin}", f"pip install {name}=={pin}"
            yield Check(name, "warning", f"{name} {version}", why, remedy)
        else:
            yield Check(name, "ok", f"{name} {version}")


IMPORT = "import sglang.srt.server_args, sglang.srt.entrypoints.engine"

_PARSE = """
import argparse, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(prog="sglang")
ServerArgs.add_cli_args(parser)
try:
    parser.parse_args(["--model-path", "model", *sys.argv[1:]])
except SystemExit:
    sys.exit(77)
"""
_UNREADABLE = 77
"""Exit code of that process where SGLang's own parser refuses the flags."""


def start_import(environment: Mapping[str, str], flags: Sequence[str] = ()) -> subprocess.Popen[str] | None:
    """Begin to import SGLang in a process of its own, where it is installed; there it reads the flags too."""
    if importlib.util.find_spec("sglang") is None:
        return None
    # Flags that a file brings are told apart from these by SGLang itself.
    code = IMPORT if not flags or "--config" in flags else IMPORT + _PARSE
    return subprocess.Popen(
        [sys.executable, "-c", code, *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(environment),
        start_new_session=True,
    )


def end_import(process: subprocess.Popen[str], seconds: float) -> Iterator[Check]:
    """How the import went and whether SGLang takes the flags; it is ended where it takes longer than that."""
    try:
        _, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        yield Check(
            "import",
            "unknown",
            f"SGLang was not imported within {seconds:g} s",
            "a slow disk, or an import that hangs",
            "try it by hand: python -c 'import sglang.srt.entrypoints.engine'",
        )
        return
    finally:
        if process.poll() is None:
            process.kill()
    lines = [line for line in said.splitlines() if line.strip()]
    if process.returncode in (0, _UNREADABLE):
        yield Check("import", "ok", "SGLang can be imported")
        if process.returncode == _UNREADABLE:
            what = _without_values(lines[-1]) if lines else "SGLang's own parser refuses the flags"
            remedy = "correct it; `python -m sglang.launch_server --help` lists the flags"
            yield Check("flags", "error", what, "SGLang's own parser refuses it", remedy)
        return
    yield Check(
        "import",
        "error",
        "SGLang can't be imported",
        lines[-1][:400] if lines else f"the import ended with code {process.returncode}",
        "install what is missing, or install SGLang anew in an environment of its own",
    )


def _without_values(line: str) -> str:
    """A parser's complaint; of words that it does not know only the flags' names, since one may be a key."""
    told = line.rpartition("error: ")[2]
    before, unknown, words = told.partition("unrecognized arguments: ")
    if unknown:
        names = [word.partition("=")[0] for word in words.split() if word.startswith("--")]
        told = before + unknown + (" ".join(names) or "(words without a flag)")
    return told[:400]
