"""The reference pages of the docs, written from the registries: losses, formats and rules are listed once.

Place in the flow: beside the reports; `make docs` runs it. May import `contracts`, `harness.paths`, fixtures.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
    lines += ["Each loss as a token stream: [counterexamples](counterexamples.md)."]
    return "\n".join(lines) + "\n"


def counterexamples() -> str:
    """Return `docs/counterexamples.md`: the cases and faults that `fixtures/counterexamples/` keeps."""
    folder = fixtures_dir() / "counterexamples"
    cases: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.toml")):
        for case in tomllib.loads(file.read_text(encoding="utf-8")).get("case", ()):
            cases.setdefault(case.get("format", "kimi_k2"), []).append(case)
    faults = tomllib.loads((folder / "faults.toml").read_text(encoding="utf-8"))["fault"]
    lines = [
        "# Counterexamples",
        "",
        _GENERATED,
        "",
        "Token streams that SGLang's parsers lose, or were reported to lose, each as small as it shows;",
        "they are kept in `fixtures/counterexamples/`. To replay them through the installed SGLang, as the",
        "suite does:",
        "",
        "```bash",
        "shardgate bank                       # exits 1 when a verdict or its losses changed",
        "shardgate bank 'NAME'                # only this case",
        "shardgate bank --accept 'NAME'       # write what it showed into its file",
        "shardgate bank --accept --all        # the same for every case that changed",
        "shardgate bank --folder MINE --json  # a bank of your own, in files of the same form",
        "```",
        "",
    ]
    for name in sorted(cases, key=lambda name: (name != "kimi_k2", name)):
        rows = (
            (
                case["name"].removeprefix(f"{name}: "),
                f"{case.get('version', '?')}{', streamed' if 'chunks' in case else ''}",
                case.get("verdict", "not recorded"),
                ", ".join(f"`{loss}`" for loss in case.get("losses", ())) or "none",
                case.get("report", ""),
            )
            for case in cases[name]
        )
        heads = ("what the model does", "SGLang", "verdict", "losses", "reported as")
        lines += [f"## `{name}`", "", *_table(heads, rows), ""]
    held = ((f["package"], f["what"], f["then"], f"`{f['held_by']}`") for f in faults)
    heads = ("package", "what happens", "what shardgate does", "held by")
    lines += ["## Faults of other packages", "", *_table(heads, held)]
    return "\n".join(lines) + "\n"


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


PAGES = {"known-losses.md": known_losses, "counterexamples.md": counterexamples, "rules.md": rules}


def main() -> None:
    """Write the pages into the folder named on the command line."""
    for name, page in PAGES.items():
        (Path(sys.argv[1]) / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
