"""`shardgate serve --dry-run`: what would be started, as lines that a shell runs, or as one JSON value.

Place in the flow: outermost, under `shardgate serve`. Imports light modules at the top.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from harness.commands import shell
from harness.masks import masked_urls, masked_words
from harness.report.text import without_secrets

if TYPE_CHECKING:
    from harness.server import SGLangServer
    from harness.server.preflight import Doubt
    from harness.server.router import Router


def line(words: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    """A line that a shell runs: variables before the command, the values of keys left out."""
    given = [f"{name}={shlex.quote(value)}" for name, value in without_secrets(variables or {}).items()]
    return " ".join([*given, shlex.join(masked_words(words))])


def member(name: str, server: SGLangServer, given: Mapping[str, str]) -> dict[str, Any]:
    """One server that would be booted; its port is chosen already."""
    from harness.server.cpu import cpu_environment

    needed = {**given, **(cpu_environment(server.flags, given) if server.on_cpu else {})}
    return {
        "name": name,
        "base_url": server.base_url,
        "command": line(server.command, needed),
        "words": masked_words(server.command),
        "environment": without_secrets(needed),
    }


def show(
    members: Sequence[dict[str, Any]],
    router: Router | None = None,
    doubts: Sequence[Doubt] = (),
    *,
    as_json: bool = False,
) -> int:
    """Print what would be started; a member without a command is attached to."""
    if as_json:
        told = None
        if router is not None:
            words = masked_words(router.command)
            told = {"base_url": router.base_url, "command": line(router.command), "words": words}
        shell.emit(
            {
                "members": [one | {"base_url": masked_urls(one["base_url"])} for one in members],
                "router": told,
                "doubts": [asdict(one) for one in doubts],
            }
        )
        return shell.HOLDS
    for one in members:
        click.echo(one.get("command") or masked_urls(f"# attach to {one['base_url']}"))
    if router is not None:
        click.echo(line(router.command))
    return shell.HOLDS
