"""The HTML report in a real browser, over rows in which a model tried to run script: nothing runs or loads.

Place in the flow: tests the command's page in headless Chromium (`.ci/browser` installs it). A page without
the report's protection is opened first: what it shows proves that the test can see an attack.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=3000",
]
MARK = "document.title='owned';document.documentElement.dataset.owned='1'"
ATTACKS = (
    "<script>{mark}</script>",
    '<img src=x onerror="{mark}">',
    "<img src='{url}/img'>",
    "</style><script>{mark}</script><style>@import '{url}/css';",
    "</title><script>{mark}</script>",
    "</script><script>{mark}</script>",
    "--><svg onload=\"{mark}\"><script>{mark}</script><image href='{url}/svg'/></svg>",
    '" onmouseover="{mark}" autofocus onfocus="{mark}" x="',
    "' autofocus onfocus='{mark}' x='",
    '<a href="javascript:{mark}">[x](javascript:{mark})</a>',
    "{{{{ 7*191 }}}}{{% set x = 1 %}}${{7*191}}#{{7*191}}",
    "}} body {{ background: url({url}/background) }} * {{ display: none",
    "<iframe src=\"javascript:parent.{mark}\"></iframe><object data='{url}/object'></object>",
    "<link rel=stylesheet href='{url}/sheet'><link rel=prefetch href='{url}/prefetch'>",
    "<meta http-equiv=refresh content='0;url={url}/refresh'><base href='{url}/'>",
    "<form action='{url}/form'><input name=a autofocus onfocus=\"{mark}\"></form>",
    "&lt;script&gt;{mark}&lt;/script&gt;&#60;script&#62;{mark}&#60;/script&#62;",
    '<details open ontoggle="{mark}"><video src=\'{url}/v\' onerror="{mark}"></video></details>',
    "\u202e<script>\u2066{mark}\u2069</script>\u200b\ufeff\x00\x1b]0;owned\x07\u2028{mark}",
    '<math><mtext><table><mglyph><style><img src=x onerror="{mark}">',
)


@pytest.fixture(scope="module")
def browser() -> str:
    """The browser's command; skipped where there is none, failed under CI."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        told = "no Chromium on the path (Debian: apt-get install chromium, or run .ci/browser as root)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(told)
    return str(found)


@pytest.fixture
def web() -> Iterator[tuple[str, list[str]]]:
    """A server on loopback that notes what is asked of it: its address and the paths."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()
    thread.join()


def dumped(browser: str, page: str, folder: Path) -> str:
    """Return the document as it stands after the page was opened."""
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    profile = folder / "profile"
    done = subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": str(folder)},
    )
    shutil.rmtree(profile, ignore_errors=True)
    assert "<body" in done.stdout, done.stderr[-2000:]
    return done.stdout


def owned(document: str) -> bool:
    """Return whether a script of an attack ran."""
    return "<title>owned</title>" in document or re.search(r"<html[^>]*data-owned", document) is not None


def attacks(url: str) -> list[str]:
    return [attack.format(mark=MARK, url=url) for attack in ATTACKS]


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


def text_of(page: str) -> str:
    """Return a page's text, without its tags."""
    parts: list[str] = []
    parser = HTMLParser()
    parser.handle_data = parts.append  # type: ignore[method-assign]
    parser.feed(page)
    parser.close()
    return "".join(parts)


class Parts(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


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
    parts = Parts()
    parts.feed(evil_page(tmp_path / "shards", "http://192.0.2.1"))
    assert not parts.tags & {
        *("script", "img", "image", "link", "iframe", "object", "embed", "form", "input", "base", "video"),
        *("math", "foreignobject", "use", "animate", "set"),
    }
    names = {name for name, _ in parts.attributes}
    assert not {name for name in names if name.startswith("on")} and not names & {"style", "src", "srcdoc"}
    assert all(value.startswith("#") for name, value in parts.attributes if name == "href")
    policy = next(value for name, value in parts.attributes if name == "content" and "default-src" in value)
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src" not in policy


def test_hidden_and_turning_characters_are_spelled_out(tmp_path: Path) -> None:
    page = evil_page(tmp_path / "shards", "http://192.0.2.1")
    assert not set(page) & set("\u202e\u2066\u2069\u200b\ufeff\x00\x1b\x07\u2028")
    assert "\\u202e" in page and "\\x1b" in page
