"""`shardgate derive`: new shards, and their certificate, from certified sets.

Place in the flow: outermost; calls `contracts.deriving`. Imports light modules at the top.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from harness.commands import shell


def _shares(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, float]:
    out: dict[str, float] = {}
    for text in texts:
        name, equals, share = text.partition("=")
        try:
            value = float(share)
        except ValueError:
            value = float("nan")
        if not equals or not 0 < value <= 1:
            raise click.BadParameter(f"{text!r} is not NAME=SHARE, with a share above 0 and at most 1")
        if name in out:
            raise click.BadParameter(f"the part {name!r} is there twice")
        out[name] = value
    return out


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="The folder to write into."
)
@click.option(
    "--filter", "condition", metavar="SQL", help="Keep the rows that fulfil this condition on their columns."
)
@click.option("--take", type=click.IntRange(min=1), metavar="N", help="Keep N rows, drawn by the seed.")
@click.option("--fraction", type=float, metavar="F", help="Keep this share of the rows, drawn by the seed.")
@click.option(
    "--split",
    multiple=True,
    metavar="NAME=SHARE",
    callback=_shares,
    help="Write a set per NAME into a folder of its own; once for each part.",
)
@click.option(
    "--by",
    type=click.Choice(["conversation", "prompt"]),
    default="conversation",
    show_default=True,
    help="What no split may part: rows of one prompt, or of one prompt or conversation.",
)
@click.option("--shuffle", is_flag=True, help="Put all rows in a new order, the seed's.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Draws and orders.")
@click.option(
    "--rows-per-shard", type=click.IntRange(min=1), default=50_000, show_default=True, help="Rows in a file."
)
@click.option(
    "--rows-per-group",
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    help="Rows in a row group, the least that a rank reads and hashes.",
)
@click.option(
    "--public-key",
    "public_keys",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file; the sources must be signed by this key, or by one of several.",
)
@shell.json_option
def derive(
    sources: tuple[Path, ...],
    out: Path,
    condition: str | None,
    take: int | None,
    fraction: float | None,
    split: dict[str, float],
    by: Literal["conversation", "prompt"],
    shuffle: bool,
    seed: int,
    rows_per_shard: int,
    rows_per_group: int,
    public_keys: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Make new shards from the certified sets SOURCES: merged, then filtered, subsampled, split and shuffled.

    The new set gets a certificate that names its sources' certificates, what was done, and the seed. Sets
    without a certificate, or not as it says, are refused. Exits 1 when a source does not hold.
    """
    from contracts.certificate import CertificateError, CertificateMissing
    from contracts.deriving import Derivation
    from contracts.deriving import derive as derive_sets

    what = Derivation(
        condition=condition,
        rows=take,
        fraction=fraction,
        split=split or None,
        by=by,
        shuffle=shuffle,
        seed=seed,
        rows_per_shard=rows_per_shard,
        rows_per_group=rows_per_group,
    )
    try:
        sets = derive_sets(sources, out, what, public_keys=public_keys)
    except CertificateMissing:
        raise
    except CertificateError as error:
        shell.fail(error, as_json)
        return shell.FINDINGS
    if as_json:
        shell.emit([found.to_json() for found in sets])
    else:
        for found in sets:
            note = f" ({found.note})" if found.note else ""
            click.echo(f"{found.rows} rows in {found.shards} shards: {found.certificate}{note}")
    return shell.HOLDS
