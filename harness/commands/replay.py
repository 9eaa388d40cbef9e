"""`shardgate replay`: asks the model on a server whether it made the tokens that shards hold.

Place in the flow: outermost; calls `harness.replay`. Imports light modules at the top.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.commands import shell
from harness.commands.probe import checked_url
from harness.commands.progress import Progress

if TYPE_CHECKING:
    from harness.replay.result import Result

_PATH = click.Path(path_type=Path)


class _Count(click.ParamType[int | None]):
    """A number of rows, or `all`."""

    name = "N|all"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value == "all":
            return -1
        try:
            count = int(value)
        except ValueError:
            count = 0
        if count < 1 and value != -1:
            self.fail(f"{value!r} is neither a number of rows nor `all`", param, ctx)
        return count


@click.command()
@click.argument("shards", nargs=-1, required=True, type=_PATH)
@click.option("--base-url", required=True, metavar="URL", help="The server with the model to ask.")
@click.option(
    "--sample",
    type=_Count(),
    default=64,
    show_default=True,
    help="How many rows to ask about, over all shards; chosen by content.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed chooses other rows.")
@click.option(
    "--reference",
    multiple=True,
    type=_PATH,
    metavar="SHARDS",
    help="Learn the thresholds from rows captured on this server; otherwise some are generated.",
)
@click.option(
    "--reference-rows", type=click.IntRange(8), default=64, show_default=True, help="To learn from."
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Where the record goes; replay.json beside the shards by default.",
)  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1, 4096), default=16, show_default=True, help="At most.")
@click.option("--attempts", type=click.IntRange(1), default=4, show_default=True, help="Tries per request.")
@click.option(
    "--patience",
    type=click.FloatRange(min=1),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="For one answer, and a second for each 50 ids.",
)
@click.option(
    "--tokenizer", type=_PATH, help="The model's tokenizer folder, where the server is on another machine."
)
@shell.key_option
@shell.trust_option
@shell.json_option
def replay(
    shards: tuple[Path, ...],
    base_url: str,
    sample: int,
    reference_rows: int,
    output: Path | None,
    attempts: int,
    patience: float,
    tokenizer: Path | None,
    trust_remote_code: bool,
    as_json: bool,
    **same: Any,
) -> int:
    """Ask the model whether it made the tokens in SHARDS (parquet files or folders of them).

    Exits 1 when a row is not as likely to this model as its own responses, or all rows together are not.
    """
    url = checked_url(base_url, "--base-url")
    for path in (*shards, *same["reference"]):
        from harness.commands.audit_inputs import there

        there(path, "shards", "give parquet files, or folders that hold some")
    from contracts.replayed import FILE_NAME, write_replay
    from harness.replay import Plan
    from harness.replay import replay as ask_model
    from harness.replay.ask import Patience
    from harness.report.files import check_writable

    folder = shards[0] if shards[0].is_dir() else shards[0].parent
    target = output or folder / FILE_NAME
    check_writable(target, "record")
    with Progress() as progress:
        vocabulary = None
        if tokenizer is not None:
            from contracts.tokens import load_codec

            progress("tokenizer", {"message": str(tokenizer)})
            vocabulary = load_codec(tokenizer, trust_remote_code=trust_remote_code).vocab_size
        plan = Plan(
            shards=shards,
            url=url,
            sample=None if sample < 0 else sample,
            references=reference_rows,
            patience=Patience(base=patience, attempts=attempts),
            vocabulary=vocabulary,
            **same,
        )
        result = ask_model(plan, progress)
        record = result.record(target.parent)
        write_replay(target, record)
        progress.say(f"record: {target}")
    if as_json:
        shell.emit({**record, "record": str(target)})
    else:
        click.echo("\n".join(_told(result, target)))
    return shell.HOLDS if result.verdict == "consistent" else shell.FINDINGS


def _told(result: Result, target: Path) -> list[str]:
    from harness.replay.calibrate import VERDICTS
    from harness.replay.result import SET_VERDICTS
    from harness.report.text import safe

    total = sum(shard.rows for shard in result.shards)
    asked = f"{len(result.replayed):,} of {total:,} rows in {len(result.shards)} shards were replayed"
    good = len(result.replayed) - len(result.wrong)
    lines = [
        f"{result.verdict.upper()}: {SET_VERDICTS[result.verdict]}",
        f"{asked}, {good:,} consistent; thresholds from {len(result.reference.rows)} rows "
        f"{'generated on the server' if result.reference.kind == 'server' else 'of --reference'}",
    ]
    lines += [f"server: {safe(str(one))}" for one in result.server.differences]
    if result.not_replayed:
        told = ", ".join(f"{count} {safe(reason)}" for reason, count in result.not_replayed.most_common())
        lines.append(f"not replayed: {told}")
    for verdict, count in result.verdicts.most_common():
        if verdict != "consistent":
            lines.append(f"{verdict}: {count} rows: {VERDICTS[verdict]}")
    for row in result.wrong[:10]:
        why = row.cause or ", ".join(_score(row, name) for name in row.beyond)
        lines.append(f"  {safe(row.shard)} row {row.row} ({safe(row.sample_id)}): {row.verdict}; {safe(why)}")
    if len(result.wrong) > 10:
        lines.append(f"  and {len(result.wrong) - 10} more; the record has all")
    for test in result.tests:
        if test.shifted:
            lines.append(
                f"all rows: {test.score} ranks above the reference's in {test.above:.0%} of pairs "
                f"(p {test.p:.1g}); middle {test.middle:.4g}, reference {test.reference:.4g}"
            )
    lines.append(f"record: {safe(str(target))}")
    return lines


def _score(row: Any, name: str) -> str:
    return f"{name} {row.scores.value(name):.4g}"
