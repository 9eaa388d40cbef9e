"""`shardgate serve`: boots SGLang as the harness does, and stays or runs a command against it.

Place in the flow: outermost; calls `harness.server`. Imports light modules at the top.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from contracts.errors import ShardgateError
from harness.commands import child, shell
from harness.commands import dry_run as dry
from harness.commands.progress import Progress
from harness.report.text import safe

if TYPE_CHECKING:
    from harness.server import BootProgress, Deployment, SGLangServer
    from harness.server.preflight import Doubt

KEY_VARIABLE = "SHARDGATE_API_KEY"
"""Holds the key of a server that is attached by URL; a key on the command line would be seen by everybody."""

_COLOURS = {"error": "red", "warning": "yellow", "notice": "cyan"}
Tell = Callable[["BootProgress"], None]


@click.command()
@click.argument("target", metavar="MODEL_DEPLOYMENT_OR_URL")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD]...")
@shell.flags_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on; a free one otherwise.")
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    help="File for the server's log (a group: a folder); otherwise temporary, kept when the boot fails.",
)
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of deployments to look the name up in; shardgate's own otherwise.",
)
@click.option("--dry-run", is_flag=True, help="Print the command, boot nothing.")
@click.option("--force", is_flag=True, help="Boot even when the parsers contradict the model.")
@shell.json_option
def serve(
    target: str,
    command: tuple[str, ...],
    flags: tuple[str, ...],
    host: str,
    port: int | None,
    log: Path | None,
    file: Path | None,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Boot a server; say when it is ready; keep it until Ctrl-C, or run CMD against it.

    MODEL_DEPLOYMENT_OR_URL is a model's folder or hub name (org/model), a deployment (docs/deployments.md),
    or the URL of a server that runs. CMD gets SHARDGATE_BASE_URL and OPENAI_BASE_URL in its environment; its
    exit code is this command's, and the server is ended after it. With --json the one value is printed when
    the server is ready.
    """
    shell.refuse_bad_key(os.environ.get(KEY_VARIABLE), KEY_VARIABLE)
    if command:
        if as_json:
            raise click.UsageError("--json and a command don't go together: standard output is the command's")
        child.refuse_missing(command)
    extra = shell.flag_words(flags)
    deployment = _deployment(target, extra, file)
    if deployment.url is not None:
        return _attached(deployment, command, dry_run, as_json)
    if deployment.servers:
        return _group(deployment, extra, command, host, port, log, dry_run, force, as_json)
    told: list[str] = []
    with Progress() as progress:

        def on_progress(now: BootProgress) -> None:
            if not told:
                # Not earlier: the port is chosen at the start.
                told.append(dry.line(server.command))
                progress.say(told[0])
            progress(f"boot: {now.phase}", now.facts())

        server = deployment.server(
            extra_flags=extra, host=host, port=port, log_path=log, on_progress=on_progress
        )
        found = _examined([server], force)
        _refuse_follower(server, command)
        if dry_run:
            from harness.server.hardware import free_port
            from harness.server.refusals import refuse_taken_port

            if port is not None:
                refuse_taken_port(host, port)
            server.port = port or free_port(host)
            shown = dry.member(deployment.name, server, deployment.filled().env)
            return dry.show([shown], doubts=found, as_json=as_json)
        server.start()
    try:
        if command:
            click.echo(f"ready after {server.boot_seconds:.0f} s: {server.base_url}", err=True)
            from harness.server.flags import text_of

            return child.run(command, server, text_of(server.flags, "api_key"))
        _tell_ready(server, told, found, as_json)
        _stay(server.check)
        return shell.HOLDS
    finally:
        server.stop()


def _deployment(target: str, extra: tuple[str, ...], file: Path | None) -> Deployment:
    """Return what the target names: a URL, a deployment of that name, or the model at that path or name.

    Raises:
        ServerError: no deployment has the name, and it can't be a model either.
    """
    from harness.server import Deployment, load_deployment, load_deployments
    from harness.server.hardware import needs_cpu_platform

    if not target.strip():
        raise click.UsageError("the model, deployment or URL is an empty text")
    if "://" in target:
        from harness.commands.probe import checked_url

        found = Deployment(name=target, url=checked_url(target))
    elif ("/" in target or Path(target).exists()) and target not in load_deployments(file):
        found = Deployment(name=target, model=target, gpus=0 if needs_cpu_platform() else 1)
    else:
        found = load_deployment(target, file)
    if extra and found.url is not None:
        raise click.UsageError("--flags go to a server that is booted, and this one runs already")
    return found


