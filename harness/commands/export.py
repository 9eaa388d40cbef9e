"""`shardgate export`: a certified set into the files that a trainer reads.

Place in the flow: outermost; calls `contracts.exporters`. Imports light modules at the top.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harness.commands import shell
from harness.commands.progress import Progress

FORMS = (
    "specforge-ids",
    "specforge",
    "speculators",
    "speculators-arrow",
    "torchspec",
    "automodel",
    "automodel-jsonl",
    "model-optimizer",
)
TEXTS = ("specforge", "torchspec", "automodel", "automodel-jsonl", "model-optimizer")


@click.command()
@click.argument(
    "sets", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="CERTIFIED"
)
@click.option("--to", "form", required=True, type=click.Choice(FORMS), help="Whose form, and which.")
@click.option(
    "-o", "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="A new folder."
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    help="The model's folder: a text form's rows are rendered with its template and compared with their ids.",
)
@click.option(
    "--uncertified", is_flag=True, help="Take shards that nothing certifies; no certificate is written."
)
@shell.trust_option
@shell.json_option
def export(
    sets: tuple[Path, ...],
    form: str,
    out: Path,
    tokenizer: Path | None,
    uncertified: bool,
    trust_remote_code: bool,
    as_json: bool,
) -> int:
    """Write the set CERTIFIED in a trainer's form, with a certificate that names its source.

    Forms of ids and mask are lossless. Of a text form's rows those are listed in differs.log whose
    rendering is not their ids; it needs --tokenizer. Exits 1 where there are such rows.
    """
    from contracts.exporters import export_rows
    from contracts.exporters.texts import renderer

    if form in TEXTS and tokenizer is None:
        raise click.UsageError(
            f"--to {form} needs --tokenizer: a trainer renders the texts anew, and only with the template "
            "can the rows be told that come out as other ids"
        )
    with Progress() as progress:
        render = None
        if form in TEXTS and tokenizer is not None:
            progress("tokenizer", {"message": str(tokenizer)})
            render = renderer(tokenizer, trust_remote_code=trust_remote_code)
        tell = _rows(progress)
        result = export_rows(
            form, list(sets), out, certified=not uncertified, render=render, on_progress=tell
        )
    if as_json:
        shell.emit(result)
    else:
        _print(result)
    return shell.FINDINGS if result.differing else shell.HOLDS


def _rows(progress: Progress) -> Any:
    import time

    begun = time.monotonic()

    def tell(name: str, rows: int, total: int) -> None:
        rate = rows / max(time.monotonic() - begun, 1e-3)
        progress("export", {"message": f"rows, {rate:.0f}/s", "done": rows, "total": total or None})

    return tell


def _print(result: Any) -> None:
    from harness.report.text import safe

    click.echo(f"{result.rows} rows as {result.form} in {result.folder}: {', '.join(result.files)}")
    click.echo(f"certificate: {result.certificate or 'none, the source was not certified'}")
    if result.differing:
        click.echo(f"{result.differing} rows are rendered to other ids; all are in differs.log, the first:")
        for one in result.first_differing:
            at = f"{one['part']}, token {one['token']}" if "part" in one else ""
            click.echo(f"  row {one['row']} ({safe(one['sample_id'])}): {safe(one['why'])} {at}")
