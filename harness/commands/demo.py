"""`shardgate demo`: the whole job on this machine.

Place in the flow: outermost; calls `harness.pipeline` and the reports. Imports light modules at the top.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from harness.commands import shell
from harness.commands.progress import Progress


@click.command()
@click.option(
    "--run-folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="Where shards, certificate, report and server log go.",
)
@shell.json_option
def demo(run_folder: Path, as_json: bool) -> int:
    """Boot a real SGLang here, run the golden prompts through it, certify the shards, tell what follows.

    Exits 0 when every outcome is the one that its golden prompt expects.
    """
    from harness import pipeline

    with Progress() as progress:
        report = pipeline.run_demo(run_folder, on_event=progress)
    if as_json:
        shell.emit(report)
    else:
        from harness.report.terminal import print_report

        print_report(report, sys.stdout)
    # A set without a certificate or an answer missing is as much a finding as a verdict not expected.
    wrong = [outcome for outcome in report.results if outcome.expected is False or outcome.fault is not None]
    held = bool(report.results) and not wrong and report.certificate is not None
    return shell.HOLDS if held else shell.FINDINGS
