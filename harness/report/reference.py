"""The reference pages of the docs, written from the registries: losses, formats and rules are listed once.

Place in the flow: beside the reports; `make docs` runs it. May import `contracts`, `harness.paths`, fixtures.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from contracts.formats import FORMATS
from contracts.losses import LOSSES
from contracts.records import VERDICT_ORDER, Profile
from harness.paths import fixtures_dir

_GENERATED = "<!-- Written by `make docs` from the registries; edit those. -->"


def known_losses() -> str:
    """Return `docs/known-losses.md`: each loss with verdict, meaning and remedy, each format's grammar."""
    lines = [
        "# Known losses",
        "",
        _GENERATED,
        "",
        "Every verdict but `exact` names at least one of these. `PARSER` and `SWITCH` stand for the names",
        "that the model's format has; `shardgate probe` puts them in.",
        "",
    ]
    for verdict in VERDICT_ORDER:
        specs = [spec for spec in LOSSES.values() if spec.verdict is verdict]
        if specs:
            rows = ((f"`{spec.name}`", spec.meaning, _placeholders(spec.remedy)) for spec in specs)
            lines += [f"## `{verdict}`", "", *_table(("loss", "what it means", "what to do"), rows), ""]
    lines += ["## Formats, and where each is `exact`", ""]
    for form in FORMATS.values():
        parsers = ", ".join(f"`{name}`" for name in form.reasoning_parsers)
        tools = ", ".join(f"`{name}`" for name in form.tool_parsers) or "none known"
        lines += [
            f"### `{form.name}`",
            "",
            f"Models: {', '.join(form.models)}. Reasoning parsers: {parsers}; tool-call parsers: {tools}.",
            "",
            f"Safe grammar: {form.safe_grammar}",
            "",
        ]
    return "\n".join([*lines, *_three_boots(), *_bank()]).rstrip() + "\n"


def _three_boots() -> list[str]:
    """Return what `fixtures/three-boots.toml` says of one boot in place of three, as two tables."""
    pairs = tomllib.loads((fixtures_dir() / "three-boots.toml").read_text(encoding="utf-8"))["pair"]

    def side(found: list[str]) -> str:
        return f"{found[1]} ({found[0]})"

    named = [(pair, one) for pair in pairs for one in pair.get("difference", ())]
    return [
        "## One boot in place of three",
        "",
        "On a server with both parsers the switches of a request stand for a boot without them: the same",
        "bodies to servers booted with both parsers, a reasoning parser only, and none",
        "(`tests/server/test_three_boots.py`, SGLang 0.5.23; `fixtures/three-boots.toml`). `plain` is what",
        "an application sends that sets no switch. The same in every field, finish reason and ids:",
        "",
        *_table(
            ("asked for (of a boot with)", "and asked for (of a boot with)"),
            ((side(pair["left"]), side(pair["right"])) for pair in pairs if "difference" not in pair),
        ),
        "",
        "Not the same, and why:",
        "",
        *_table(
            ("difference", "between", "in", "what happens", "what to do"),
            (
                (
                    f"`{one['name']}`",
                    f"{side(pair['left'])} and {side(pair['right'])}",
                    ", ".join((*one.get("parts", ()), *one.get("whole_only", ()))),
                    one["what"],
                    one["then"],
                )
                for pair, one in named
            ),
        ),
        "",
    ]


def _bank() -> list[str]:
    """Return the counterexamples and faults that `fixtures/counterexamples/` keeps, as two tables."""
    folder = fixtures_dir() / "counterexamples"
    cases = tomllib.loads((folder / "sglang.toml").read_text(encoding="utf-8"))["case"]
    faults = tomllib.loads((folder / "faults.toml").read_text(encoding="utf-8"))["fault"]
    case_rows = (
        (
            case["name"],
            case.get("format", "kimi_k2"),
            f"{case['version']}{', streamed' if 'chunks' in case else ''}",
            case["verdict"],
            ", ".join(f"`{loss}`" for loss in case["losses"]) or "none",
            case.get("report", ""),
        )
        for case in cases
    )
    return [
        "## Counterexamples",
        "",
        "Each is replayed through SGLang's own parsers (`tests/unit/test_counterexamples.py`); the token",
        "streams are in `fixtures/counterexamples/sglang.toml`.",
        "",
        *_table(("what the model does", "format", "SGLang", "verdict", "losses", "reported as"), case_rows),
        "",
        "## Faults of other packages",
        "",
        *_table(
            ("package", "what happens", "what shardgate does", "held by"),
            ((f["package"], f["what"], f["then"], f"`{f['held_by']}`") for f in faults),
        ),
    ]


def rules() -> str:
    """Return `docs/rules.md`: each rule with its severities by profile, its meaning and its remedy."""
    from contracts.rules import RULES

    heads = ("rule", "kind", *(str(profile) for profile in Profile), "what it means", "what to do")
    rows = (
        (
            f"`{spec.id}`",
            f"{spec.kind}, {spec.scope}",
            *(str(spec.severity(profile) or "off") for profile in Profile),
            spec.meaning,
            _placeholders(spec.remedy),
        )
        for spec in sorted(RULES.values(), key=lambda spec: (spec.kind, spec.id))
    )
    lines = [
        "# Rules",
        "",
        _GENERATED,
        "",
        "A fidelity rule asks whether the row is what the model generated, a quality rule whether one wants",
        "such rows. A finding of the severity `error` keeps its row (over a file: the file's rows)",
        "out; the profile sets the severities.",
        "",
        *_table(heads, rows),
    ]
    return "\n".join(lines) + "\n"


def _placeholders(text: str) -> str:
    for name in ("reasoning_parser", "tool_parser"):
        text = text.replace(f"{{{name}}}", "PARSER")
    return text.replace("{template_switch}", "SWITCH")


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    heads = tuple(heads)
    body = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *body)]


PAGES = {"known-losses.md": known_losses, "rules.md": rules}


def main() -> None:
    """Write the pages into the folder named on the command line."""
    for name, page in PAGES.items():
        (Path(sys.argv[1]) / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
