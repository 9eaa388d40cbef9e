"""`shardgate serve`: boots SGLang as the harness does, and stays.

Place in the flow: outermost; calls `harness.server`. Imports light modules at the top.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.commands import shell
from harness.commands.progress import Progress
from harness.report.text import without_keys

if TYPE_CHECKING:
    from harness.server import BootProgress, SGLangServer


@click.command()
@click.argument("target", metavar="MODEL_OR_DEPLOYMENT")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- FLAGS]...")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on; a free one otherwise.")
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the server's log; otherwise one in the temporary folder, kept when the boot fails.",
)
@shell.json_option
def serve(target: str, flags: tuple[str, ...], port: int | None, log: Path | None, as_json: bool) -> int:
    """Boot a server; say when it is ready; keep it until Ctrl-C.

    MODEL_OR_DEPLOYMENT is a model's folder or hub name (org/model), or an entry of fixtures/deployments.toml.
    What stands after `--` goes to SGLang as it is. With --json the one value is printed when it is ready.
    """
    with Progress() as progress:
        told: list[str] = []

        def on_progress(now: BootProgress) -> None:
            if not told:
                # Not earlier: the port is chosen at the start.
                told.append(without_keys(shlex.join(server.command)))
                progress.say(told[0])
            progress(f"boot: {now.phase}", now.facts())

        server = _server(target, flags, port, log, on_progress)
        server.start()
    try:
        facts = server.facts()
        if as_json:
            shell.emit(
                {
                    "base_url": server.base_url,
                    "pid": server.pid,
                    "command": "".join(told),
                    "log": server.log_path,
                    "server": facts,
                }
            )
        else:
            from harness.report.rows import server_words

            click.echo(f"ready after {server.boot_seconds:.0f} s: {server_words(facts)}")
            click.echo(f"log: {server.log_path}; Ctrl-C ends the server")
        sys.stdout.flush()
        while True:
            server.check()
            time.sleep(1.0)
    finally:
        server.stop()


def _server(
    target: str,
    flags: tuple[str, ...],
    port: int | None,
    log: Path | None,
    on_progress: Callable[[BootProgress], None],
) -> SGLangServer:
    """Return the server, not started: of the deployment of that name, else of the model at that path or name.

    Raises:
        ServerError: no deployment has the name, and it can't be a model either.
    """
    from harness.server import SGLangServer, load_deployment, load_deployments

    is_model = "/" in target or Path(target).exists()
    if is_model and target not in load_deployments():
        return SGLangServer(target, flags=flags, port=port, log_path=log, on_progress=on_progress)
    deployment = load_deployment(target)
    return deployment.server(extra_flags=flags, port=port, log_path=log, on_progress=on_progress)
