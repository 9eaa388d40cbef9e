"""The HTML report in a real browser, over rows in which a model tried to run script: nothing runs or loads.

Place in the flow: tests the command's page in headless Chromium (`.ci/browser` installs it). A page without
the report's protection is opened first: what it shows proves that the test can see an attack.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contracts import write_shard
from contracts.run import audit
from contracts.shard import seal
from contracts.tokens import load_codec
from fixtures.corruptions.rows import CLEAN, rows_of, tokenizer_path
from harness.commands import examples
from harness.report import audit_html
from harness.report.text import safe
from tests.bodies.browser import acts_on_nothing, attacks, chromium, dumped, listening, owned, text_of


@pytest.fixture(scope="module")
def browser() -> str:
    return chromium()


@pytest.fixture
def web() -> Iterator[tuple[str, list[str]]]:
    with listening() as server:
        yield server


def evil_page(folder: Path, url: str) -> str:
    """The report on a shard whose every text, name and token is an attack; nothing of it is left out."""
    rows = []
    for number, attack in enumerate(attacks(url)):
        case = replace(CLEAN[0], content=f"An answer: {attack}", reasoning=f"Thinking: {attack}")
        (row,) = rows_of([case], first=number)
        # The tokens are the attack's; the fields another text: so the token diff shows both.
        row = {**row, "content": f"Another: {attack}", "finish_reason": attack, "sample_id": attack}
        row |= {"matched_stop": attack, "verdict": attack, "losses": [attack]}
        rows.append(seal(row))
    for name, part in (("<img src=x onerror=1>", rows), ("&quot;'\" autofocus ", rows[:1])):
        write_shard(folder / f"{name}.parquet", part, format_name="kimi_k2")
    codec = load_codec(tokenizer_path())
    result = audit([folder], codec=codec, waivers={"mask-span": attacks(url)[0]})
    with pytest.MonkeyPatch.context() as limits:
        limits.setattr(examples, "EXAMPLES", len(rows))
        limits.setattr(audit_html, "FINDINGS", len(rows))
        shown = examples.token_examples(result, codec)
        page = audit_html.render_audit(result, shown)
    assert result.errors and shown
    told = "".join(text_of(page).split())
    lost = [attack for attack in attacks(url) if "".join(safe(attack, 80)[:-1].split()) not in told]
    assert not lost, "attacks that the page does not show prove nothing"
    return page


def test_an_unprotected_page_is_owned(browser: str, web: tuple[str, list[str]], tmp_path: Path) -> None:
    url, asked = web
    page = "<!doctype html><title>safe</title><body>" + "".join(attacks(url)[:3])
    assert owned(dumped(browser, page, tmp_path))
    assert "/img" in asked


def test_the_report_runs_and_loads_nothing(browser: str, web: tuple[str, list[str]], tmp_path: Path) -> None:
    url, asked = web
    page = evil_page(tmp_path / "shards", url)
    document = dumped(browser, page, tmp_path)
    assert not owned(document) and "<title>shardgate audit</title>" in document
    assert asked == []
    assert "1337" not in document, "no template ran"


def test_the_reports_policy_holds_even_where_escaping_would_not(
    browser: str, web: tuple[str, list[str]], tmp_path: Path
) -> None:
    """The second wall: attacks put into the page as they stand."""
    url, asked = web
    page = evil_page(tmp_path / "shards", url)
    # A refresh is a navigation, which no policy of the page's own forbids; escaping alone stops it.
    raw = "".join(attack for attack in attacks(url) if "refresh" not in attack)
    document = dumped(browser, page.replace("<body>", f"<body>{raw}"), tmp_path)
    assert not owned(document)
    assert asked == []


def test_the_page_holds_no_tag_or_attribute_that_acts(tmp_path: Path) -> None:
    """The same without a browser: only what the template writes."""
    acts_on_nothing(evil_page(tmp_path / "shards", "http://192.0.2.1"))


def test_hidden_and_turning_characters_are_spelled_out(tmp_path: Path) -> None:
    page = evil_page(tmp_path / "shards", "http://192.0.2.1")
    assert not set(page) & set("\u202e\u2066\u2069\u200b\ufeff\x00\x1b\x07\u2028")
    assert "\\u202e" in page and "\\x1b" in page
