"""`shardgate repair`: rows mended where that can be proven.

Place in the flow: outermost; calls `contracts.repair`. Imports light modules at the top.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import click

from contracts.records import Profile
from harness.commands import shell
from harness.commands.progress import Progress

ASSUMPTIONS = ("opener-missing", "tags-doubled")


@click.command()
@click.argument("shards", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o", "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="A new folder."
)
@click.option(
    "--tokenizer", type=click.Path(exists=True, path_type=Path), help="The model's folder; ids need it."
)
@click.option(
    "--profile",
    type=click.Choice([str(profile) for profile in Profile]),
    default=str(Profile.DRAFT),
    show_default=True,
    help="What the rows are for; sets which rules are errors.",
)
@click.option("--strength", type=click.Choice(["token", "text"]), default="token", show_default=True)
@click.option(
    "--assume",
    multiple=True,
    type=click.Choice(ASSUMPTIONS),
    help="Mend texts without ids on this assumption; such rows are marked, and certified only if waived.",
)
@shell.trust_option
@shell.json_option
def repair(
    shards: tuple[Path, ...],
    out: Path,
    tokenizer: Path | None,
    profile: str,
    strength: Literal["token", "text"],
    assume: tuple[str, ...],
    trust_remote_code: bool,
    as_json: bool,
) -> int:
    """Mend the rows of SHARDS (parquet files, folders, a quarantine/) whose right values can be proven.

    What breaks no rule is taken over as it is; what can't be proven is left as it is, with the reason: such
    rows should be generated again. Audit the new folder before training. Exits 1 where rows were left.
    """
    from contracts.repair import repair as repair_shards
    from harness.commands.audit import recorded_tokenizer

    with Progress() as progress:
        codec = None
        found = tokenizer or (recorded_tokenizer(shards) if strength == "token" else None)
        if found is not None:
            from contracts.tokens import load_codec

            progress("tokenizer", {"message": str(found)})
            codec = load_codec(found, trust_remote_code=trust_remote_code)
        begun = time.monotonic()

        def tell(name: str, rows: int, mended: int) -> None:
            rate = rows / max(time.monotonic() - begun, 1e-3)
            progress(
                "repair", {"message": f"{rows} bad rows, {mended} mended, {rate:.0f}/s, {Path(name).name}"}
            )

        result = repair_shards(
            shards, out, codec=codec, profile=profile, strength=strength, assume=assume, on_progress=tell
        )
    if as_json:
        shell.emit(result)
    else:
        _print(result)
    return shell.FINDINGS if result.left or result.files_left else shell.HOLDS


def _print(result: Any) -> None:
    from harness.report.text import safe

    click.echo(
        f"{result.rows} rows: {result.held} held, {result.mended} mended, {result.left} left as they are"
    )
    for proof, count in result.by_proof.items():
        click.echo(f"  {count} mended, proven by: {proof}")
    if result.files_left:
        click.echo(f"{result.files_left} files were left as a whole")
    for one in result.first_left:
        where = safe(one.shard) + ("" if one.row is None else f", row {one.row}")
        click.echo(f"  {where}: {safe(one.reason)}")
    if result.left:
        click.echo("left rows are in left/, with a reason each; generating them again is the one sure remedy")
    click.echo(f"next: shardgate audit {safe(result.folder)}")
