"""`shardgate diff`: one stored row, its raw tokens beside those that its fields give back.

Place in the flow: outermost; calls `contracts` and the reports. Imports light modules at the top.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from contracts.errors import ShardgateError
from harness.commands import shell


@click.command()
@click.argument("shard", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("row", metavar="ROW")
@click.option(
    "--tokenizer", type=click.Path(exists=True, path_type=Path), help="The model's tokenizer folder."
)
@click.option("--all", "whole", is_flag=True, help="Show every token, not only those near a difference.")
@shell.trust_option
@shell.json_option
def diff(
    shard: Path, row: str, tokenizer: Path | None, whole: bool, trust_remote_code: bool, as_json: bool
) -> int:
    """Show where the fields of ROW (its number from 0, or its sample_id) of SHARD leave its tokens.

    Exits 1 when they do; the verdict and the named losses stand above the tokens.
    """
    from contracts.align import align
    from contracts.formats import format_named
    from contracts.rules.fidelity import judge_row
    from contracts.tokens import load_codec
    from harness.commands.audit import recorded_tokenizer

    found = tokenizer or recorded_tokenizer((shard,))
    if found is None:
        raise ShardgateError(
            "the tokens can't be read without a tokenizer",
            where=str(shard),
            why="the model folder that the rows name is not on this machine, or has another tokenizer",
            remedy="pass --tokenizer PATH, the model's folder or its tokenizer.json",
        )
    stored, name = stored_row(shard, row)
    fmt = format_named(name)
    if fmt is None:
        raise ShardgateError(
            "the shard's format is not known",
            where=str(shard),
            why=f"its metadata says {name!r}",
            remedy="run `shardgate audit` on it first",
        )
    codec = load_codec(found, trust_remote_code=trust_remote_code)
    judgement = judge_row(stored, fmt, codec)
    lines = align(stored["response_token_ids"] or (), judgement, codec)
    if as_json:
        shell.emit({"judgement": judgement, "tokens": [asdict(line) for line in lines]})
    else:
        from harness.report.token_diff import print_diff

        print_diff(lines, judgement, sys.stdout, whole=whole)
    return shell.HOLDS if all(line.same for line in lines) else shell.FINDINGS


def stored_row(shard: Path, row: str) -> tuple[dict[str, Any], str]:
    """Return the row of a shard by number or sample id, and the format that the shard names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from contracts.shard import METADATA_PREFIX

    try:
        with pq.ParquetFile(shard) as file:
            said = file.schema_arrow.metadata or {}
            fmt = said.get(f"{METADATA_PREFIX}format".encode(), b"").decode("utf-8", "replace")
            first = 0
            for index in range(file.num_row_groups):
                group = file.read_row_group(index, columns=["sample_id"])
                ids = group["sample_id"].to_pylist()
                at = int(row) - first if row.isdecimal() else ids.index(row) if row in ids else -1
                if 0 <= at < len(ids):
                    return file.read_row_group(index).slice(at, 1).to_pylist()[0], fmt
                first += len(ids)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise ShardgateError(
            "the shard can't be read",
            where=str(shard),
            why=" ".join(str(error).split())[:200],
            remedy="run `shardgate audit` on it; it tells what is wrong with the file",
        ) from error
    raise ShardgateError(
        f"the shard has no row {row!r}",
        where=str(shard),
        why=f"it has {first} rows, numbered from 0; a sample_id will do too",
        remedy="take the row's number from the audit's finding",
    )
