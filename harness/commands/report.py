"""`shardgate report`: a capture run as a page, as it stands.

Place in the flow: outermost; reads the run folder through `harness.recording.standing`. Imports light modules
at the top.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from contracts.errors import ShardgateError
from harness.commands import shell

if TYPE_CHECKING:
    from harness.report.audit_html import Example
    from harness.standing import Standing


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page; RUN/report.html by default.",
)
@click.option(
    "--examples", is_flag=True, help="Show the tokens of some rows: what the model said is on the page then."
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    help="For --examples, where the model's own tokenizer is not on this machine.",
)
@shell.trust_option
@shell.json_option
def report(
    folder: Path,
    path: Path | None,
    examples: bool,
    tokenizer: Path | None,
    trust_remote_code: bool,
    as_json: bool,
) -> int:
    """Write the page of the capture run in RUN, while it goes on or after it.

    Every start of `shardgate capture` ends by writing it. No prompt and no answer is on it unless asked for.
    """
    from harness.recording.standing import read_standing
    from harness.report.run_html import write_run_report

    run = read_standing(folder)
    shown = _examples(run, tokenizer, trust_remote_code) if examples else []
    written = write_run_report(run, path, shown)
    if as_json:
        shell.emit({"report": written, "examples": len(shown)})
    else:
        click.echo(f"written: {written}")
    return shell.HOLDS


def _examples(run: Standing, tokenizer: Path | None, trust_remote_code: bool) -> list[Example]:
    from contracts.tokens import load_codec
    from harness.commands.examples import examples_at

    places = [
        (str(run.folder / "shards" / file), row, f"the loss {loss}")
        for loss, found in run.counts.examples.items()
        for file, row in found[:1]
    ]
    if not places:
        return []
    return examples_at(places, load_codec(tokenizer or _own(run), trust_remote_code=trust_remote_code))


def _own(run: Standing) -> Path:
    """Return the folder of the model's own tokenizer. Raises `ShardgateError` where it is not here."""
    from contracts.records import ServerFacts
    from harness.recording.rendering import tokenizer_folder

    model = str(run.settings.get("model", ""))
    flags = {"tokenizer_path": run.settings.get("flag tokenizer_path")}
    revision = run.settings.get("revision")
    facts = ServerFacts(base_url=run.server, model=model, revision=revision, flags=flags)
    try:
        return tokenizer_folder(None, facts)
    except ShardgateError as error:
        error.remedy = "give its folder (--tokenizer PATH), or leave --examples out"
        raise
