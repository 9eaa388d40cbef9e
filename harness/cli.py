"""The command `shardgate`.

Place in the flow: outermost; calls the pipeline, the audit and the loader, and prints. At the top it imports
click and its own command modules only: `--help` answers without torch, sglang, transformers or polars.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import click

from harness.commands import (
    audit,
    bank,
    bench,
    capture,
    demo,
    derive,
    diff,
    doctor,
    export,
    import_,
    matrix,
    probe,
    repair,
    replay,
    report,
    serve,
    shell,
    sign,
    verify,
)

_EPILOG = """\b
Exit codes: 0 all holds, 1 findings, 2 wrong use or a fault of the environment, 130 interrupted.
With --json standard output holds one JSON value; progress and errors go to standard error."""


@click.group(
    epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="shardgate", prog_name="shardgate")
def cli() -> None:
    """Prove, token by token, that what an LLM server hands out is what the model generated, and let no
    training data through that could not be proven."""


_COMMANDS = (
    demo.demo,
    doctor.doctor,
    serve.serve,
    probe.probe,
    capture.capture,
    bench.bench,
    report.report,
    import_.import_,
    audit.audit,
    replay.replay,
    repair.repair,
    verify.verify,
    sign.sign,
    derive.derive,
    export.export,
    diff.diff,
    matrix.matrix,
    bank.bank,
)
for _command in _COMMANDS:
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `shardgate` with `arguments` (default: the process's own) and exit with its code."""
    shell.run(cli, arguments, "shardgate")
