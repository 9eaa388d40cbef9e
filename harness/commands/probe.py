"""`shardgate probe`: judges a running server and says how to record with it.

Place in the flow: outermost; calls `harness.pipeline` and the reports. Imports light modules at the top.
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlsplit

import click

from contracts.errors import ShardgateError
from contracts.records import Verdict
from harness.commands import shell
from harness.commands.progress import Progress
from harness.masks import masked_urls


@click.command()
@click.argument("base_url", metavar="URL")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    help="The model's tokenizer folder; without it the server's /tokenize and /detokenize are asked.",
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report as HTML."
)
@click.option(
    "--direct",
    metavar="SERVER_URL",
    help="URL is a gateway in front of this server: also tell what gets lost on the way.",
)
@shell.key_option
@shell.trust_option
@shell.json_option
def probe(
    base_url: str,
    tokenizer: Path | None,
    html: Path | None,
    direct: str | None,
    api_key: str | None,
    trust_remote_code: bool,
    as_json: bool,
) -> int:
    """Run the sampled golden prompts through the three modes of the server at URL.

    Exits 1 when any outcome is `contradicted`: a field says what the tokens do not; and when a gateway loses
    a field that recording needs.
    """
    url = checked_url(base_url)
    server_url = None if direct is None else checked_url(direct, "--direct")
    from harness import pipeline

    with Progress() as progress:
        report = pipeline.probe(
            url,
            tokenizer=tokenizer,
            on_event=progress,
            trust_remote_code=trust_remote_code,
            direct=server_url,
            api_key=api_key,
        )
    if html is not None:
        from harness.report.html import write_html

        write_html(html, report)
    if as_json:
        shell.emit(report)
    else:
        from harness.report.terminal import print_report

        print_report(report, sys.stdout)
    answered = [outcome for outcome in report.results if outcome.fault is None]
    if not answered:
        faults = {outcome.fault for outcome in report.results}
        raise ShardgateError(
            "no prompt got an answer that could be judged",
            where=url,
            why="; ".join(sorted(fault for fault in faults if fault)) or "the server gave no results",
            remedy="look into the server's log, then probe again",
        )
    contradicted = any(outcome.verdict is Verdict.CONTRADICTED for outcome in answered)
    loses = report.gateway is not None and any(one.needed for one in report.gateway.findings)
    return shell.FINDINGS if contradicted or loses else shell.HOLDS


def checked_url(text: str, hint: str = "URL") -> str:
    """Return a server's base URL without a trailing slash or `/v1`; `host:port` becomes http.

    Raises:
        click.BadParameter: no http(s) URL with a host.
    """
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        user = "@" in parts.netloc
    except ValueError:
        valid, user = False, "@" in url
    if user:
        told = "a user or password in it is not supported: give the server's key by SHARDGATE_API_KEY"
        raise click.BadParameter(f"{masked_urls(url)!r}: {told}", param_hint=hint)
    if not valid:
        raise click.BadParameter(
            f"{masked_urls(text)!r} is no http(s) URL such as http://127.0.0.1:30000", param_hint=hint
        )
    return url.rstrip("/").removesuffix("/v1")
