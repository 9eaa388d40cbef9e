"""`shardgate audit`: shards in, findings out, a certificate when asked for.

Place in the flow: outermost; calls `contracts.audit` and the reports. At the top it imports light modules only.
"""

from __future__ import annotations

from pathlib import Path

import click

from contracts.records import Profile
from harness.commands import shell


@click.command()
@click.argument("shards", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--tokenizer", type=click.Path(exists=True, path_type=Path), help="The model's tokenizer folder."
)
@click.option(
    "--profile",
    type=click.Choice([str(profile) for profile in Profile]),
    default=str(Profile.DRAFT),
    show_default=True,
    help="What the rows are for; sets the rules' severities.",
)
@click.option(
    "--certify",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Certify the good rows into DIR and quarantine the bad ones there; without it nothing is written.",
)
@click.option("--waive", multiple=True, metavar="RULE", help="Waive a rule; each needs its --reason.")
@click.option(
    "--reason", multiple=True, metavar="TEXT", help="Why the rule is waived; the certificate says so."
)
@shell.json_option
def audit(
    shards: tuple[Path, ...],
    tokenizer: Path | None,
    profile: str,
    certify: Path | None,
    waive: tuple[str, ...],
    reason: tuple[str, ...],
    as_json: bool,
) -> int:
    """Check SHARDS (parquet files or folders of them) against the contract; read-only without --certify.

    Exits 1 when a rule that holds rows back was broken.
    """
    if len(waive) != len(reason) or not all(text.strip() for text in reason):
        raise click.UsageError("each --waive RULE needs its own --reason TEXT, which the certificate keeps")
    raise NotImplementedError
