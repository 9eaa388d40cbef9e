"""`shardgate verify`: a certificate against the shards that it speaks of.

Place in the flow: outermost; calls `contracts.loader`. At the top it imports light modules only.
"""

from __future__ import annotations

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
    from contracts import loader

    result = loader.verify(path)
    if as_json:
        shell.emit(result)
    return shell.HOLDS
