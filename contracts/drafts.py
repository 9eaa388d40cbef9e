"""A draft model's vocabulary: which of the target's tokens it can say, from the map that the trainer wrote.

Place in the flow: beside the shard, under the rule `draft-coverage`. Imports `contracts.given`; numpy in
functions.
"""

from __future__ import annotations

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
    """Read a map: `.npy`, `.safetensors` or `.json`, as a trainer wrote it or as a plain list of target ids.

    `t2d` (target vocabulary,) is true where the drafter has the token; `d2t` (draft vocabulary,) is what to
    add to a draft id to get the target's. A file of several arrays names them so; of a single one of whole
    numbers, the file's name says it, else rising numbers are taken as target ids and others as offsets.

    Raises:
        GivenError: the file is missing, of another kind, or its numbers are no map.
    """
    import numpy as np

    path = Path(path)
    block = read_given(path, "the draft vocabulary")
    try:
        arrays = _arrays(path, block)
    except GivenError:
        raise
    except Exception as error:  # numpy, safetensors and json each raise their own
        raise _refused(path, f"{type(error).__name__}: {str(error)[:160]}") from error
    ids = _ids(arrays, path)
    if ids.ndim != 1 or not len(ids) or int(ids.min()) < 0:
        raise _refused(path, "it names no tokens, or negative ones")
    if len(np.unique(ids)) != len(ids):
        raise _refused(path, "it maps two draft tokens to one of the target's")
    return DraftVocabulary(np.sort(ids), hashlib.sha256(block).hexdigest(), str(path))


def _refused(path: Path, why: str) -> GivenError:
    return GivenError(
        "the draft vocabulary can't be used",
        where=str(path),
        why=why,
        remedy="pass t2d or d2t as .npy, .safetensors or .json, or a JSON list of the target's token ids",
    )


def _arrays(path: Path, block: bytes) -> dict[str, np.ndarray[Any, Any]]:
    import numpy as np

    stem = next((name for name in NAMES if name in path.stem.lower()), "")
    if path.suffix == ".npy":
        return {stem: np.load(io.BytesIO(block), allow_pickle=False)}
    if path.suffix == ".safetensors":
        from safetensors.numpy import load

        return {_short(name): array for name, array in load(block).items()}
    if path.suffix == ".json":
        value = json.loads(block)
        named = value if isinstance(value, dict) else {stem: value}
        return {_short(name): np.asarray(numbers) for name, numbers in named.items()}
    raise _refused(path, f"a file {path.suffix or 'without a suffix'} is not read; torch files run code")


def _short(name: str) -> str:
    return next((known for known in NAMES if known in name), name)


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
