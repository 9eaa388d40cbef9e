"""The token diff for people: raw and rebuilt tokens in two columns, the first divergence marked.

Place in the flow: last. Imports `contracts` and the other report modules; rich here only, so import this
module inside a function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from rich.text import Text

from contracts.align import Aligned
from contracts.losses import LOSSES
from contracts.records import Judgement
from harness.report.rows import verdict_style
from harness.report.terminal import console, plain_table
from harness.report.text import safe

CONTEXT = 3
"""Rebuilt tokens shown around each difference; longer runs are told by their number."""


def print_diff(
    lines: Sequence[Aligned], judgement: Judgement, stream: IO[str], *, whole: bool = False
) -> None:
    """Print verdict, losses and the aligned tokens; `whole` shows every token."""
    out = console(stream)
    out.print(Text("verdict: ").append(str(judgement.verdict), style=verdict_style(str(judgement.verdict))))
    for loss in judgement.losses:
        spec = LOSSES[loss.name]
        told = f"  {loss.name} @ token {loss.token_index} ({loss.segment}): {spec.meaning}"
        out.print(Text(told + (f"; {safe(loss.detail, 80)}" if loss.detail else "")))
    table = plain_table()
    for name in ("", "token", "segment", "raw", "rebuilt", "loss"):
        table.add_column(name, overflow="fold", no_wrap=name in ("", "token", "segment"))
    marked = False
    for group in lines if whole else _near(lines):
        if isinstance(group, int):
            table.add_row("", "", "", Text(f"… {group} tokens, rebuilt …", style="dim"), "", "")
            continue
        sign = " " if group.same else "-" if group.raw_id is not None else "+"
        if not group.same and not marked:
            sign, marked = f"▶{sign}", True
        style = "" if group.same else "red" if group.raw_id is not None else "green"
        table.add_row(
            Text(sign, style="bold" if marked and sign.startswith("▶") else style),
            "" if group.index is None else str(group.index),
            "" if group.segment is None else str(group.segment),
            Text(_token(group.raw_id, group.raw), style=style),
            Text(_token(group.rebuilt_id, group.rebuilt), style=style),
            Text(", ".join(group.losses), style="bold" if group.losses else ""),
        )
    out.print(table)
    if not marked:
        out.print(Text(f"all {sum(line.raw_id is not None for line in lines)} tokens were rebuilt"))


def _near(lines: Sequence[Aligned]) -> list[Aligned | int]:
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


def _token(token_id: int | None, text: str) -> str:
    return "" if token_id is None else f"{token_id} {safe(text, 32)!s}"
