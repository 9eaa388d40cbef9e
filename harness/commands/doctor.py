"""`shardgate doctor`: what would go wrong at a boot, found before it.

Place in the flow: outermost; calls `harness.server.doctor`. Imports light modules at the top.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.commands import shell
from harness.report.text import safe

if TYPE_CHECKING:
    from harness.server.checkup import Check

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red", "unknown": "cyan"}


@click.command()
@click.argument("target", required=False, metavar="[MODEL_DEPLOYMENT_OR_URL]")
@shell.flags_option
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of deployments to look the name up in; shardgate's own otherwise.",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port that the server shall listen on.")
@click.option("--quick", is_flag=True, help="Leave out the import of SGLang, which takes some 10 s.")
@shell.json_option
def doctor(
    target: str | None,
    flags: tuple[str, ...],
    file: Path | None,
    port: int | None,
    quick: bool,
    as_json: bool,
) -> int:
    """Check this machine, and a model or deployment on it, before a boot.

    Looks at packages, driver, GPUs and who uses them, memory against the model's size, disk, limits, the
    port, the checkpoint's files, tokenizer and template, the architecture, the hub, and whether the parsers
    fit the model. A server that runs, given by its URL, is asked what it serves. Boots nothing. Exits 1 when
    a boot would fail.
    """
    checks = _examined(target, shell.flag_words(flags), file, port, quick)
    counts: Counter[str] = Counter(check.outcome for check in checks)
    if as_json:
        shell.emit({"ok": not counts["error"], "checks": [asdict(check) for check in checks]})
    else:
        _print(checks, counts)
    return shell.FINDINGS if counts["error"] else shell.HOLDS


def _examined(
    target: str | None, flags: tuple[str, ...], file: Path | None, port: int | None, quick: bool
) -> tuple[Check, ...]:
    from harness.server.deployments import Deployment, load_deployment, load_deployments
    from harness.server.doctor import examine, examine_deployment

    if target is None:
        return examine(port=port, quick=quick)
    if "://" in target:
        from harness.commands.probe import checked_url

        if flags:
            raise click.UsageError("--flags go to a server that is booted, and this one runs already")
        return examine_deployment(Deployment(name=target, url=checked_url(target)))
    known = load_deployments(file)
    if target not in known and ("/" in target or Path(target).exists()):
        return examine(target, flags, port=port, quick=quick)
    from dataclasses import replace

    deployment = load_deployment(target, file)
    if flags:
        deployment = replace(deployment, flags=(*deployment.flags, *flags))
    return examine_deployment(deployment, port=port, quick=quick)


def _print(checks: tuple[Check, ...], counts: Counter[str]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        label = click.style(f"{check.outcome:<8}", fg=_COLOURS[check.outcome])
        click.echo(f"{label} {safe(check.name):<{width}}  {safe(check.what)}")
        if check.outcome in ("ok", "unknown"):
            continue
        for word, text in (("why", check.why), ("remedy", check.remedy)):
            if text:
                click.echo(f"{'':<8} {'':<{width}}    {word}: {safe(text)}")
    told = ", ".join(
        f"{counts[name]} {name if name == 'ok' else name + ('s' if counts[name] > 1 else '')}"
        for name in ("error", "warning", "unknown", "ok")
        if counts[name]
    )
    verdict = "a boot would fail" if counts["error"] else "nothing found that would make a boot fail"
    click.echo(f"{verdict}: {told}")
