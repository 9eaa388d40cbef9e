"""What the commands share: the `--json` switch, errors told in four words, exit codes.

Place in the flow: outermost. Imports click, `contracts.errors` and `harness.masks`.

Exit codes: 0 all holds · 1 findings · 2 wrong use or a fault of the environment · 130 Ctrl-C.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn, TypeVar

import click

from contracts.errors import ShardgateError
from harness.masks import masked_urls

HOLDS, FINDINGS, FAULT, INTERRUPTED = 0, 1, 2, 130

_USERINFO = re.compile(r"(://)[^/@\s]+@")

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """Add `--json`: one JSON value on standard output, and progress on standard error as always."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON value on standard output.")(command)


def trust_option(command: Command) -> Command:
    """Add `--trust-remote-code`: Kimi's tokenizer, for one, comes as Python code with the model."""
    return click.option(
        "--trust-remote-code", is_flag=True, help="Run the Python code that comes with the tokenizer."
    )(command)


def key_option(command: Command) -> Command:
    """Add `--api-key`: sent to the server, never shown and never written anywhere."""
    return click.option(
        "--api-key",
        envvar="SHARDGATE_API_KEY",
        metavar="KEY",
        callback=lambda context, parameter, value: refuse_bad_key(value, "--api-key"),
        help="The server's API key; better by the environment variable SHARDGATE_API_KEY.",
    )(command)


def refuse_bad_key(key: str | None, given_by: str) -> str | None:
    """Return the key. Raises `click.BadParameter`, without showing it, where no HTTP header can hold it."""
    if key is not None and not all(" " <= character <= "~" for character in key):
        raise click.BadParameter(
            "the key has a line break, a control character or one that is not ASCII; no HTTP header takes it",
            param_hint=given_by,
        )
    return key


def flags_option(command: Command) -> Command:
    """Add `--flags`: SGLang's own flags, several in one text, as often as wanted."""
    told = 'Flags for SGLang, as "--tp-size 8 --dtype half".'
    return click.option("--flags", multiple=True, metavar="TEXT", help=told)(command)


def flag_words(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the words of all `--flags`, split as a shell splits them."""
    words: list[str] = []
    for text in texts:
        try:
            words += shlex.split(text)
        except ValueError:
            # The text itself is not told: a flag may hold a key.
            raise click.BadParameter(
                "not a shell-like list of words (an open quote, or a backslash at the end)",
                param_hint="--flags",
            ) from None
    return tuple(words)


def emit(value: Any) -> None:
    """Print one JSON value on standard output."""
    from harness.report.data import dumps

    click.echo(dumps(value))


def run(group: click.Group, arguments: Sequence[str] | None, name: str) -> NoReturn:
    """Run the command line and leave with its exit code; a user's error comes without a traceback."""
    signal.signal(signal.SIGTERM, _terminated)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup it stays ignored
        signal.signal(signal.SIGHUP, _terminated)
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _invoked(group, argv, name)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else HOLDS)
    except (click.Abort, KeyboardInterrupt, EOFError):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) went away: nothing more to tell, and no second error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except click.ClickException as error:
        from harness.report.text import without_keys

        # Click repeats words that it does not know, and one may be a key.
        error.message = _USERINFO.sub(r"\1(not shown)@", without_keys(error.message))  # type: ignore[misc]
        error.show()
        if _asks_json(argv):
            _emit_error(ShardgateError(error.format_message(), remedy="see --help"))
        sys.exit(FAULT)
    except Exception as error:
        told = explain(error)
        if told is None or os.environ.get("SHARDGATE_DEBUG"):
            import traceback

            traceback.print_exc()
        # Never 1, which Python would exit with: a crash must not read as findings.
        told = told or ShardgateError(
            f"{type(error).__name__}: {error}",
            why="a fault of shardgate itself, or a case that it does not know",
            remedy="report it with the lines above",
        )
        fail(told, _asks_json(argv))
        sys.exit(FAULT)


def _invoked(group: click.Group, argv: list[str], name: str) -> Any:
    """Parse and run as `group.main` does, which itself would exit with 1, findings, when a pipe breaks."""
    if f"_{name.upper()}_COMPLETE" in os.environ:
        return group.main(args=argv, prog_name=name, standalone_mode=False)
    try:
        with group.make_context(name, list(argv)) as context:
            return group.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code


def _terminated(signum: int, frame: FrameType | None) -> NoReturn:
    # As an exception, so that a booted server's process group goes before this process does.
    raise SystemExit(128 + signum)


def _asks_json(argv: Sequence[str]) -> bool:
    return "--json" in (argv[: argv.index("--")] if "--" in argv else argv)


def _emit_error(error: ShardgateError) -> None:
    parts = {part: masked_urls(getattr(error, part)) for part in ("what", "where", "why", "remedy")}
    click.echo(json.dumps({"error": parts}, indent=2))


def fail(error: ShardgateError, as_json: bool) -> None:
    """Tell an error on standard error and, with `--json`, as the one value on standard output too."""
    show(error)
    if as_json:
        _emit_error(error)


def explain(error: BaseException) -> ShardgateError | None:
    """Return what the user is told of `error`, or None for a fault of ours, which needs its traceback."""
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return explain(error.exceptions[0])
    if isinstance(error, ShardgateError):
        return error
    if isinstance(getattr(error, "what", None), str) and isinstance(getattr(error, "remedy", None), str):
        return ShardgateError(
            str(getattr(error, "what", "")),
            where=str(getattr(error, "where", "") or ""),
            why=str(getattr(error, "why", "") or ""),
            remedy=str(getattr(error, "remedy", "") or ""),
        )
    if isinstance(error, ModuleNotFoundError):
        missing = (error.name or "").split(".")[0]
        if missing in ("harness", "contracts", ""):
            return None
        return ShardgateError(
            f"this needs the package `{missing}`, which is not installed",
            why="the base install probes, audits and verifies; booting a server needs SGLang",
            remedy="install shardgate with its extra `cpu` (or `gpu`), or run `make demo` in a clone",
        )
    if isinstance(error, OSError):
        return ShardgateError(
            error.strerror or str(error) or type(error).__name__,
            where=str(error.filename or ""),
            remedy="check the path, its permissions, the disk and the network" if error.errno else "",
        )
    return None


def show(error: ShardgateError) -> None:
    """Print an error's four parts on standard error; what came from outside can't act on the terminal."""
    from harness.report.text import safe

    click.secho("error: ", fg="red", bold=True, nl=False, err=True)
    click.echo(_indented(safe_lines(error.what, safe)), err=True)
    for label, text in (("where", error.where), ("why", error.why), ("remedy", error.remedy)):
        if text:
            click.echo(f"  {label + ':':<8}{_indented(safe_lines(text, safe), 10)}", err=True)


def safe_lines(text: str, safe: Callable[[str], str]) -> str:
    """Return `text` made safe line by line, passwords in URLs left out: a log's telling lines stay lines."""
    return "\n".join(safe(masked_urls(line)) for line in str(text).splitlines())


def _indented(text: str, width: int = 2) -> str:
    return text.replace("\n", "\n" + " " * width)
