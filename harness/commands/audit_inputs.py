"""What `shardgate audit` is given besides shards: thresholds, rules, eval set, draft vocabulary, rates, keys.

Place in the flow: outermost, under the audit command. Imports click; `contracts` inside functions.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from contracts.errors import ShardgateError

if TYPE_CHECKING:
    from contracts.given import Given
    from contracts.replayed import Replay
    from contracts.thresholds import Thresholds

Command = TypeVar("Command", bound=Callable[..., Any])
_PATH = click.Path(path_type=Path)

_OPTIONS = (
    click.option("--processes", type=click.IntRange(min=1), metavar="N",
                 help="Check so many shards at a time; all cores where there is enough to check."),
    click.option("--encode", type=click.Choice(["all", "sample", "none"]), default="all", show_default=True,
                 help="Of which rows the text is encoded again; only `all` certifies."),
    click.option("--thresholds", type=_PATH, metavar="FILE",
                 help="A TOML file of thresholds, caps and severities, laid over the defaults."),
    click.option("--rules", type=_PATH, multiple=True, metavar="FILE.py",
                 help="A Python file with rules of your own; it is run."),
    click.option("--eval-set", type=_PATH, multiple=True, metavar="FILE",
                 help="Prompts that must not be trained on: parquet, JSON lines or text."),
    click.option("--draft-vocab", type=_PATH, metavar="FILE",
                 help="The draft model's vocabulary: its checkpoint or its d2t/t2d arrays."),
    click.option("--render-prompts/--no-render-prompts", default=None,
                 help="Render each prompt again with the tokenizer folder's chat template and compare ids; "
                 "done where the folder has one."),
    click.option("--stats-in", type=_PATH, metavar="FILE",
                 help="Rates of an earlier set, which this set's are held against."),
    click.option("--stats-out", type=_PATH, metavar="FILE", help="Write this set's rates, for --stats-in."),
    click.option("--sign-key", type=_PATH, metavar="PEM",
                 help="Sign the certificate with this private key; needs --certify."),
    click.option("--replay", type=_PATH, metavar="FILE",
                 help="What `shardgate replay` wrote of these shards, for the certificate; needs --certify."),
)  # fmt: skip


def input_options(command: Command) -> Command:
    """Add the options; the command takes them as one `Inputs` (see `Inputs.of`)."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Inputs:
    """The options' values, checked as far as they can be without reading a shard."""

    processes: int | None
    encode: str
    thresholds: Path | None
    rules: tuple[Path, ...]
    eval_set: tuple[Path, ...]
    draft_vocab: Path | None
    render_prompts: bool | None
    stats_in: Path | None
    stats_out: Path | None
    sign_key: Path | None
    replay: Path | None

    def check(self, certify: Path | None) -> None:
        """Raise `ShardgateError` for what would fail only after the work."""
        from harness.report.files import check_writable

        if self.stats_out is not None:
            check_writable(self.stats_out, "rates")
        if certify is not None and self.encode != "all":
            raise ShardgateError(
                f"--encode {self.encode} can't certify",
                why="a certificate says of every row that its text encodes to its ids",
                remedy="leave out --encode, or audit without --certify",
            )
        if self.replay is not None:
            there(self.replay, "record", "give the replay.json that `shardgate replay` wrote")
            if certify is None:
                raise ShardgateError(
                    "there is no certificate for the replay to enter",
                    where="--replay",
                    why="the audit itself does not ask the model",
                    remedy="add --certify DIR, or leave out --replay",
                )
        if self.sign_key is None:
            return
        if certify is None:
            raise ShardgateError(
                "there is nothing to sign",
                where="--sign-key",
                why="without --certify no certificate is written",
                remedy="add --certify DIR, or sign later: shardgate sign DIR --key PEM",
            )
        there(self.sign_key, "key", "give the PEM file of a private key")

    def load_replay(self) -> Replay | None:
        """Return the record of a replay, found whole."""
        from contracts.replayed import read_replay

        return None if self.replay is None else read_replay(self.replay)

    def load_rules(self) -> None:
        """Run the files of own rules; waivers may name what they declare."""
        from contracts.rules.own import load_rules

        for path in self.rules:
            load_rules(path)

    def load_thresholds(self) -> Thresholds:
        """Return the thresholds."""
        from contracts.thresholds import load_thresholds

        return load_thresholds(self.thresholds)

    def load_given(self, tokenizer: Path | None) -> Given:
        """Return what rules compare with."""
        from contracts.given import Given, load_rates, load_template

        eval_set = draft = None
        if self.eval_set:
            from contracts.evals import load_eval_set

            eval_set = load_eval_set(self.eval_set)
        if self.draft_vocab is not None:
            from contracts.drafts import load_draft_vocabulary

            draft = load_draft_vocabulary(self.draft_vocab)
        template, untemplated = None, "--no-render-prompts was given"
        if self.render_prompts is not False:
            untemplated = "the tokenizer's folder has no chat template" if tokenizer is not None else ""
            folder = tokenizer.parent if tokenizer is not None and tokenizer.is_file() else tokenizer
            template = load_template(folder) if folder is not None else None
            if template is None and self.render_prompts:
                raise ShardgateError(
                    "there is no chat template to render the prompts with",
                    where=str(folder or "--tokenizer"),
                    why="neither chat_template.jinja nor the tokenizer's configuration has one"
                    if folder
                    else "no tokenizer folder was given or found",
                    remedy="pass --tokenizer with the model's own folder",
                )
        return Given(
            eval_set=eval_set,
            draft_vocabulary=draft,
            stored_rates=load_rates(self.stats_in) if self.stats_in is not None else None,
            template=template,
            untemplated="" if template is not None else untemplated,
        )


def there(path: Path, what: str, remedy: str) -> None:
    """Raise `ShardgateError` where `path` is not there, and name what is there under a similar name."""
    if path.exists():
        return
    near = path
    while not near.parent.is_dir() and near.parent != near.parent.parent:
        near = near.parent
    why = f"the folder {near.parent.resolve()} holds no `{near.name}`"
    if path.is_symlink():
        why = "it is a link to something that is not there"
    elif near.parent.is_dir():
        names = [entry.name for entry in near.parent.iterdir()]
        if similar := difflib.get_close_matches(near.name, names, n=3):
            remedy = f"did you mean {' or '.join(str(near.parent / name) for name in similar)}? Else {remedy}"
    verb = "are" if what.endswith("s") else "is"
    raise ShardgateError(f"the {what} {verb} not there", where=str(path), why=why, remedy=remedy)
