"""The reports: what is told, that it is told at 80 columns and in a pipe, and that model output can't act.

Place in the flow: tests `harness.report` and `harness.recommend`; no server.
"""

from __future__ import annotations

import io
import json
import re
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import ShardgateError
from contracts.losses import LOSSES
from contracts.records import (
    Divergence,
    Loss,
    Mode,
    SegmentKind,
    ServerFacts,
    Transport,
    Verdict,
)
from harness.outcomes import DemoReport, Outcome, ProbeReport, ShardLine
from harness.recommend import fill, recommend
from harness.report.data import dumps, plain
from harness.report.html import render_html, write_html
from harness.report.rows import tally
from harness.report.terminal import print_report
from harness.report.text import safe, without_secrets

WITH = ServerFacts(
    "http://127.0.0.1:3001",
    "demo",
    engine_version="0.5.23",
    reasoning_parser="kimi_k2",
    tool_parser="kimi_k2",
    flags={"api_key": "sesame", "tp_size": 1},
)
WITHOUT = ServerFacts("http://127.0.0.1:3002", "demo", engine_version="0.5.23")
EVIL = "\x1b[2J\x1b]0;owned\x07[red]<script>alert(1)</script>\u202egnp.exe\u2066\x9b31m\r\nfake line"


def outcome(
    prompt: str,
    mode: Mode = Mode.RAW,
    *losses: str,
    server: str = "parsers",
    expected: bool | None = True,
    segment: SegmentKind = SegmentKind.CONTENT,
    divergence: Divergence | None = None,
    fault: str | None = None,
) -> Outcome:
    verdict = LOSSES[losses[0]].verdict if losses else Verdict.EXACT
    return Outcome(
        prompt=prompt,
        mode=mode,
        transport=Transport.GENERATE if mode is Mode.RAW else Transport.CHAT,
        stream=False,
        server=server,
        scripted=True,
        verdict=verdict,
        losses=tuple(Loss(name, segment, 3, 14) for name in losses),
        divergence=divergence,
        expected=expected,
        expectation="exact",
        fault=fault,
        tokens=12,
    )


def demo_report() -> DemoReport:
    split = Divergence(3, 14, SegmentKind.CONTENT, EVIL, "", 5, None)
    results = (
        outcome("plain-answer"),
        outcome("plain-answer", Mode.REASONING),
        outcome("text-after-call", Mode.TOOLS, "text-after-call-dropped", divergence=split),
        outcome("plain-answer", Mode.REASONING, "reasoning-in-content", server="no parsers"),
        outcome("lost-answer", Mode.TOOLS, server="no parsers", expected=False, fault=f"HTTP 500 {EVIL}"),
    )
    return DemoReport(
        servers=(WITH, WITHOUT),
        results=results,
        shards=(ShardLine("part-00000.parquet", 24, 22, 2, "kimi_k2", ("reasoning-lost",)),),
        recommendation=recommend((WITH, WITHOUT), results, "kimi_k2"),
        certificate="certificate.json",
        run_folder="runs/demo",
        seconds={"boot": 31.0},
    )


def printed(report: DemoReport | ProbeReport) -> str:
    stream = io.StringIO()
    print_report(report, stream)
    return stream.getvalue()


def test_terminal_report_tells_everything_at_80_columns_without_colour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = printed(demo_report())
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text and not re.search(r"[─-╿]", text)
    assert not any(line != line.rstrip() for line in text.splitlines())
    for told in (
        "text-after-call-dropped",
        "reasoning-in-content",
        "contradicted",
        "part-00000.parquet",
        "token 3",
    ):
        assert told in text
    assert re.search(r"24 +22 +2 ", text)
    assert "--reasoning-parser kimi_k2 --tool-call-parser kimi_k2" in text
    assert "1 of 5 not as expected" in " ".join(text.split())


