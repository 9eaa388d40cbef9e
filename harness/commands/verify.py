"""`shardgate verify`: a certificate against the shards that it speaks of.

Place in the flow: outermost; calls `contracts.loader`. Imports light modules at the top.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from harness.commands import shell


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path), metavar="CERTIFIED")
@shell.json_option
def verify(path: Path, as_json: bool) -> int:
    """Check the shards of the folder CERTIFIED (or its certificate.json) against their certificate.

    Exits 1 when a shard is missing, altered, added or not certified.
    """
    from contracts.certificate import CertificateAltered
    from contracts.loader import verify as verify_set

    try:
        result = verify_set(path)
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
