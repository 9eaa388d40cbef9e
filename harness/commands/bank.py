"""`shardgate bank`: the counterexamples replayed through the installed SGLang, and changed ones accepted.

Place in the flow: outermost; calls `harness.bank` and the reports. Imports light modules at the top.
"""

from __future__ import annotations

from pathlib import Path

import click

from harness.commands import shell


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--accept", "accepting", is_flag=True, help="Write what these cases showed to their files.")
@click.option("--all", "every", is_flag=True, help="With --accept: every case that changed.")
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Another bank than shardgate's own; the same form of files.",
)
@shell.json_option
def bank(names: tuple[str, ...], accepting: bool, every: bool, folder: Path | None, as_json: bool) -> int:
    """Replay the bank of counterexamples: does the installed SGLang lose what it lost when each was recorded?

    NAME is a case's name; without one, all are replayed. Exits 1 when a verdict or its losses changed: SGLang
    mended something, or broke it.
    """
    if every and not accepting:
        raise click.UsageError("--all goes with --accept; without it, all cases are replayed anyway")
    if accepting and bool(names) == every:
        raise click.UsageError("--accept needs the cases' names, or --all")
    from harness import bank as counterexamples
    from harness.report.bank import difference, summary

    if accepting:
        chosen = names or tuple(counterexamples.load_bank(folder))
        outcomes = counterexamples.accept(chosen, folder=folder)
    else:
        outcomes = counterexamples.replay(names, folder=folder)
    if as_json:
        shell.emit(outcomes)
    else:
        for outcome in outcomes:
            if outcome.changed:
                click.echo(difference(outcome).rpartition("\n")[0] if accepting else difference(outcome))
        click.echo(summary(outcomes, accepted=accepting))
    return shell.FINDINGS if not accepting and any(o.changed for o in outcomes) else shell.HOLDS
