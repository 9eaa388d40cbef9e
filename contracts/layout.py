"""Where a certified set's files lie, and which files lie there without belonging to it.

Place in the flow: under certifying, verifying and deriving. Imports certificate of `contracts`.

    DIR/certificate.json, DIR/certificate.dsse.json
    DIR/certified/, DIR/shards/, DIR itself      shards
    DIR/quarantine/                              rows that were not certified
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
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

    That is the set's folder itself and the other folders given, without what lies deeper, where sets of their
    own may be; and its `shards/` and `certified/` with all that lies in them, through links too: readers of a
    folder go there. Hidden files count, since readers by pattern take them; half-written ones have another
    suffix. The certificate is none.
    """
    root = folder.resolve()
    places = {root, *(other.resolve() for other in others)} - {root / QUARANTINE}
    places |= {place for name in ("shards", CERTIFIED) for place in folders_in(root / name)}
    own = {root / FILE_NAME, root / FILE_NAME.replace(".json", ".dsse.json")}
    return {path for place in places for path in place.glob("*") if path.suffix.lower() in suffixes} - own


def folders_in(top: Path) -> list[Path]:
    """Return `top`, where it is a folder, and all folders in it, links to folders followed, each once."""
    seen: set[str] = set()
    out: list[Path] = []
    waiting, links = [top] if top.is_dir() else [], list[Path]()
    while waiting or links:
        # Links come last, so that a folder is met under its own name, if it lies here.
        place = waiting.pop() if waiting else links.pop()
        if (real := os.path.realpath(place)) in seen:
            continue
        seen.add(real)
        out.append(place)
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir():
                        (links if entry.is_symlink() else waiting).append(Path(entry.path))
        except OSError:
            continue  # a reader can't list it either
    return out


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
    return sorted(path for path in found - known if stored_outside(path, folder) not in known)


def quarantined_files(folder: Path) -> Iterator[Path]:
    """Yield all that lies in a set's quarantine, folders apart."""
    for place in folders_in(folder.resolve() / QUARANTINE):
        yield from (path for path in place.glob("*") if not path.is_dir())


def quarantine_strangers(certificate: Certificate) -> list[Path]:
    """Return the shards in a set's quarantine that its certificate does not name."""
    folder = certificate.folder.resolve()
    known = {Path(os.path.normpath(folder / name)) for name in certificate.known_names}
    return sorted(
        path
        for path in quarantined_files(folder)
        if path.suffix.lower() in SHARD_SUFFIXES and not {path, stored_outside(path, folder)} & known
    )


def stored_outside(path: Path, root: Path) -> Path | None:
    """Return a file's own place outside of a set, where a link of the set's folders leads; else None."""
    place = path.parent.resolve() / path.name
    return None if place.is_relative_to(root) else place


def clear_temporary(folder: Path, *inside: str) -> None:
    """Take away half-written files that a killed run left in `folder` and the folders `inside` it.

    Only for who holds the folder: nobody else is writing there.
    """
    for path in folder.glob(f".{FILE_NAME}.*.tmp"):
        path.unlink(missing_ok=True)
    for name in inside:
        for path in (folder / name).glob(".*.tmp"):
            path.unlink(missing_ok=True)
