"""Texts without ids mended on an assumption that the user states, and marked with it for good.

Place in the flow: under repair, on request only. Imports losses, records and shard of `contracts`.

The mark is a loss of the row (`contracts.losses.ASSUMED`), so every audit sees it: the verdict stays
`unproven`, the strength `text`, and the rule `mended-on-assumption` keeps the row out of a certified set
unless it is waived.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from contracts.fields import target_of, with_fields
from contracts.formats import Format
from contracts.records import Fields, Verdict
from contracts.shard import Row, seal


@dataclass(frozen=True, slots=True)
class Assumption:
    """What is taken for true, the loss that marks it, and what it makes of fields (None: it does not fit)."""

    meaning: str
    loss: str
    mend: Callable[[Fields, Format], Fields | None]


def _opener_missing(fields: Fields, fmt: Format) -> Fields | None:
    """Split the content at its only closer; an opener is taken away where it stands first."""
    content = fields.content or ""
    if (fields.reasoning_content or "").strip() or content.count(fmt.closer) != 1:
        return None
    thought, _, said = content.partition(fmt.closer)
    if thought.lstrip().startswith(fmt.opener):
        thought = thought.lstrip()[len(fmt.opener) :]
    if any(marker in part for part in (thought, said) for marker in (*fmt.markers, *fmt.end_tokens)):
        return None
    return Fields(thought or None, said or None, fields.tool_calls)


def _tags_doubled(fields: Fields, fmt: Format) -> Fields | None:
    """Take one opener from the reasoning's start, and one closer from its end or the content's start."""
    thought, said = fields.reasoning_content or "", fields.content or ""
    if not thought:
        return None
    begun = thought.lstrip()
    if begun.startswith(fmt.opener):
        thought = begun[len(fmt.opener) :]
    if thought.rstrip().endswith(fmt.closer):
        thought = thought.rstrip()[: -len(fmt.closer)]
    if said.lstrip().startswith(fmt.closer):
        said = said.lstrip()[len(fmt.closer) :]
    mended = Fields(thought or None, said or None, fields.tool_calls)
    unchanged = (thought, said) == (fields.reasoning_content or "", fields.content or "")
    if unchanged or any(tag in part for part in (thought, said) for tag in (fmt.opener, fmt.closer)):
        return None
    return mended


ASSUMPTIONS: Mapping[str, Assumption] = {
    "opener-missing": Assumption(
        "the prompt ended with the opener and no parser ran: what stands before the closer is the thinking",
        "opener-assumed",
        _opener_missing,
    ),
    "tags-doubled": Assumption(
        "a template wrote the think markers a second time: one of each is no part of the text",
        "tags-assumed-doubled",
        _tags_doubled,
    ),
}


def assumed(row: Row, fmt: Format, names: tuple[str, ...]) -> tuple[Row, str] | None:
    """Return a row of strength `text` as the first assumption that fits mends it, and that one's name."""
    if row["response_token_ids"] is not None or not fmt.thinks:
        return None
    fields = Fields(row["reasoning_content"], row["content"], row["tool_calls"])
    for name in names:
        mended = ASSUMPTIONS[name].mend(fields, fmt)
        if mended is None:
            continue
        out = with_fields(row, mended)
        out["messages"] = [*row["messages"][:-1], target_of(mended)]
        out["claims"] = dict.fromkeys(("captured", "text", "rebuilt", "tokens"))
        out["verdict"] = str(Verdict.UNPROVEN)
        out["losses"] = ["ids-missing", ASSUMPTIONS[name].loss]
        return seal(out), name
    return None
