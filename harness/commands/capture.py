"""`shardgate capture`: prompts in, shards out, from a server that runs or one that it boots.

Place in the flow: outermost; calls `harness.recording`. Imports light modules at the top.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from contracts.errors import ShardgateError
from harness.commands import shell
from harness.commands.probe import checked_url
from harness.commands.progress import Progress

if TYPE_CHECKING:
    from harness.recording.plan import Summary
    from harness.server import Deployment


@click.command()
@click.argument("prompts", required=False, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--only",
    type=click.Path(exists=True, path_type=Path),
    metavar="QUARANTINE",
    help="In place of PROMPTS: generate the rows of a quarantine again, each as it was asked for.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="RUN",
    help="The run folder; one that is there is gone on with.",
)
@click.option(
    "--base-url",
    "base_urls",
    metavar="URL",
    multiple=True,
    help="A server that runs; again for further replicas of it, which share the run.",
)
@click.option("--deployment", metavar="NAME", help="A deployment to boot, restarted when it dies.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file of deployments; shardgate's own by default.",
)
@shell.flags_option
@click.option(
    "--transport",
    type=click.Choice(["generate", "chat"]),
    default="generate",
    show_default=True,
    help="`generate`: no parser in the way. `chat`: what an application would have seen.",
)
@click.option("--samples", type=click.IntRange(1, 999), default=1, show_default=True, help="Per prompt.")
@click.option(
    "--turns",
    type=click.Choice(["last", "each"]),
    default="last",
    show_default=True,
    help="Generate the last turn, or each assistant turn in its place.",
)
@click.option(
    "--sampling",
    metavar="JSON",
    default="{}",
    help='Sampling parameters by OpenAI\'s names, as \'{"temperature": 1, "max_tokens": 4096}\'; '
    "a row's own come first.",
)
@click.option("--template-kwargs", metavar="JSON", default="{}", help="Arguments of the chat template.")
@click.option("--logprobs", is_flag=True, help="Record the log-probability of each token.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    help="The model's tokenizer folder, where the model's own is not on this machine.",
)
@click.option(
    "--chat-template",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A Jinja file in place of the tokenizer's own template.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 16384),
    default=256,
    show_default=True,
    help="At most, for each server.",
)
@click.option("--fixed-concurrency", is_flag=True, help="Keep to it instead of adapting.")
@click.option("--attempts", type=click.IntRange(1), default=5, show_default=True, help="Tries per request.")
@click.option(
    "--slowest",
    type=click.FloatRange(min=0.01),
    default=5.0,
    show_default=True,
    metavar="TOKENS/S",
    help="A request may take --patience seconds, and its max_tokens at this rate.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=1),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="For a request's wait and prompt; a server that is silent for a quarter of it hangs.",
)
@click.option("--restarts", type=click.IntRange(0), default=3, show_default=True, help="Of a booted server.")
@click.option(
    "--wait-server",
    type=click.FloatRange(min=0),
    default=900.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a server that runs elsewhere may be away.",
)
@click.option("--shard-rows", type=click.IntRange(1), default=10_000, show_default=True, help="Rows a shard.")
@click.option("--skip-bad", is_flag=True, help="Record rows that are no prompts as failed, and go on.")
@click.option("--retry-failed", is_flag=True, help="Ask again for what failed in an earlier start.")
@click.option("--no-tripwire", is_flag=True, help="Go on whatever the first answers show.")
@click.option(
    "--cohort",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="How many prompts, the first asked for, the tripwire judges by.",
)
@click.option(
    "--max-drift",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Stop where more of the cohort's prompts are not the template's, or don't continue a turn.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="OpenMetrics on this port of loopback.")
@shell.key_option
@shell.trust_option
@shell.json_option
def capture(
    prompts: Path | None,
    only: Path | None,
    folder: Path,
    base_urls: tuple[str, ...],
    deployment: str | None,
    file: Path | None,
    flags: tuple[str, ...],
    transport: str,
    samples: int,
    turns: str,
    sampling: str,
    template_kwargs: str,
    concurrency: int,
    fixed_concurrency: bool,
    attempts: int,
    slowest: float,
    patience: float,
    shard_rows: int,
    no_tripwire: bool,
    as_json: bool,
    **same: Any,
) -> int:
    """Record what a server generates for PROMPTS: a .jsonl, .parquet or .arrow file, or a data set's folder.

    The same command again goes on where it was, after whatever ended it. Exits 1 when a generation failed
    for good or the tripwire stopped the run, 130 and 143 when Ctrl-C and SIGTERM did.
    """
    if (prompts is None) == (only is None):
        raise click.UsageError("give the prompts, PROMPTS or --only QUARANTINE")
    if only is not None and (turns == "each" or samples > 1 or sampling != "{}" or template_kwargs != "{}"):
        raise click.UsageError(
            "--only asks for rows as they were asked for: --turns, --samples, --sampling, --template-kwargs "
            "have no place beside it"
        )
    if (not base_urls) == (deployment is None):
        raise click.UsageError("give one server: --base-url URL, or --deployment NAME to boot")
    if no_tripwire and same["max_drift"] is not None:
        raise click.UsageError("--max-drift is the tripwire's, and --no-tripwire takes it away")
    if flags and base_urls:
        raise click.UsageError("--flags go to a server that is booted, and this one runs already")
    from harness.recording.generate import Patience
    from harness.recording.plan import Plan
    from harness.recording.prompts import Wanted
    from harness.recording.quarantine import find_quarantine
    from harness.recording.rowforms import openai_names
    from harness.recording.runner import capture as run
    from harness.recording.sources import find_source
    from harness.recording.store import Limits

    wait_server, restarts = same.pop("wait_server"), same.pop("restarts")
    wanted = Wanted(
        sampling=openai_names(_object(sampling, "--sampling")),
        template_kwargs=_object(template_kwargs, "--template-kwargs"),
        samples=samples,
        turns="each" if turns == "each" else "last",
        chat=transport == "chat",
    )
    urls = tuple(dict.fromkeys(checked_url(url, "--base-url") for url in base_urls))
    found = None if deployment is None else _deployment(deployment, file)
    if found is not None and found.url is not None:
        urls, found = (checked_url(found.filled().url or "", "--deployment"),), None
    source = find_source(prompts) if prompts is not None else find_quarantine(only or folder)
    plan = Plan(
        source=source,
        wanted=wanted,
        folder=folder,
        url=urls[0] if urls else None,
        replicas=urls[1:],
        deployment=found,
        flags=shell.flag_words(flags),
        concurrency=concurrency,
        adapt=not fixed_concurrency,
        patience=Patience(base=patience, slowest=slowest, attempts=attempts),
        health_seconds=patience / 4,
        restarts=restarts,
        wait_server=wait_server,
        tripwire=not no_tripwire,
        limits=Limits(rows=shard_rows),
        **same,
    )
    try:
        with Progress() as progress:
            summary = run(plan, progress)
    except ShardgateError:
        _page(folder)
        raise
    _page(folder)
    if as_json:
        shell.emit(summary)
    else:
        click.echo("\n".join(_told(summary)))
    if summary.signal:
        return 128 + summary.signal
    return shell.FINDINGS if summary.failed or summary.state == "tripped" else shell.HOLDS


def _page(folder: Path) -> None:
    """Write the run's page as the run stands now, however the start ended; it is no fault of the run's."""
    from harness.recording.standing import read_standing
    from harness.report.run_html import write_run_report

    try:
        if (folder / "run.json").is_file():
            write_run_report(read_standing(folder))
    except ShardgateError as error:
        click.echo(f"the run's page was not written: {error.what}", err=True)


def _object(text: str, given_by: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"no JSON: {error}", param_hint=given_by) from None
    if not isinstance(value, dict):
        raise click.BadParameter("not a JSON object", param_hint=given_by)
    return value


def _deployment(name: str, file: Path | None) -> Deployment:
    from harness.server import load_deployment

    found = load_deployment(name, file)
    if found.servers:
        raise click.UsageError(
            f"{name!r} is a group: start it with `shardgate serve {name}`, and give its --base-url"
        )
    return found


def _servers(summary: Summary) -> list[str]:
    """Return a line a server, where there are several."""
    from harness.report.text import safe

    if len(summary.servers) < 2:
        return []
    return [
        f"  {safe(url)}: {told['answers']} answers, {told['tokens']} tokens, {told['outages']} outages"
        + ("" if told["state"] == "up" else f"; {told['state']}: {safe(str(told.get('why', '')))}")
        for url, told in summary.servers.items()
    ]


def _compared(name: str, counts: Mapping[str, int]) -> list[str]:
    """Return what comparing prompts showed: the counts, and what each cause means."""
    from harness.recording.parity import CAUSES

    if not counts:
        return []
    told = ", ".join(f"{cause} {count}" for cause, count in counts.items())
    causes = [f"  {cause}: {CAUSES[cause]}" for cause in counts if cause in CAUSES]
    return [f"{name}: {told}" + ("; each in parity.jsonl" if causes else ""), *causes]


def _told(summary: Summary) -> list[str]:
    from harness.report.text import safe, seconds

    def counts(values: Any) -> str:
        return ", ".join(f"{safe(str(name))} {count}" for name, count in values.items()) or "none"

    asked = f"asked {summary.asked} = captured {summary.captured} + failed {summary.failed}"
    lines = [
        f"{summary.state}: {asked} + left {summary.left}",
        f"shards: {summary.shards} in {safe(summary.run_folder)}/shards",
        f"this start: {summary.tokens} tokens in {seconds(summary.seconds)}, {summary.retries} retries, "
        f"{summary.outages} outages of the server{'s' if len(summary.servers) > 1 else ''}",
        *_servers(summary),
        f"verdicts: {counts(summary.verdicts)}",
    ]
    if summary.losses:
        lines.append(f"losses: {counts(summary.losses)}")
    lines += _compared("prompts", summary.prompts) + _compared("turns", summary.turns)
    if summary.weight_updates:
        lines.append(f"the server's weights changed {summary.weight_updates} times; rows name their version")
    if summary.failures:
        lines.append(f"failed: {counts(summary.failures)}; each in {safe(summary.run_folder)}/failed.jsonl")
    if summary.recommendation is not None:
        lines += [
            "",
            f"stopped by the tripwire: {safe(summary.cause)}",
            safe(summary.recommendation.headline),
        ]
        lines += [f"- {safe(reason)}" for reason in summary.recommendation.reasons]
        lines.append("to go on all the same: the same command with --no-tripwire")
    elif summary.left:
        lines.append("the same command goes on from here")
    return lines
