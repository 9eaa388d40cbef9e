"""Which lines of a token diff are worth showing: those near a difference, and how many lie between.

Place in the flow: under the token diffs of terminal and HTML. Imports `contracts.align`.
"""

from __future__ import annotations

from collections.abc import Sequence

from contracts.align import Aligned

CONTEXT = 3
"""Rebuilt tokens shown around each difference; longer runs are told by their number."""


def near(lines: Sequence[Aligned]) -> list[Aligned | int]:
    """Return the lines near a difference or a loss, and between them how many were left out."""
    told = [n for n, line in enumerate(lines) if not line.same or line.losses]
    keep = {at for n in told for at in range(n - CONTEXT, n + CONTEXT + 1)}
    out: list[Aligned | int] = []
    skipped = 0
    for n, line in enumerate(lines):
        if n in keep:
            if skipped:
                out.append(skipped)
            skipped = 0
            out.append(line)
        else:
            skipped += 1
    if skipped:
        out.append(skipped)
    return out
