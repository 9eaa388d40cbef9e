"""`shardgate audit`: shards in, findings out, a certificate when asked for, reports for people and machines.

Place in the flow: outermost; calls `contracts.run` and the reports. Imports light modules at the top.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from contracts.errors import ShardgateError
from contracts.records import Profile
from harness.commands import shell
from harness.commands.audit_inputs import Inputs, input_options, there
from harness.commands.audit_progress import AuditProgress
from harness.commands.progress import Progress

if TYPE_CHECKING:
    from contracts.run import AuditResult
    from contracts.tokens import Codec

_FILE = click.Path(dir_okay=True, path_type=Path)


@click.command()
@click.argument("shards", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--tokenizer", type=click.Path(path_type=Path), help="The model's tokenizer folder.")
@click.option(
    "--profile",
    type=click.Choice([str(profile) for profile in Profile]),
    default=str(Profile.DRAFT),
    show_default=True,
    help="What the rows are for; sets the rules' severities.",
)
@click.option(
    "--certify",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Certify the good rows into DIR and quarantine the bad ones there; without it nothing is written.",
)
@click.option(
    "--strength",
    type=click.Choice(["token", "text"]),
    default="token",
    show_default=True,
    help="The contract: with the engine's token ids, or the declared text-only one.",
)
@click.option("--waive", multiple=True, metavar="RULE", help="Waive a rule; each needs its --reason.")
@click.option(
    "--reason", multiple=True, metavar="TEXT", help="Why the rule is waived; the certificate says so."
)
@click.option("--html", type=_FILE, metavar="FILE", help="Write a self-contained HTML report.")
@click.option("--junit", type=_FILE, metavar="FILE", help="Write JUnit XML, for CI systems.")
@click.option("--sarif", type=_FILE, metavar="FILE", help="Write SARIF 2.1.0, for code-scanning services.")
@input_options
@shell.trust_option
@shell.json_option
def audit(
    shards: tuple[Path, ...],
    tokenizer: Path | None,
    profile: str,
    certify: Path | None,
    strength: Literal["token", "text"],
    waive: tuple[str, ...],
    reason: tuple[str, ...],
    html: Path | None,
    junit: Path | None,
    sarif: Path | None,
    trust_remote_code: bool,
    as_json: bool,
    **more: Any,
) -> int:
    """Check SHARDS (parquet files or folders of them) against the contract; read-only without --certify.

    Exits 1 when a rule with the severity `error` was broken. Without --tokenizer the model folder that the
    rows name is used, if it is on this machine and its tokenizer is the recorded one; where there is none,
    the rules that compare ids with text stay unchecked, and that is told.
    """
    waivers, inputs = _waivers(waive, reason), Inputs(**more)
    for path in shards:
        there(path, "shards", "give parquet files, or folders that hold some")
    if tokenizer is not None:
        there(tokenizer, "tokenizer", "give the model's folder, or its tokenizer.json")
    reports = {"HTML": html, "JUnit": junit, "SARIF": sarif}
    _check_reports(reports)
    inputs.check(certify)
    inputs.load_rules()
    thresholds, replayed = inputs.load_thresholds(), inputs.load_replay()
    from contracts.run import audit as audit_shards

    start = time.monotonic()
    with Progress() as progress:
        tokenizer = tokenizer or recorded_tokenizer(shards)
        given = inputs.load_given(tokenizer)
        codec = _codec(tokenizer, trust_remote_code, progress)
        result = audit_shards(
            shards,
            profile=profile,
            codec=codec,
            certify=certify,
            waivers=waivers,
            strength=strength,
            thresholds=thresholds,
            given=given,
            processes=inputs.processes,
            encode=inputs.encode,  # type: ignore[arg-type]
            on_progress=AuditProgress(progress, shards),
            replay=replayed,
        )
        _write_rates(result, inputs.stats_out, progress)
        if inputs.sign_key is not None and result.certificate is not None:
            from contracts.signing import sign_certificate

            progress.say(f"signed: {sign_certificate(result.certificate, inputs.sign_key)}")
        _write_reports(result, reports, codec, time.monotonic() - start, progress)
    _tell(result, as_json)
    return shell.FINDINGS if result.errors else shell.HOLDS


def _waivers(rules: tuple[str, ...], reasons: tuple[str, ...]) -> dict[str, str]:
    if len(rules) != len(reasons) or not all(text.strip() for text in reasons):
        raise ShardgateError(
            "each waiver needs a reason",
            where=f"--waive was given {len(rules)} times, --reason with a text "
            f"{sum(bool(text.strip()) for text in reasons)} times",
            why="the certificate keeps who waived what and why, so that no rule goes missing unseen",
            remedy='write --waive RULE --reason "TEXT" once for each rule',
        )
    if len(set(rules)) != len(rules):
        twice = next(rule for rule in rules if rules.count(rule) > 1)
        raise ShardgateError(
            f"the rule `{twice}` is waived twice", remedy="give one --waive and one --reason for it"
        )
    return dict(zip(rules, reasons, strict=True))


def _check_reports(reports: dict[str, Path | None]) -> None:
    from harness.report.files import check_writable

    asked = {what: path for what, path in reports.items() if path is not None}
    for what, path in asked.items():
        check_writable(path, what)
    if len({path.resolve() for path in asked.values()}) < len(asked):
        raise ShardgateError(
            "two reports would be one file",
            where=", ".join(map(str, asked.values())),
            remedy="name a file of its own for each report",
        )


def _codec(tokenizer: Path | None, trust: bool, progress: Progress) -> Codec | None:
    if tokenizer is None:
        return None
    from contracts.tokens import load_codec

    progress("tokenizer", {"message": str(tokenizer)})
    return load_codec(tokenizer, trust_remote_code=trust)


def _write_rates(result: AuditResult, path: Path | None, progress: Progress) -> None:
    if path is None or result.measured is None:
        return
    from contracts.given import write_rates

    progress.say(f"rates: {write_rates(path, result.measured)}")


def _write_reports(
    result: AuditResult,
    reports: dict[str, Path | None],
    codec: Codec | None,
    seconds: float,
    progress: Progress,
) -> None:
    """Write the reports that were asked for; the certificate, if any, is written already."""
    from harness.report.files import write_report

    if (path := reports["HTML"]) is not None:
        from harness.commands.examples import token_examples
        from harness.report.audit_html import write_audit_html

        progress("report", {"message": "tokens of example rows"})
        write_audit_html(path, result, token_examples(result, codec) if codec is not None else ())
    if (path := reports["JUnit"]) is not None:
        from harness.report.junit import junit_xml

        write_report(path, junit_xml(result, seconds), "JUnit")
    if (path := reports["SARIF"]) is not None:
        from importlib.metadata import version

        from harness.report.sarif import sarif_text

        write_report(path, sarif_text(result, version("shardgate")), "SARIF")
    for what, path in reports.items():
        if path is not None:
            progress.say(f"{what} report: {path}")


def _tell(result: AuditResult, as_json: bool) -> None:
    """Print the result; where GitHub Actions runs this, annotate and add to the job's summary too."""
    from harness.report.annotations import add_job_summary, commands_stopped, on_github, workflow_commands

    github = on_github()
    if as_json:
        shell.emit(result)
    else:
        from harness.report.audit_terminal import print_audit

        with commands_stopped(sys.stdout, github):
            print_audit(result, sys.stdout)
    if github:
        # With --json standard output holds one JSON value; the runner reads commands from both.
        for line in workflow_commands(result):
            click.echo(line, err=as_json)
        add_job_summary(result)


def recorded_tokenizer(shards: tuple[Path, ...]) -> Path | None:
    """Return the model folder that the shards name, where it has the very tokenizer they were made with."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    from contracts.run import expand
    from contracts.tokens import tokenizer_sha256

    columns = ["target_model", "tokenizer_sha256"]
    for path in expand(shards):
        if not path.is_file():
            continue
        try:
            first = next(parquet.ParquetFile(path).iter_batches(batch_size=1, columns=columns), None)
            row: dict[str, Any] = first.to_pylist()[0] if first is not None and first.num_rows else {}
        except (OSError, ValueError, pa.ArrowException):
            continue  # the audit tells what is wrong with the file
        folder = Path(str(row.get("target_model") or ""))
        if (
            folder.is_absolute()
            and folder.is_dir()
            and tokenizer_sha256(folder) == row.get("tokenizer_sha256")
        ):
            return folder
    return None
