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
from harness.report.token_lines import near


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
    for group in lines if whole else near(lines):
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


def _token(token_id: int | None, text: str) -> str:
    return "" if token_id is None else f"{token_id} {safe(text, 32)!s}"
