"""The fidelity matrix as terminal table, Markdown and HTML.

Place in the flow: last. May import `contracts`, `harness.outcomes` and the other report modules; rich inside
a function.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import IO

from contracts.losses import LOSSES
from contracts.records import VERDICT_ORDER
from harness.outcomes import MatrixLoss, MatrixReport, MatrixRow
from harness.report.text import safe, seconds

HEADS = ("family", "reasoning", "tools", "exact in the safe grammar", "streamed", "stream = whole")
_CSS = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%;margin:1rem 0}td,th{border-bottom:1px solid #ddd;"
    "padding:.3rem .5rem;text-align:left;vertical-align:top}code{background:#f4f4f4;padding:0 .2rem}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}code{background:#222}"
    "td,th{border-color:#333}}"
)


def cells(row: MatrixRow) -> tuple[str, ...]:
    """Return a row's cells in words: how many of how many."""
    return (
        row.family,
        row.reasoning_parser or "-",
        row.tool_parser or "-",
        f"{row.exact}/{row.safe}",
        f"{row.exact_streamed}/{row.safe}",
        f"{row.stream_equal}/{row.disturbed}",
    )


def in_order(losses: Iterable[MatrixLoss]) -> list[MatrixLoss]:
    """Return losses worst verdict first, then the most frequent."""
    return sorted(losses, key=lambda loss: (VERDICT_ORDER.index(loss.verdict), -loss.count, loss.name))


def example(loss: MatrixLoss, limit: int = 70) -> str:
    """Return the smallest stream that shows a loss, on one line."""
    return safe(loss.text, limit)


def print_matrix(report: MatrixReport, stream: IO[str], *, losses: bool = False) -> None:
    """Print the matrix; `losses` adds each pair's losses with the smallest example."""
    from rich.text import Text

    from harness.report.rows import verdict_style
    from harness.report.terminal import console, plain_table

    out = console(stream)
    out.print(Text(title(report), style="bold"))
    table = plain_table()
    for name in ("family", "reasoning", "tools", "safe", "stream", "equal", "outside: worst losses"):
        table.add_column(name, overflow="fold", no_wrap=name in ("safe", "stream", "equal"))
    before = ""
    for row in report.rows:
        shown = cells(row)
        worst = ", ".join(dict.fromkeys(loss.name for loss in in_order(row.losses)[:3]))
        table.add_row(
            Text("" if row.family == before else row.family),
            *map(Text, shown[1:3]),
            Text(shown[3], style="green" if row.exact == row.safe else "bold red"),
            Text(shown[4], style="green" if row.exact_streamed == row.safe else "yellow"),
            Text(shown[5]),
            Text(worst),
        )
        before = row.family
    out.print(table)
    for row in report.rows:
        if row.broken is not None:
            out.print(Text(f"not exact, {row.family}: {safe(row.broken, 100)}", style="red"))
        for loss in in_order(row.losses) if losses else ():
            if loss is in_order(row.losses)[0]:
                out.print()
                out.print(Text(" + ".join(part for part in shown_pair(row) if part), style="bold"))
            told = f"  {loss.name}{' (streamed)' if loss.streamed else ''} {loss.count}: "
            out.print(Text(told, style=verdict_style(loss.verdict)).append(example(loss, 120)))
    out.print(Text(unmapped(report)))
    if report.seconds:
        out.print(Text(f"took {seconds(report.seconds)}"))


def shown_pair(row: MatrixRow) -> tuple[str, str, str]:
    """Return family, reasoning parser and tool parser, empty where there is none."""
    return row.family, row.reasoning_parser or "", row.tool_parser or ""


def title(report: MatrixReport) -> str:
    """Return the report's first line."""
    return (
        f"SGLang {report.engine_version}: {len(report.rows)} pairs of parsers, {report.examples} streams "
        "each inside the family's safe grammar and outside it"
    )


def unmapped(report: MatrixReport) -> str:
    """Return the names that no family is mapped to, in words."""
    both = (("reasoning", report.unmapped_reasoning), ("tools", report.unmapped_tools))
    return "; ".join(f"unmapped, {kind}: {', '.join(names) or 'none'}" for kind, names in both)


def markdown(report: MatrixReport) -> list[str]:
    """Return the matrix as lines of Markdown: the table, then each pair's losses."""
    return ["# Fidelity matrix", "", *table_markdown(report), "", *losses_markdown(report)]


def table_markdown(report: MatrixReport) -> list[str]:
    """Return the table as lines of Markdown, and the names that are not in it."""
    lines = [f"{title(report)}.", "", _line(HEADS), _line(["---"] * len(HEADS))]
    for row in report.rows:
        lines.append(
            _line(f"`{cell}`" if n < 3 and cell != "-" else cell for n, cell in enumerate(cells(row)))
        )
    for kind, names in (("reasoning", report.unmapped_reasoning), ("tool-call", report.unmapped_tools)):
        told = "; ".join(f"`{name}` ({why})" for name, why in names.items()) or "none"
        lines += ["", f"Unmapped {kind} parsers: {told}."]
    return lines


def losses_markdown(report: MatrixReport) -> list[str]:
    """Return each pair's losses as lines of Markdown, the worst first, with the smallest example."""
    lines = []
    for row in report.rows:
        pair = " + ".join(f"`{part}`" for part in shown_pair(row)[1:] if part)
        lines += [f"## {row.family}: {pair}", "", _line(("loss", "verdict", "of", "smallest example"))]
        lines.append(_line(["---"] * 4))
        for loss in in_order(row.losses):
            count = f"{loss.count}/{row.disturbed}{', streamed' if loss.streamed else ''}"
            lines.append(_line((f"`{loss.name}`", str(loss.verdict), count, _code(example(loss)))))
        lines.append("")
    return lines


def _line(values: Iterable[str]) -> str:
    return f"| {' | '.join(value.replace('|', chr(92) + '|') for value in values)} |"


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{' ' if fence == '``' else ''}{text}{' ' if fence == '``' else ''}{fence}" if text else ""


def html_page(report: MatrixReport) -> str:
    """Return the matrix as one HTML page without anything from elsewhere."""

    def row_of(tag: str, values: Iterable[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(value)}</{tag}>' for value in values)}</tr>"

    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        f"<title>shardgate: fidelity matrix</title><style>{_CSS}</style>",
        f"<h1>Fidelity matrix</h1><p>{html.escape(title(report))}.</p><table>",
        row_of("th", HEADS),
        *(row_of("td", cells(row)) for row in report.rows),
        f"</table><p>{html.escape(unmapped(report))}.</p>",
    ]
    for row in report.rows:
        name = " + ".join(part for part in shown_pair(row) if part)
        parts += [
            f"<h2>{html.escape(name)}</h2><table>",
            row_of("th", ("loss", "what it means", "of", "example")),
        ]
        for loss in in_order(row.losses):
            count = f"{loss.count}/{row.disturbed}{', streamed' if loss.streamed else ''}"
            told = (f"{loss.name} ({loss.verdict})", LOSSES[loss.name].meaning, count, example(loss, 160))
            parts.append(row_of("td", told))
        parts.append("</table>")
    return "\n".join(parts) + "\n"
