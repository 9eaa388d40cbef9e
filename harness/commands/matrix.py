"""`shardgate matrix`: what each pair of the installed SGLang's parsers loses, measured.

Place in the flow: outermost; calls `harness.matrix` and the reports. Imports light modules at the top.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from harness.commands import shell
from harness.commands.progress import Progress


@click.command()
@click.argument("families", nargs=-1, metavar="[FAMILY]...")
@click.option(
    "--examples",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="Streams for each pair of parsers, inside the safe grammar and outside it.",
)
@click.option("--processes", type=click.IntRange(1), help="Processes at once; one per processor otherwise.")
@click.option("--losses", is_flag=True, help="Also print each pair's losses with the smallest example.")
@click.option(
    "--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Also write it as Markdown."
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write it as HTML.")
@shell.json_option
def matrix(
    families: tuple[str, ...],
    examples: int,
    processes: int | None,
    losses: bool,
    markdown: Path | None,
    html: Path | None,
    as_json: bool,
) -> int:
    """Measure what the installed SGLang's reasoning and tool-call parsers lose, family by family.

    Token streams are drawn inside each family's safe grammar, where all must be exact, and outside it, where
    every loss must have a name. Exits 1 when a stream inside a safe grammar was not exact.
    """
    from harness.matrix import run_matrix

    with Progress() as progress:
        report = run_matrix(families=families, examples=examples, processes=processes, on_event=progress)
    from harness.report import matrix as reports

    if markdown is not None:
        markdown.write_text("\n".join(reports.markdown(report)), encoding="utf-8")
    if html is not None:
        html.write_text(reports.html_page(report), encoding="utf-8")
    if as_json:
        shell.emit(report)
    else:
        reports.print_matrix(report, sys.stdout, losses=losses)
    return shell.HOLDS if all(row.exact == row.safe for row in report.rows) else shell.FINDINGS
