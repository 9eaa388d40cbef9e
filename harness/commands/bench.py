"""`shardgate bench`: what the modes cost on the server at hand, or what recording costs.

Place in the flow: outermost; calls `harness.benching`. Imports light modules at the top.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from contracts.errors import ShardgateError
from harness.commands import shell
from harness.commands.probe import checked_url
from harness.commands.progress import Progress

if TYPE_CHECKING:
    from contracts.records import ServerFacts
    from harness.server import BootProgress

MODES = ("generate", "raw", "reasoning", "tools")


def _numbers(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1 or max(found) > 4096:
        raise click.BadParameter(f"{text!r} is no list of whole numbers from 1 to 4096, such as 1,8,32")
    return tuple(dict.fromkeys(found))


def _modes(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    wrong = [word for word in found if word not in MODES]
    if wrong or len(found) < 2:
        raise click.BadParameter(f"{text!r}: give two or more of {', '.join(MODES)}")
    return found


def _even(context: click.Context, parameter: click.Parameter, value: int) -> int:
    if value % 2:
        raise click.BadParameter(
            f"{value} is odd: every second repeat goes backwards through the modes, so that a drift cancels"
        )
    return value


@click.command()
@click.option("--base-url", metavar="URL", help="A server that runs.")
@click.option("--deployment", metavar="NAME", help="A deployment to boot for the bench.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file of deployments; shardgate's own by default.",
)
@shell.flags_option
@click.option(
    "--capture",
    "recording",
    is_flag=True,
    help="Measure `shardgate capture` against SGLang's own bench_serving instead of the modes.",
)
@click.option(
    "--concurrency",
    "concurrencies",
    default="1,8,32",
    show_default=True,
    metavar="N,N,...",
    callback=_numbers,
    help="How many requests at once; each is a load of its own.",
)
@click.option(
    "--requests",
    type=click.IntRange(1, 1_000_000),
    help="A measurement's; by default four rounds of the concurrency, at least 8.",
)
@click.option("--max-tokens", type=click.IntRange(4), default=256, show_default=True, help="Of every output.")
@click.option(
    "--repeats",
    type=click.IntRange(2),
    default=6,
    show_default=True,
    callback=_even,
    help="Measurements of each mode at each load; an even number.",
)
@click.option(
    "--prompts",
    type=click.Path(exists=True, path_type=Path),
    help="Prompts as for `capture`, without their sampling; by default the bench's own.",
)
@click.option(
    "--modes",
    default=",".join(MODES),
    show_default=True,
    metavar="MODE,...",
    callback=_modes,
    help="What is compared; `generate` is /generate, the others are chat. Ratios are those to `raw`.",
)
@click.option(
    "--stream/--no-stream",
    "stream",
    default=None,
    help="Streamed or whole answers only; by default both, one after the other.",
)
@click.option(
    "--work",
    type=click.Choice(["auto", "scripted", "sampled"]),
    default="auto",
    show_default=True,
    help="`scripted`: the model is made to say the same in every mode; `auto`: where the server takes it.",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    help="The model's tokenizer folder, where the model's own is not on this machine.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="For one request.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="REPORT",
    help="Also write the report: JSON where the name ends with .json, else text.",
)
@shell.key_option
@shell.trust_option
@shell.json_option
def bench(
    base_url: str | None,
    deployment: str | None,
    file: Path | None,
    flags: tuple[str, ...],
    recording: bool,
    stream: bool | None,
    output: Path | None,
    api_key: str | None,
    as_json: bool,
    modes: tuple[str, ...],
    work: str,
    **same: Any,
) -> int:
    """Tell what reasoning and tools mode cost on a server, or, with --capture, what recording costs.

    Exits 1 when requests failed or the work was not the same on both sides of a ratio.
    """
    if (base_url is None) == (deployment is None):
        raise click.UsageError("give one server: --base-url URL, or --deployment NAME to boot")
    if flags and base_url is not None:
        raise click.UsageError("--flags go to a server that is booted, and this one runs already")
    context = click.get_current_context()
    for name in ("modes", "work") if recording else ():
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} says how modes are compared, and --capture compares none")
    most = max(same["concurrencies"])
    if same["requests"] is not None and same["requests"] < most:
        raise click.UsageError(f"--requests {same['requests']} can't keep {most} at once under way")
    if output is not None and not output.parent.is_dir():
        raise ShardgateError(
            "the report can't be written",
            where=str(output),
            why="there is no such folder",
            remedy="make it, or give another path",
        )
    same["streams"] = (False, True) if stream is None else (stream,)
    url = None if base_url is None else checked_url(base_url, "--base-url")
    report: Any
    with Progress() as progress, _server(url, deployment, file, flags, api_key, progress) as (facts, key):
        if recording:
            from harness.benching.records import RecordsPlan, compare_recording

            report = compare_recording(RecordsPlan(**same), facts, api_key=key, on_event=progress)
        else:
            from harness.benching.modes import ModesPlan, compare_modes

            plan = ModesPlan(arms=modes, work=work, **same)
            report = compare_modes(plan, facts, api_key=key, on_event=progress)
    from harness.benching.words import lines
    from harness.report.rows import server_words
    from harness.report.text import safe

    text = [*map(safe, lines(report)), f"server: {server_words(report.server)}"]
    if output is not None:
        _write(output, report, text)
    if as_json:
        shell.emit(report)
    else:
        click.echo("\n".join(text))
    return shell.HOLDS if report.equal and not report.failed else shell.FINDINGS


@contextmanager
def _server(
    url: str | None,
    name: str | None,
    file: Path | None,
    flags: tuple[str, ...],
    api_key: str | None,
    progress: Progress,
) -> Iterator[tuple[ServerFacts, str | None]]:
    """The server's facts and key: of one that runs, or of one booted here and ended on the way out."""
    from harness.server import attach, load_deployment
    from harness.server.flags import text_of

    found = None if name is None else load_deployment(name, file)
    if found is not None and found.servers:
        raise click.UsageError(
            f"{name!r} is a group: start it with `shardgate serve {name}`, and give its --base-url"
        )
    if found is not None and found.url is not None:
        url = checked_url(found.filled().url or "", "--deployment")
    if url is not None or found is None:
        progress("attach", {"message": url})
        yield attach(url or "", api_key=api_key).facts, api_key
        return

    def booting(now: BootProgress) -> None:
        progress("boot", {"message": str(now.phase), **now.facts()})

    with found.server(extra_flags=shell.flag_words(flags), on_progress=booting) as server:
        yield server.facts(), api_key or text_of(server.flags, "api_key")


def _write(path: Path, report: Any, text: list[str]) -> None:
    from contracts.shard import replace_file
    from harness.report.data import dumps

    whole = dumps(report) if path.suffix == ".json" else "\n".join(text)
    replace_file(path, lambda handle: handle.write(f"{whole}\n".encode()))
