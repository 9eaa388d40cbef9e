"""`shardgate verify`: a certificate against the files that it speaks of.

Place in the flow: outermost; calls `contracts.verifying`. Imports light modules at the top.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from harness.commands import shell


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path), metavar="CERTIFIED")
@click.option(
    "--public-key",
    "public_keys",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file; the certificate must be signed by this key, or by one of several.",
)
@click.option(
    "--no-quarantine", is_flag=True, help="Only the certified files were copied along; do not ask for others."
)
@click.option("--sources", is_flag=True, help="Check what the rows came from too, where it lies.")
@click.option("--rows", is_flag=True, help="Read all rows again and account for them by digest.")
@shell.json_option
def verify(
    path: Path,
    public_keys: tuple[Path, ...],
    no_quarantine: bool,
    sources: bool,
    rows: bool,
    as_json: bool,
) -> int:
    """Check the files of the folder CERTIFIED (or its certificate.json) against their certificate.

    Exits 1 when a file is missing, altered, added or not certified, when quarantined rows are gone, or when a
    public key was given and the certificate is not signed by it.
    """
    from contracts.certificate import CertificateAltered
    from contracts.verifying import verify as verify_set

    try:
        result = verify_set(
            path, public_keys=public_keys, quarantine=not no_quarantine, sources=sources, rows=rows
        )
    except CertificateAltered as error:
        # The certificate itself does not hold: what was asked about, not a wrong use.
        shell.fail(error, as_json)
        return shell.FINDINGS
    if as_json:
        shell.emit(result)
    else:
        from harness.report.terminal import print_verified

        print_verified(result, sys.stdout)
    return shell.HOLDS if result.ok else shell.FINDINGS
