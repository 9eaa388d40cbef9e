"""Where a certified set's files lie, and which files lie there without belonging to it.

Place in the flow: under certifying, verifying and deriving. Imports certificate of `contracts`.

    DIR/certificate.json, DIR/certificate.dsse.json
    DIR/certified/, DIR/shards/, DIR itself      shards
    DIR/quarantine/                              rows that were not certified
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from contracts.certificate import FILE_NAME, Certificate

CERTIFIED, QUARANTINE = "certified", "quarantine"
SHARD_SUFFIXES = frozenset({".parquet", ".parq", ".pq"})
"""What a reader of a folder takes for a shard, in any case."""


def relative(folder: Path, path: Path) -> str:
    """Return a path as the certificate in `folder` names it."""
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def parquet_beside(
    folder: Path, others: Iterable[Path] = (), suffixes: frozenset[str] = SHARD_SUFFIXES
) -> set[Path]:
    """Return the files of these kinds that lie where those of a set lie, quarantine apart.

    That is the set's folder itself, its `shards/` and `certified/`, and the other folders given. Deeper
    folders are sets of their own. Hidden files and the certificate are none.
    """
    root = folder.resolve()
    places = {root, root / "shards", root / CERTIFIED, *(other.resolve() for other in others)}
    places.discard(root / QUARANTINE)
    own = {root / FILE_NAME, root / FILE_NAME.replace(".json", ".dsse.json")}
    return {
        path
        for place in places
        for path in place.glob("*")
        if path.suffix.lower() in suffixes and not path.name.startswith(".")
    } - own


def strangers(certificate: Certificate) -> list[Path]:
    """Return the files among a set's own, and of their kinds, that its certificate does not name."""
    folder = certificate.folder.resolve()
    # A name's own place, its folders' links followed or not, and where a link there leads: each may be
    # met when folders are listed. Another link to a certified file is a stranger: its rows would count twice.
    named = {folder / name for name in certificate.known_names}
    known = {Path(os.path.normpath(path)) for path in named} | {path.resolve() for path in named}
    known |= {path.parent.resolve() / path.name for path in named}
    places = {path.parent for path in known} - {folder / QUARANTINE}
    suffixes = frozenset(Path(shard.name).suffix.lower() for shard in certificate.shards)
    found = parquet_beside(folder, sorted(places), SHARD_SUFFIXES | suffixes)
    return sorted(found - known)


def clear_temporary(folder: Path, *inside: str) -> None:
    """Take away half-written files that a killed run left in `folder` and the folders `inside` it.

    Only for who holds the folder: nobody else is writing there.
    """
    for path in folder.glob(f".{FILE_NAME}.*.tmp"):
        path.unlink(missing_ok=True)
    for name in inside:
        for path in (folder / name).glob(".*.tmp"):
            path.unlink(missing_ok=True)
