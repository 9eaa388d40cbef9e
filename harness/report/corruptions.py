"""`docs/corruptions.md`: every corruption with the rule that must catch it and what else fires, as recorded.

Place in the flow: beside `harness.report.reference`, which writes the page. Imports `contracts` and, of the
repository, `fixtures.corruptions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADS = ("corruption", "caught by", "also fires", "reported as")


def corruptions(table: Any, mark: str) -> str:
    """Return the page; `table` makes a Markdown table, `mark` says that the page is generated."""
    from contracts.formats import FORMATS
    from contracts.rules import RULES
    from fixtures.corruptions import FILES, OPERATORS, SETS, matrix

    kept = matrix.recorded()

    def rows(operators: Mapping[str, Any], fired: Mapping[str, list[str]]) -> list[tuple[str, ...]]:
        return [
            (
                f"`{name}`",
                f"`{one.rule}`",
                ", ".join(f"`{rule}`" for rule in fired.get(name, ()) if rule != one.rule),
                one.report,
            )
            for name, one in sorted(operators.items(), key=lambda item: (item[1].rule, item[0]))
        ]

    count = len(OPERATORS) + len(SETS) + len(FILES)
    meant = {one.rule for operators in (OPERATORS, SETS, FILES) for one in operators.values()}
    lines = [
        "# Corruptions",
        "",
        mark,
        "",
        f"{count} ways of spoiling good data, each with the rule that must catch it, and which other rules",
        f"fire; {len(meant)} of {len(RULES)} rules have one. Measured under the profile `draft`, rows over",
        f"the families {' and '.join(f'`{name}`' for name in matrix.FAMILIES)}; a test spoils rows of all",
        f"{len(FORMATS)} at random. On their clean rows no rule fires, under any profile. The operators are",
        "in `fixtures/corruptions/`; the record is made by:",
        "",
        "    python -m fixtures.corruptions.matrix",
        "",
        "## Rows",
        "",
        *table(HEADS, rows(OPERATORS, kept["rows"])),
        "",
        "## Sets of shards",
        "",
        "Some of these spoil what comes with the rows (thresholds, an eval set, a vocabulary map, the",
        "model's template) or keep the metadata of the clean files.",
        "",
        *table(HEADS, rows(SETS, kept["sets"])),
        "",
        "## Files",
        "",
        *table(HEADS, rows(FILES, kept["files"])),
        "",
        "## Rules without a corruption",
        "",
        *table(("rule", "why"), ((f"`{rule}`", why) for rule, why in sorted(matrix.NOT_ALONE.items()))),
        "",
        "## What no rule can see",
        "",
        "A writer that makes the digests anew can change what nothing else in the row depends on.",
        "",
        *table(("change", "what it takes to see it"), UNSEEN),
    ]
    return "\n".join(lines) + "\n"


UNSEEN = (
    (
        "the temperature, or another recorded sampling parameter, is changed",
        "`replay` by the target model",
    ),
    (
        "the prompt's beginning is cut, a message or the generation prompt is there twice, tools were not "
        "told to the model",
        "the model's template: `prompt-differs`; without it only what the messages say is looked for",
    ),
    (
        "`length` told as `abort`",
        "nothing: the ids are the same, the row is told by a rate or a warning either way",
    ),
    (
        "log-probabilities of another row of the same length",
        "`replay` by the target model",
    ),
    (
        "arguments re-spaced where the family's calls are tags, not JSON",
        "nothing: the tokens are the same; the template writes the same text",
    ),
    (
        "all rows of a set told as another revision of the model, metadata included",
        "`replay` by the target model",
    ),
)
"""(change, what it takes)"""
