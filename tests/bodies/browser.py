"""A headless browser and what a model may try on a reader of its output: shared by the pages' tests.

Place in the flow: none; imported by tests only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

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


def chromium() -> str:
    """Return the browser's command; the test is skipped where there is none, failed under CI."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        told = "no Chromium on the path (Debian: apt-get install chromium, or run .ci/browser as root)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(told)
    return str(found)


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
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


def acts_on_nothing(page: str) -> None:
    """Hold a page to having no tag or attribute that acts: only what the template writes."""
    parts = Parts()
    parts.feed(page)
    assert not parts.tags & {
        *("script", "img", "image", "link", "iframe", "object", "embed", "form", "input", "base", "video"),
        *("math", "foreignobject", "use", "animate", "set"),
    }
    names = {name for name, _ in parts.attributes}
    assert not {name for name in names if name.startswith("on")} and not names & {"style", "src", "srcdoc"}
    assert all(value.startswith("#") for name, value in parts.attributes if name == "href")
    policy = next(value for name, value in parts.attributes if name == "content" and "default-src" in value)
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src" not in policy
