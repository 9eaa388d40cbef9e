"""A model's folder as data: which weight files it should have, which it has, and what is wrong with them.

Place in the flow: asked by the launcher (how much there is to read) and by the doctor. Imports the standard
library only; of a weight file it reads the first bytes.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
POINTER = b"version https://git-lfs.github.com/spec/"
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")

FaultKind = Literal["missing", "pointer", "truncated", "unreadable"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a checkpoint's file."""

    kind: FaultKind
    file: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}: {self.why}"


MAX_JSON = 256_000_000
"""Bytes of the longest JSON file that is read; the longest tokenizers have some 40 MB."""


def read_json(path: Path) -> Any:
    """The JSON value in a model's file. Raises `OSError` or `ValueError`, whatever the file holds.

    What is no regular file is not opened: reading a pipe would never end.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no regular file")
    if found.st_size > MAX_JSON:
        raise ValueError(f"it has {found.st_size} bytes, more than any such file")
    return _parsed(path.read_bytes())


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def load_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty where there is none, or it is broken."""
    try:
        loaded = read_json(path)
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def expanded(path: str) -> Path:
    """A path with `~` replaced; one of a user who does not exist stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # pathlib's raises for such a user


def hub_cache() -> Path:
    """Where the hub's models are cached: `HF_HUB_CACHE`, `HF_HOME`, or the default."""
    if given := os.environ.get("HF_HUB_CACHE"):
        return Path(given).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(home).expanduser() / "hub"


def local_folder(model_path: str, revision: str | None = None) -> Path | None:
    """A model's folder on this machine: itself, or the hub's cached snapshot; None where there is none."""
    path = expanded(model_path)
    if path.is_dir():
        return path
    if model_path.count("/") != 1 or model_path.startswith((".", "/", "~")):
        return None
    cached = hub_cache() / f"models--{model_path.replace('/', '--')}"
    name = revision or "main"
    try:
        commit = (cached / "refs" / name).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        commit = name
    folder = cached / "snapshots" / commit
    return folder if folder.is_dir() else None


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The weight files that are there; safetensors alone where there are any, as SGLang loads them."""
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix in WEIGHTS and path.is_file())
    except OSError:
        return ()
    safe = tuple(path for path in found if path.suffix == ".safetensors")
    if len(safe) > 1:
        # Mistral's models bring the weights twice.
        safe = tuple(path for path in safe if not path.name.startswith("consolidated")) or safe
    return safe or tuple(found)


def checkpoint_bytes(model_path: str) -> int:
    """The size of the weights on this machine; 0 where they are not here, or not known."""
    folder = local_folder(model_path)
    total = 0
    for path in weight_files(folder) if folder else ():
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


def indexed_files(folder: Path) -> tuple[str, ...]:
    """The weight files that the checkpoint's index names; none where there is no index."""
    for name in _INDEXES:
        weight_map = load_json(folder / name).get("weight_map")
        if isinstance(weight_map, dict):
            return tuple(sorted({str(file) for file in weight_map.values()}))
    return ()


def faults(folder: Path) -> tuple[Fault, ...]:
    """What is wrong with the checkpoint's files: missing ones, Git LFS pointers, cut or unreadable ones."""
    named = indexed_files(folder)
    found = [
        Fault("unreadable", name, why)
        for name in _INDEXES
        if (why := _broken_index(folder / name)) is not None
    ]
    found += [
        Fault("missing", file, "the checkpoint's index names it, it is not there")
        for file in named
        if not (folder / file).is_file()
    ]
    there = weight_files(folder)
    if not there and not named:
        found.append(Fault("missing", str(folder), "there is no weight file: " + ", ".join(WEIGHTS)))
    paths = {path.name: path for path in there} | {n: folder / n for n in named if (folder / n).is_file()}
    for path in paths.values():
        if fault := _fault(path):
            found.append(fault)
    for name in ("config.json", "tokenizer.json", "tokenizer.model", "tiktoken.model"):
        if (folder / name).is_file() and _starts(folder / name, POINTER):
            found.append(Fault("pointer", name, "it is a Git LFS pointer, not the file"))
    return tuple(found)


def _broken_index(path: Path) -> str | None:
    """What is wrong with a checkpoint's index; None where there is none, or nothing is wrong."""
    if not path.exists():
        return None
    try:
        index = read_json(path)
    except (OSError, ValueError) as error:
        return f"it can't be read ({error})"
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        return "its `weight_map` is no table of tensors and the files that hold them"
    return None


def _starts(path: Path, with_: bytes) -> bool:
    try:
        with path.open("rb") as handle:
            return handle.read(len(with_)) == with_
    except OSError:
        return False


def _fault(path: Path) -> Fault | None:
    try:
        size = path.stat().st_size
        with path.open("rb") as handle:
            head = handle.read(64)
    except OSError as error:
        return Fault("unreadable", path.name, error.strerror or str(error))
    if head.startswith(POINTER):
        return Fault("pointer", path.name, f"it is a Git LFS pointer of {size} bytes, not the weights")
    if path.suffix != ".safetensors":
        return Fault("truncated", path.name, "it is empty") if size == 0 else None
    try:
        wanted = safetensors_size(path)
    except (OSError, ValueError) as error:
        return Fault("unreadable", path.name, f"its header can't be read ({error})")
    if size != wanted:
        return Fault("truncated", path.name, f"it has {size} bytes, its header describes {wanted}")
    return None


def safetensors_header(path: Path) -> tuple[int, dict[str, Any]]:
    """The length and the content of a safetensors file's header. Raises `OSError` or `ValueError`."""
    with path.open("rb") as handle:
        first = handle.read(8)
        if len(first) < 8:
            raise ValueError("the file is shorter than 8 bytes")
        (length,) = struct.unpack("<Q", first)
        if length > 100_000_000:
            raise ValueError("it says that it is longer than any header")
        text = handle.read(length)
    if len(text) < length:
        raise ValueError("the file ends within it")
    header = _parsed(text)
    if not isinstance(header, dict):
        raise ValueError("it is no JSON object")
    return length, header


def tensor_names(folder: Path) -> tuple[str, ...]:
    """The names of a checkpoint's tensors, by its index or its safetensors files; else none."""
    for name in _INDEXES:
        weight_map = load_json(folder / name).get("weight_map")
        if isinstance(weight_map, dict):
            return tuple(map(str, weight_map))
    names: list[str] = []
    for path in weight_files(folder):
        if path.suffix == ".safetensors":
            try:
                names += safetensors_header(path)[1]
            except (OSError, ValueError):
                continue
    return tuple(names)


def safetensors_size(path: Path) -> int:
    """How many bytes the file must have by its header. Raises `OSError` or `ValueError`."""
    length, header = safetensors_header(path)
    ends = _ends(header.values())
    return 8 + length + max(ends, default=0)


def _ends(entries: Iterable[Any]) -> list[int]:
    offsets = [entry.get("data_offsets") for entry in entries if isinstance(entry, dict)]
    return [pair[1] for pair in offsets if isinstance(pair, list) and len(pair) == 2 and type(pair[1]) is int]
