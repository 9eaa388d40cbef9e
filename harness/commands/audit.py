"""`shardgate audit`: shards in, findings out, a certificate when asked for.

Place in the flow: outermost; calls `contracts.run` and the reports. Imports light modules at the top.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import click

from contracts.records import Profile
from harness.commands import shell
from harness.commands.progress import Progress


@click.command()
@click.argument("shards", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
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
@click.option(
    "--strength",
    type=click.Choice(["token", "text"]),
    default="token",
    show_default=True,
    help="The contract: with the engine's token ids, or the declared text-only one.",
)
@click.option("--waive", multiple=True, metavar="RULE", help="Waive a rule; each needs its --reason.")
@click.option(
    "--reason", multiple=True, metavar="TEXT", help="Why the rule is waived; the certificate says so."
)
@shell.trust_option
@shell.json_option
def audit(
    shards: tuple[Path, ...],
    tokenizer: Path | None,
    profile: str,
    certify: Path | None,
    strength: Literal["token", "text"],
    waive: tuple[str, ...],
    reason: tuple[str, ...],
    trust_remote_code: bool,
    as_json: bool,
) -> int:
    """Check SHARDS (parquet files or folders of them) against the contract; read-only without --certify.

    Exits 1 when a rule with the severity `error` was broken. Without --tokenizer the model folder that the
    rows name is used, if it is on this machine and its tokenizer is the recorded one; where there is none,
    the rules that compare ids with text stay unchecked, and that is told.
    """
    if len(waive) != len(reason) or not all(text.strip() for text in reason):
        raise click.UsageError("each --waive RULE needs its own --reason TEXT, which the certificate keeps")
    from contracts.run import audit as audit_shards

    with Progress() as progress:
        codec = None
        found = tokenizer or recorded_tokenizer(shards)
        if found is not None:
            from contracts.tokens import load_codec

            progress("tokenizer", {"message": str(found)})
            codec = load_codec(found, trust_remote_code=trust_remote_code)
        result = audit_shards(
            shards,
            profile=profile,
            codec=codec,
            certify=certify,
            waivers=dict(zip(waive, reason, strict=True)),
            strength=strength,
            on_progress=_rows(progress, shards),
        )
    if as_json:
        shell.emit(result)
    else:
        from harness.report.terminal import print_findings

        print_findings(result, sys.stdout)
    return shell.FINDINGS if result.errors else shell.HOLDS


def recorded_tokenizer(shards: tuple[Path, ...]) -> Path | None:
    """Return the model folder that the shards name, where it has the very tokenizer they were made with."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    from contracts.run import expand
    from contracts.tokens import tokenizer_sha256

    columns = ["target_model", "tokenizer_sha256"]
    for path in expand(shards):
        if not path.is_file():
            continue
        try:
            first = next(parquet.ParquetFile(path).iter_batches(batch_size=1, columns=columns), None)
            row = first.to_pylist()[0] if first is not None and first.num_rows else {}
        except (OSError, ValueError, pa.ArrowException):
            continue  # the audit tells what is wrong with the file
        folder = Path(str(row.get("target_model") or ""))
        if (
            folder.is_absolute()
            and folder.is_dir()
            and tokenizer_sha256(folder) == row.get("tokenizer_sha256")
        ):
            return folder
    return None


def _rows(progress: Progress, shards: tuple[Path, ...]) -> Callable[[str, int], None]:
    """Return what tells the rows read so far, of all where the files' own counts are known."""
    from contracts.run import expand

    try:
        import pyarrow.parquet as parquet

        total: int | None = sum(
            parquet.read_metadata(path).num_rows for path in expand(shards) if path.is_file()
        )
    except (OSError, ValueError):
        # Not this function's to tell: the audit finds the broken file.
        total = None
    read: dict[str, int] = {}

    def tell(name: str, rows: int) -> None:
        read[name] = rows
        progress("audit", {"message": f"rows, {Path(name).name}", "done": sum(read.values()), "total": total})

    return tell
