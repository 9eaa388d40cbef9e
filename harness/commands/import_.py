"""`shardgate import`: data from elsewhere into shards.

Place in the flow: outermost; calls `contracts.importers`. Imports light modules at the top.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from harness.commands import shell
from harness.commands.progress import Progress

KINDS = ("specforge", "speculators", "torchspec", "automodel")


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--from", "kind", required=True, type=click.Choice(KINDS), help="Who wrote the files.")
@click.option(
    "-o", "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="A new folder."
)
@click.option("--format", "family", required=True, metavar="FAMILY", help="The model family, as kimi_k2.")
@click.option(
    "--tokenizer", type=click.Path(exists=True, path_type=Path), help="The model's folder; ids need it."
)
@click.option("--model", metavar="NAME", help="The model that generated the rows.")
@click.option("--revision", metavar="REV", help="Its revision.")
@click.option("--engine", metavar="NAME", help="What served it, as sglang.")
@click.option("--engine-version", metavar="VERSION", help="The engine's version.")
@click.option("--reasoning-parser", metavar="NAME", help="The server's; `none` where it had none.")
@click.option("--tool-parser", metavar="NAME", help="The server's; `none` where it had none.")
@click.option("--weight-version", metavar="TEXT", help="Which weights were served.")
@click.option("--sampling", metavar="JSON", help="The request's parameters, as '{\"temperature\": 1.0}'.")
@click.option("--dataset", metavar="NAME", help="The rows' source; by default each file's own name.")
@click.option("--thinking/--instant", "thinking", default=None, help="What the prompts asked for.")
@click.option("--every-turn", is_flag=True, help="A row for each assistant turn, not for the last alone.")
@shell.trust_option
@shell.json_option
def import_(
    files: tuple[Path, ...],
    kind: str,
    out: Path,
    family: str,
    tokenizer: Path | None,
    sampling: str | None,
    dataset: str | None,
    thinking: bool | None,
    every_turn: bool,
    trust_remote_code: bool,
    as_json: bool,
    **provenance: str | None,
) -> int:
    """Read FILES (folders too) into shards under a new folder, each record accounted for.

    Rows with ids get the strength `token`, rows without `text`. What no flag tells is `unknown`, and the
    audit says so. Exits 1 where a record was refused; refused.jsonl names its file and line.
    """
    from contracts.formats import FORMATS, format_named
    from contracts.importers import ImportOptions, import_files
    from contracts.tokens import load_codec, tokenizer_sha256

    found = format_named(family)
    if found is None:
        raise click.BadParameter(
            f"no family of that name; known are {', '.join(FORMATS)}", param_hint="--format"
        )
    named = {_COLUMNS[key]: value for key, value in provenance.items() if value}
    with Progress() as progress:
        codec = None
        if tokenizer is not None:
            progress("tokenizer", {"message": str(tokenizer)})
            codec = load_codec(tokenizer, trust_remote_code=trust_remote_code)
            named["tokenizer_sha256"] = codec.sha256 or tokenizer_sha256(tokenizer) or ""
        options = ImportOptions(
            format=found,
            codec=codec,
            dataset=dataset,
            provenance=named,
            sampling=_json_object(sampling),
            thinking=thinking,
            every_turn=every_turn,
        )
        result = import_files(kind, files, out, options, on_progress=rated(progress, "import"))
    if as_json:
        shell.emit(result)
    else:
        _print(result)
    return shell.FINDINGS if result.refused else shell.HOLDS


_COLUMNS = {
    "model": "target_model",
    "revision": "target_revision",
    "engine": "engine",
    "engine_version": "engine_version",
    "reasoning_parser": "reasoning_parser",
    "tool_parser": "tool_parser",
    "weight_version": "weight_version",
}


def _json_object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise click.BadParameter("not a JSON object", param_hint="--sampling")
    return value


def rated(progress: Progress, phase: str) -> Callable[[str, int, int], None]:
    """Return what tells how many records went through, and how many a second."""
    begun = time.monotonic()

    def tell(name: str, records: int, rows: int) -> None:
        rate = records / max(time.monotonic() - begun, 1e-3)
        progress(phase, {"message": f"{records} records, {rows} rows, {rate:.0f}/s, {Path(name).name}"})

    return tell


def _print(result: Any) -> None:
    click.echo(
        f"{result.records} records: {result.imported} imported as {result.rows} rows, "
        f"{result.refused} refused, "
        f"{result.failed} failed and {result.skipped} skipped where they were made"
    )
    click.echo(
        f"{len(result.shards)} shards of {result.format}, strength {result.strength}, in {result.folder}"
    )
    if result.unknown:
        click.echo(f"unknown: {', '.join(result.unknown)}")
    from harness.report.text import safe

    if result.unread:
        names = ", ".join(f"{safe(name)} ({count})" for name, count in result.unread.items())
        click.echo(f"not read, for a row has no place for it: {names}")
    for one in result.first_refused:
        click.echo(f"  {safe(one.file)}:{one.line}: {one.kind}: {safe(one.reason)}")
    told = result.refused + result.failed + result.skipped
    if told > len(result.first_refused):
        click.echo(f"  and {told - len(result.first_refused)} more, in refused.jsonl")