def test_terminal_report_lets_no_control_character_through() -> None:
    text = printed(demo_report())
    acting = {char for char in text if char != "\n" and unicodedata.category(char) in ("Cc", "Cf", "Cs")}
    assert acting == set()
    assert "[red]" in text.replace("\n", ""), "markup is shown as it stands"
    assert not any(line.strip() == "fake line" for line in text.splitlines())


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def test_html_is_self_contained_and_runs_nothing() -> None:
    page = render_html(demo_report())
    parser = _Tags()
    parser.feed(page)
    assert not {"script", "img", "link", "iframe", "object", "form"} & set(parser.tags)
    assert not [
        name for name, _ in parser.attributes if name.startswith("on") or name in ("src", "href", "style")
    ]
    policy = next(
        value for name, value in parser.attributes if name == "content" and value and "default" in value
    )
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page and "\u202e" not in page


def test_html_tells_what_the_terminal_tells() -> None:
    page = render_html(demo_report())
    for told in ("text-after-call-dropped", "reasoning-in-content", "part-00000.parquet", "reasoning-lost"):
        assert told in page
    assert "--reasoning-parser kimi_k2 --tool-call-parser kimi_k2" in page
    assert LOSSES["text-after-call-dropped"].meaning in page


def test_the_style_sheet_is_the_one_that_the_policy_admits() -> None:
    import base64
    import hashlib

    page = render_html(demo_report())
    style = page[page.index("<style>") + 7 : page.index("</style>")]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"sha256-{digest}" in page


def test_write_html_leaves_one_file(tmp_path: Path) -> None:
    write_html(tmp_path / "deep" / "report.html", demo_report())
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["report.html"]


def test_write_html_names_the_place_that_it_can_not_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ShardgateError) as caught:
        write_html(tmp_path / "file" / "report.html", demo_report())
    assert "report.html" in caught.value.where and caught.value.remedy


@given(st.text(), st.integers(min_value=2, max_value=40))
def test_safe_text_is_one_visible_line_within_its_limit(text: str, limit: int) -> None:
    shown = safe(text, limit)
    assert len(shown) <= limit
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in shown)
    assert safe(shown) == shown


def test_safe_keeps_what_people_write() -> None:
    assert safe("Grüße, 世界 🎉 [b] 100 %") == "Grüße, 世界 🎉 [b] 100 %"
    assert safe("a\nb") == "a\\nb"
    assert safe("e" + "\u0301" * 9).count("\u0301") == 4


def test_json_is_plain_ascii_and_hides_keys() -> None:
    text = dumps(demo_report())
    assert text.isascii()
    data = json.loads(text)
    assert data["servers"][0]["flags"] == {"api_key": "(not shown)", "tp_size": 1}
    assert data["results"][2]["losses"][0]["name"] == "text-after-call-dropped"
    assert data["results"][2]["divergence"]["raw"] == EVIL
    assert data["shards"][0]["rows"] == 24
    with pytest.raises(TypeError):
        plain(object())


def test_secrets_are_known_by_name_and_other_flags_stay() -> None:
    kept = without_secrets(
        {"tokenizer_path": "x", "hf_token": "y", "ssl_keyfile_password": "z", "api_key": None}
    )
    assert kept == {
        "tokenizer_path": "x",
        "hf_token": "(not shown)",
        "ssl_keyfile_password": "(not shown)",
        "api_key": None,
    }


def test_a_launch_command_travels_without_its_key() -> None:
    command = (
        "python -m sglang.launch_server --api-key sesame --tokenizer-path t --admin-api-key=open --port 1"
    )
    shown = without_secrets({"launch_command": command})["launch_command"]
    assert "sesame" not in shown and "open" not in shown
    assert "--tokenizer-path t" in shown and "--port 1" in shown


def test_tally_counts_verdicts_and_misses() -> None:
    assert tally(demo_report().results) == (
        "5 outcomes: 2 exact, 1 lossy, 1 contradicted, 1 without an answer; 1 of 5 not as expected"
    )