def _examined(servers: Sequence[SGLangServer], force: bool) -> list[Doubt]:
    """Tell what speaks against these boots; stop at wrong flags, and at a contradiction unless forced."""
    from harness.server.preflight import doubts
    from harness.server.refusals import refuse_own_flags, refuse_wrong_counts, refuse_wrong_path

    found = []
    for server in servers:
        refuse_own_flags(server.flags)
        refuse_wrong_counts(server.flags)
        refuse_wrong_path(server.model_path)
        for doubt in doubts(server.model_path, server.flags):
            if doubt in found:
                continue
            found.append(doubt)
            if doubt.severity == "error" and not force:
                raise ShardgateError(
                    doubt.what, where=server.model_path, why=doubt.why, remedy=f"{doubt.remedy}; or --force"
                )
            click.secho(f"{doubt.severity}: ", fg=_COLOURS[doubt.severity], bold=True, nl=False, err=True)
            click.echo(
                f"{safe(doubt.what)}\n  why: {safe(doubt.why)}\n  remedy: {safe(doubt.remedy)}", err=True
            )
    return found


def _refuse_follower(server: SGLangServer, command: tuple[str, ...]) -> None:
    from harness.server.nodes import node_rank, serves_api

    if command and not serves_api(server.flags):
        raise ShardgateError(
            f"node {node_rank(server.flags)} serves no API, so no command can run against it",
            why="of a server on several machines only node 0 answers requests",
            remedy="leave the command out here, and give it where --node-rank is 0",
        )


def _tell_ready(server: SGLangServer, told: list[str], found: list[Doubt], as_json: bool) -> None:
    from harness.server.nodes import node_count, node_rank, serves_api

    facts = server.facts() if serves_api(server.flags) else None
    if as_json:
        shell.emit(
            {
                "base_url": server.base_url,
                "pid": server.pid,
                "command": "".join(told),
                "log": server.log_path,
                "server": facts,
                "doubts": [asdict(doubt) for doubt in found],
            }
        )
    elif facts is not None:
        from harness.report.rows import server_words

        click.echo(f"ready after {server.boot_seconds:.0f} s: {server_words(facts)}")
        click.echo(f"log: {server.log_path}; Ctrl-C ends the server")
    else:
        rank, count = node_rank(server.flags), node_count(server.flags)
        click.echo(f"node {rank} of {count} is up after {server.boot_seconds:.0f} s; node 0 serves the API")
        click.echo(f"log: {server.log_path}; Ctrl-C ends this node, and the others with it")
    sys.stdout.flush()


def _stay(check: Callable[[], None]) -> None:
    while True:
        check()
        time.sleep(1.0)


def _attached(deployment: Deployment, command: tuple[str, ...], dry_run: bool, as_json: bool) -> int:
    if dry_run:
        return dry.show([{"name": deployment.name, "base_url": deployment.filled().url}], as_json=as_json)
    key = os.environ.get(KEY_VARIABLE)
    server = deployment.attach(api_key=key)
    if command:
        return child.run(command, server, key)
    if as_json:
        shell.emit({"base_url": server.base_url, "server": server.facts})
    else:
        from harness.report.rows import server_words

        click.echo(f"{server.base_url} runs: {server_words(server.facts)}")
        click.echo("give a command after `--` to run it against this server")
    return shell.HOLDS


def _group(
    deployment: Deployment,
    extra: tuple[str, ...],
    command: tuple[str, ...],
    host: str,
    port: int | None,
    log: Path | None,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> int:
    from harness.server.http import LOOPBACK

    members = [one.filled() for one in deployment.members()]
    if host not in LOOPBACK and any(one.scripted for one in members):
        raise ShardgateError(
            f"{deployment.name!r} has scripted servers and may listen on loopback only",
            where=f"--host {host}",
            why="the router would hand custom logit processors, which are code, to servers that run them",
            remedy="leave --host out, or write a group whose members are not scripted",
        )
    found = _examined([one.server(extra_flags=extra) for one in members if one.url is None], force)
    from harness.server.group import ServerGroup

    key = os.environ.get(KEY_VARIABLE)
    if dry_run:
        planned, router = ServerGroup(deployment, extra_flags=extra, host=host, port=port, api_key=key).plan()
        router.refuse_wrong_use()
        router.choose_ports()
        shown = [
            {"name": one.name, "base_url": server}
            if isinstance(server, str)
            else dry.member(one.name, server, one.env)
            for one, server in zip(members, planned, strict=True)
        ]
        return dry.show(shown, router, found, as_json=as_json)
    with Progress() as progress:
        group = ServerGroup(
            deployment,
            extra_flags=extra,
            host=host,
            port=port,
            log_folder=log,
            on_progress=lambda name, now: progress(
                f"boot: {name}", {"message": str(now.phase)} | now.facts()
            ),
            api_key=key,
        )
        group.start()
    try:
        if command:
            click.echo(f"ready: {group.base_url}", err=True)
            return child.run(command, group, key)
        if as_json:
            shell.emit({"base_url": group.base_url, "doubts": [asdict(doubt) for doubt in found]})
        else:
            click.echo(f"ready: {group.base_url}; Ctrl-C ends the router and the servers behind it")
        sys.stdout.flush()
        _stay(group.check)
        return shell.HOLDS
    finally:
        group.stop()
