"""The docs are tested: each `shardgate ...` line parses, each flag is told, links lead somewhere.

Place in the flow: none; reads README.md, CHANGELOG.md and docs/. Runs no command, only parses.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from contracts.formats import FORMATS
from contracts.losses import LOSSES
from contracts.records import Verdict
from contracts.rules import RULES
from harness.cli import cli
from harness.report import reference

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(?:bash|console|sh)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(shardgate(?: [^`]+)?)`")
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")


def _commands(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    for line in text.replace("\\\n", " ").splitlines():
        # Fenced or indented: a line that begins with the command is one to type.
        line = line.strip().removeprefix("$ ").removeprefix(".venv/bin/")
        if line.startswith("shardgate "):
            yield line
    yield from INLINE.findall(FENCE.sub("", text))


def _cases() -> list[tuple[str, str]]:
    return sorted({(page.name, command) for page in PAGES for command in _commands(page)})


def _parse(command: str) -> None:
    """Parse a command line as the installed command would, without running it; placeholders stay words."""
    words = shlex.split(command, comments=True)[1:]
    words = words[: next((place for place, word in enumerate(words) if word in (">", "|", "&&")), len(words))]
    if not words or words[0].startswith("-"):
        cli.make_context("shardgate", words or ["--help"], resilient_parsing=True)
        return
    found = cli.commands.get(words[0])
    assert found is not None, f"no command {words[0]!r}"
    context = click.Context(found, info_name=words[0])
    options, rest, _ = found.make_parser(context).parse_args(args=list(words[1:]))
    for parameter in found.params:
        value = options.get(parameter.name or "")
        choices = parameter.type.choices if isinstance(parameter.type, click.Choice) else None
        if choices and value is not None:
            given = set(value) if isinstance(value, list) else {value}
            assert given <= set(choices), f"{value!r} is none of {choices}"
    assert not rest, f"words that the command does not take: {rest}"


@pytest.mark.parametrize(("page", "command"), _cases(), ids=lambda value: value[:60])
def test_each_command_in_the_docs_parses(page: str, command: str) -> None:
    _parse(command)


@pytest.mark.parametrize(
    "command", ["shardgate nothing", "shardgate audit x --nothing", "shardgate audit x --profile nothing"]
)
def test_a_wrong_command_would_be_seen(command: str) -> None:
    with pytest.raises((AssertionError, click.ClickException)):
        _parse(command)


def test_the_docs_show_every_command_and_every_flag() -> None:
    told = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for name, command in cli.commands.items():
        assert f"shardgate {name}" in told
        flags = {flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")}
        assert not {flag for flag in flags if flag not in told}, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert not [link for link in targets if not (page.parent / link).exists()]


def test_the_vocabulary_is_complete() -> None:
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    for word in (*(f"`{verdict}`" for verdict in Verdict), "golden prompt", "certificate", "reconstruction"):
        assert word in design


@pytest.mark.parametrize("name", sorted(reference.PAGES))
def test_the_reference_pages_are_the_registries(name: str) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert page == reference.PAGES[name](), "run `make docs`"


def test_the_reference_pages_name_everything() -> None:
    losses, rules = reference.known_losses(), reference.rules()
    assert not [name for name in (*LOSSES, *FORMATS) if f"`{name}`" not in losses]
    assert not [name for name in RULES if f"`{name}`" not in rules]
    assert not re.search(r"\{(reasoning_parser|tool_parser|template_switch)\}", losses + rules)