# What follows from the outcomes


def test_a_server_without_the_reasoning_parser_is_called_out_by_flag_and_parser() -> None:
    hit = [
        outcome(f"p{n}", Mode.REASONING, "reasoning-in-content", server="127.0.0.1:3002") for n in range(3)
    ]
    advice = recommend(WITHOUT, [*hit, outcome("p3", Mode.REASONING, server="127.0.0.1:3002")], "kimi_k2")
    assert "without `--reasoning-parser`" in advice.headline
    assert "`--reasoning-parser kimi_k2`" in advice.headline
    assert "3 of 4 prompts" in advice.headline
    assert advice.flags[:2] == ("--reasoning-parser", "kimi_k2")
    untrusted = {field.name for field in advice.fields if not field.trusted}
    assert {"reasoning: reasoning_content", "reasoning: content"} <= untrusted


def test_the_parser_named_is_the_models_own() -> None:
    advice = recommend(WITHOUT, [outcome("p", Mode.REASONING, "reasoning-in-content", server="x")], "qwen3")
    assert "`--reasoning-parser qwen3`" in advice.headline


def test_a_wrong_parser_is_called_out_too() -> None:
    wrong = ServerFacts("http://127.0.0.1:3001", "demo", reasoning_parser="glm45")
    advice = recommend(wrong, [outcome("p", Mode.REASONING, "reasoning-in-content")], "kimi_k2")
    assert (
        "`--reasoning-parser glm45`" in advice.headline and "`--reasoning-parser kimi_k2`" in advice.headline
    )


def test_the_right_parser_is_not_blamed_on_the_boot() -> None:
    advice = recommend(WITH, [outcome("p", Mode.REASONING, "reasoning-in-content"), outcome("q")], "kimi_k2")
    assert "was booted" not in advice.headline


def test_losses_are_counted_by_prompts_and_spoil_their_own_field_only() -> None:
    results = [outcome(f"p{n}", Mode.TOOLS) for n in range(6)] + [
        outcome(f"q{n}", Mode.TOOLS, "text-after-call-dropped") for n in range(3)
    ]
    advice = recommend(WITH, results, "kimi_k2")
    assert any("3 of 9 prompts lossy: text-after-call-dropped (3)" in reason for reason in advice.reasons)
    trust = {field.name: field.trusted for field in advice.fields}
    assert trust["tools: content"] is False
    assert trust["tools: tool_calls"] is True and trust["response_token_ids"] is True


def test_ids_in_doubt_are_not_to_be_trained_on() -> None:
    advice = recommend(WITH, [outcome("p", Mode.RAW, "invented-token"), outcome("q")], "kimi_k2")
    ids = next(field for field in advice.fields if field.name == "response_token_ids")
    assert ids.trusted is False and "1 of 2" in ids.why


def test_a_field_that_no_parser_fills_is_not_trusted() -> None:
    advice = recommend(WITHOUT, [outcome("p", Mode.TOOLS)], "kimi_k2")
    calls = next(field for field in advice.fields if field.name == "tools: tool_calls")
    assert calls.trusted is False and "--tool-call-parser" in calls.why


def test_nothing_measured_recommends_nothing() -> None:
    advice = recommend(WITH, [outcome("p", fault="connection cut")], "kimi_k2")
    assert "nothing was measured" in advice.headline
    assert advice.fields == () and any("connection cut" in reason for reason in advice.reasons)


CONTRADICTIONS = sorted(name for name, spec in LOSSES.items() if spec.verdict is Verdict.CONTRADICTED)


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_every_contradiction_has_a_line_with_its_remedy_filled_in(name: str) -> None:
    advice = recommend(WITH, [outcome("p", Mode.TOOLS, name)], "kimi_k2")
    line = next(reason for reason in advice.reasons if reason.startswith(f"{name} ("))
    assert "{" not in line and "}" not in line
    assert "{" not in fill(LOSSES[name].remedy, None)
