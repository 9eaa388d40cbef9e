"""Where the installed commands find what is not code: the fixtures and the cache.

Place in the flow: a root of `harness`. Imports the standard library and platformdirs only.
"""

from __future__ import annotations

from pathlib import Path

import platformdirs

_PACKAGE = Path(__file__).resolve().parent


def fixtures_dir() -> Path:
    """The folder `fixtures/`: the wheel's own copy if there is one, else the repository's.

    Raises `FileNotFoundError` when neither is there, which means a broken installation.
    """
    # The wheel's copy first: beside an installed package, `fixtures` may be somebody else's.
    candidates = (_PACKAGE / "_fixtures", _PACKAGE.parent / "fixtures")
    for folder in candidates:
        if (folder / "golden").is_dir():
            return folder
    raise FileNotFoundError(
        "shardgate's fixtures are missing: no folder `golden` in "
        f"{' or '.join(map(str, candidates))}. Install the package again."
    )


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/shardgate` or the platform's equal; not created here."""
    return platformdirs.user_cache_path("shardgate")
