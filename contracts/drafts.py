"""A draft model's vocabulary: which of the target's tokens it can say, from the map that the trainer wrote.

Place in the flow: beside the shard, under the rule `draft-coverage`. Imports `contracts.given`; numpy in
functions.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.given import DraftVocabulary, GivenError, read_given

if TYPE_CHECKING:
    import numpy as np

NAMES = ("t2d", "d2t")


def load_draft_vocabulary(path: Path | str) -> DraftVocabulary:
    """Read a map: `.npy`, `.safetensors` or `.json`, as a trainer wrote it, or a draft model's own folder.

    `t2d` (target vocabulary,) is true where the drafter has the token; `d2t` (draft vocabulary,) is what to
    add to a draft id to get the target's. A file of several arrays names them so; of a single one of whole
    numbers, the file's name says it, else rising numbers are taken as target ids and others as offsets. The
    fingerprint is over the sorted target ids as little-endian 64-bit integers: one map, one fingerprint.

    Raises:
        GivenError: the file is missing, of another kind, or its numbers are no map.
    """
    import numpy as np

    path = _in_folder(Path(path))
    try:
        arrays = _arrays(path)
    except GivenError:
        raise
    except Exception as error:  # numpy, safetensors and json each raise their own
        raise _refused(path, f"{type(error).__name__}: {str(error)[:160]}") from error
    ids = _ids(arrays, path)
    if ids.ndim != 1 or not len(ids) or int(ids.min()) < 0:
        raise _refused(path, "it names no tokens, or negative ones")
    if len(np.unique(ids)) != len(ids):
        raise _refused(path, "it maps two draft tokens to one of the target's")
    ids = np.sort(ids)
    return DraftVocabulary(ids, hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest(), str(path))


def _in_folder(path: Path) -> Path:
    """Return the file of a draft model's folder that holds the map; a path to a file as it is."""
    if not path.is_dir():
        return path
    for file in sorted(path.glob("*.safetensors")):
        with contextlib.suppress(Exception):
            if set(_tensors(file)).intersection(NAMES):
                return file
    raise _refused(path, "no *.safetensors file in the folder holds t2d or d2t")


def _tensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the maps among a file's tensors, or its only tensor; the model's weights stay unread."""
    from safetensors import safe_open

    with safe_open(str(path), framework="numpy") as file:
        names = list(file.keys())
        chosen = [name for name in names if name.rpartition(".")[2] in NAMES] or names[: len(names) == 1]
        return {name.rpartition(".")[2]: file.get_tensor(name) for name in chosen}


def _refused(path: Path, why: str) -> GivenError:
    return GivenError(
        "the draft vocabulary can't be used",
        where=str(path),
        why=why,
        remedy="pass t2d or d2t as .npy, .safetensors or .json, or the draft model's folder",
    )


def _arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    import numpy as np

    block = read_given(path, "the draft vocabulary") if path.suffix != ".safetensors" else b""
    stem = next((name for name in NAMES if name in path.stem.lower()), "")
    if path.suffix == ".npy":
        return {stem: np.load(io.BytesIO(block), allow_pickle=False)}
    if path.suffix == ".safetensors":
        if not path.is_file():
            read_given(path, "the draft vocabulary")
        return _tensors(path)
    if path.suffix == ".json":
        value = json.loads(block)
        named = value if isinstance(value, dict) else {stem: value}
        return {name: np.asarray(numbers) for name, numbers in named.items()}
    raise _refused(path, f"a file {path.suffix or 'without a suffix'} is not read; torch files run code")


def _ids(arrays: dict[str, np.ndarray[Any, Any]], path: Path) -> np.ndarray[Any, Any]:
    """Return the target's ids that the arrays name."""
    import numpy as np

    found = next((arrays[name] for name in NAMES if name in arrays), None)
    if found is None:
        if len(arrays) != 1:
            raise _refused(path, f"it holds {', '.join(sorted(arrays)) or 'nothing'}, neither t2d nor d2t")
        found = next(iter(arrays.values()))
    name = next((name for name in NAMES if name in arrays), "")
    if found.dtype == bool:
        return np.flatnonzero(found)
    if found.dtype.kind not in "iu":
        raise _refused(path, f"its numbers are {found.dtype}, not whole")
    numbers = found.astype(np.int64)
    if name == "t2d":
        return np.flatnonzero(numbers)
    rising = bool((np.diff(numbers) > 0).all())
    return numbers + np.arange(len(numbers)) if name == "d2t" or not rising else numbers
