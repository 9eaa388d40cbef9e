"""Clean rows of every family give no finding, and their fields are what SGLang's parsers hand out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contracts import audit, write_shard
from contracts.formats import FORMATS
from contracts.records import Fields, Profile, Severity
from fixtures.corruptions.families import CUT, TURNS, can_say, capture_of, codec_of, family_rows
from tests.conftest import need


@pytest.mark.parametrize("family", sorted(FORMATS))
def test_clean_rows_give_no_finding_under_any_profile(tmp_path: Path, family: str) -> None:
    rows = family_rows(family)
    shard = write_shard(tmp_path / "a.parquet", rows, format_name=family)
    assert {row["verdict"] for row in rows} == {"exact"}
    for profile in Profile:
        result = audit([shard], profile=profile, codec=codec_of(family))
        assert result.findings == (), profile
        assert (result.certified, result.quarantined) == (len(rows), 0)


@pytest.mark.parametrize("family", sorted(FORMATS))
def test_rows_that_were_cut_are_certified(tmp_path: Path, family: str) -> None:
    rows = family_rows(family, (*TURNS, *CUT))
    shard = write_shard(tmp_path / "a.parquet", rows, format_name=family)
    for profile in (Profile.DRAFT, Profile.SFT):
        result = audit([shard], profile=profile, codec=codec_of(family))
        assert [found for found in result.findings if found.severity is Severity.ERROR] == []
        assert result.certified == len(rows)


def test_every_kind_of_turn_is_said_by_many_families() -> None:
    said = {turn.name: sum(can_say(fmt, turn) for fmt in FORMATS.values()) for turn in (*TURNS, *CUT)}
    assert len(FORMATS) >= 35
    assert min(said.values()) >= 20, said


@pytest.mark.parametrize("family", sorted(FORMATS))
def test_the_fields_are_what_sglang_hands_out(family: str) -> None:
    need("sglang")
    from harness.parsers import ParserSetup, parse_whole

    fmt = FORMATS[family]
    for turn in (*TURNS, *CUT):
        if not can_say(fmt, turn) or turn.raw:
            continue
        capture = capture_of(turn, fmt, 0)
        ids = capture.response_token_ids or ()
        parsed = parse_whole(
            ids,
            codec=codec_of(family),
            setup=ParserSetup(
                reasoning_parser=capture.server.reasoning_parser,
                tool_parser=capture.server.tool_parser if turn.tools else None,
                tools=capture.prompt.tools,
                forced=fmt.forced(fmt.asked(capture.prompt.template_kwargs)),
                history_calls=sum(not isinstance(part, str) for part in turn.before),
            ),
            finish_reason=turn.finish,
            matched_stop=ids[-1] if turn.finish == "stop" else None,
        )
        assert _said(parsed.fields) == _said(capture.fields), turn.name
        assert (parsed.finish_reason, parsed.matched_stop) == (capture.finish_reason, capture.matched_stop)


def _said(fields: Fields) -> tuple[str, str, list[dict[str, str]]]:
    """Return the fields without the calls' ids, which most servers draw."""
    calls = json.loads(fields.tool_calls or "[]")
    return fields.reasoning_content or "", fields.content or "", [call["function"] for call in calls]
