"""A run folder's page: what it says of a run, what it keeps to itself, what it lets an answer do (nothing).

Place in the flow: none; `harness.report.run_html` over folders that the real store wrote, without a server.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from contracts.shard import Row, seal
from contracts.tokens import load_codec
from fixtures.corruptions.rows import CLEAN, rows_of, tokenizer_path
from harness.commands.examples import examples_at
from harness.recording.counts import counts_of
from harness.recording.rows import Failure, Group, table_of
from harness.recording.settings import finish, pin
from harness.recording.standing import note_start, read_standing
from harness.recording.store import Limits, Store, counted
from harness.report.run_html import over_time, render_run, write_run_report
from harness.report.text import safe
from harness.standing import merged
from tests.bodies.browser import acts_on_nothing, attacks, chromium, dumped, listening, owned, text_of
from tests.bodies.recording_rows import failure

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-never-to-be-shown"
SETTINGS = {"model": "m", "samples": 1, "flag api_key": KEY, "flag url": f"http://u:{KEY}@host/"}


def answered(number: int, minute: int = 0, **changes: Any) -> Row:
    """Return a judged row that came so many minutes after the others."""
    (row,) = rows_of(CLEAN[:1], first=number)
    when = datetime(2026, 11, 30, 7, 0, 0, tzinfo=UTC) + timedelta(minutes=minute)
    return seal({**row, "sample_id": f"item{number}-0", "created_at": when, **changes})


def a_run(
    folder: Path, rows: Sequence[Row], lost: Sequence[Failure] = (), state: str = "finished", **told: Any
) -> Path:
    """Write a run folder as the runner does, shards of two rows each."""
    pin(folder, told.pop("settings", SETTINGS), {"server": "http://127.0.0.1:1", "started": "then"})
    store = Store(folder, "kimi_k2", Limits(rows=2))
    for row in rows:
        store.commit([Group((row,))])
    store.commit([Group((), tuple(lost))])
    store.roll()
    store.write_failed([])
    store.close()
    numbers = {"captured": len(rows), "failed": len(lost), "left": 0, "tokens": 7, "seconds": 61.0}
    summary = {"asked": len(rows) + len(lost), **numbers, "retries": 4, "outages": 1, **told}
    finish(folder, state, {"state": state, **summary})
    return folder


def test_the_page_tells_the_whole_run(tmp_path: Path) -> None:
    lossy = answered(2, 9, verdict="lossy", losses=["order-lost"], finish_reason="length")
    rows = [answered(0), answered(1, 1), lossy, answered(3, 9), answered(4, 9)]
    folder = a_run(tmp_path / "run", rows, [failure("a"), failure("b", 0, "status-400")], parity={"same": 5})
    note_start(folder, "now")
    page = write_run_report(read_standing(folder)).read_text("utf-8")
    words = " ".join(text_of(page).split())
    joined = words.replace(" ", "")
    for told in ("FINISHED", "7asked", "5captured", "2failed", "0left", "3shards"):
        assert told in joined
    assert "exact480.0%" in joined and "lossy120.0%" in joined
    for told in (
        "order-lost",
        "status-400",
        "timeout",
        "parity",
        "1 min 01 s",
        "model",
        "part-00002.parquet",
    ):
        assert told in words
    assert f"shardgate audit {folder}" in words and "--retry-failed" in words
    run = read_standing(folder)
    assert run.counts.tokens == sum(len(row["response_token_ids"]) for row in rows)
    assert run.starts[0]["ended"] == "now" and run.starts[0]["outages"] == 1


@pytest.mark.parametrize("state", ["stopped", "tripped", "interrupted", "running"])
def test_a_run_that_did_not_finish_says_so_and_how_to_go_on(tmp_path: Path, state: str) -> None:
    advice = {
        "headline": "boot with the parser",
        "flags": ["--reasoning-parser", "kimi_k2"],
        "reasons": ["r"],
    }
    more = {"cause": "markers", "recommendation": advice} if state == "tripped" else {}
    folder = a_run(tmp_path / "run", [answered(0)], state=state, asked=9, **more)
    words = " ".join(text_of(render_run(read_standing(folder))).split())
    assert "8left" in words.replace(" ", "")
    if state == "tripped":
        assert "boot with the parser" in words and "--reasoning-parser kimi_k2" in words
    else:
        assert "the same `shardgate capture` command again" in words


def test_no_prompt_no_answer_and_no_key_is_told(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", [answered(0, verdict="lossy", losses=["order-lost"])], [failure("a")])
    write_run_report(read_standing(folder))
    row = answered(0)
    texts = [row["content"], row["reasoning_content"], row["messages"][0]["content"], KEY]
    for path in [*folder.glob("*.html"), *folder.glob("*.json"), *folder.glob("*.jsonl")]:
        told = path.read_text("utf-8")
        kept = [text for text in texts if text in told]
        # run.json holds the settings that it was given; the runner gives it none with a key in it.
        assert kept in ([], [KEY]) if path.name == "run.json" else not kept, path


def test_counts_of_parts_are_counts_of_the_whole(tmp_path: Path) -> None:
    rows = [
        answered(n, n % 4, verdict="lossy" if n % 3 else "exact", losses=["a"] * (n % 3)) for n in range(9)
    ]
    whole = merged([("x", 9, counts_of(table_of(rows), "x"))])
    parts = merged(
        [("x", len(part), counts_of(table_of(part), "x")) for part in (rows[:2], rows[2:7], rows[7:])]
    )
    assert (whole.verdicts, whole.losses, whole.minutes) == (parts.verdicts, parts.losses, parts.minutes)
    assert whole.lengths == parts.lengths and whole.finish_reasons == parts.finish_reasons
    # A manifest that an earlier version wrote has none: they are made of the shards.
    folder = a_run(tmp_path / "run", rows)
    kept = counted(folder)
    manifest = json.loads((folder / "shards.json").read_text("utf-8"))
    for shard in manifest["shards"]:
        del shard["counts"]
    (folder / "shards.json").write_text(json.dumps(manifest), "utf-8")
    assert counted(folder) == kept


def test_a_clock_that_jumps_makes_no_endless_chart() -> None:
    points, _ = over_time({0: (1, 10), 29_000_000: (5, 50), 29_000_001: (5, 50)})
    assert len(points) == 2 and all(0 <= point.x <= 1000 and point.height <= 100 for point in points)


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, list[str]]]:
    """The page of a run in which every text is an attack, the address that attacks call, what called it."""
    with listening() as (url, asked):
        every = attacks(url)
        rows = []
        for number, attack in enumerate(every):
            case = replace(CLEAN[0], content=f"An answer: {attack}", reasoning=f"Thinking: {attack}")
            (row,) = rows_of([case], first=number)
            # The tokens are the attack's; the fields another text: so the token diff shows both.
            row |= {"content": f"Another: {attack}", "finish_reason": attack, "sample_id": f"{attack}-0"}
            rows.append(seal({**row, "verdict": attack, "losses": [attack]}))
        folder = tmp_path_factory.mktemp("run<img src=x onerror=1>") / "run"
        settings = {attack: attack for attack in every}
        advice = {"headline": every[0], "flags": every, "reasons": every}
        more = {"cause": every[1], "recommendation": advice, "parity": {attack: attack for attack in every}}
        lost = [failure(f"lost{n}", 0, attack) for n, attack in enumerate(every)]
        a_run(folder, rows, lost, "tripped", settings=settings, **more)
        note_start(folder, every[2])
        run = read_standing(folder)
        places = [
            (str(folder / "shards" / file), row, f"the loss {loss}")
            for loss, found in run.counts.examples.items()
            for file, row in found
        ]
        shown = examples_at(places, load_codec(tokenizer_path()))
        assert shown
        page = render_run(run, shown)
        told = "".join(text_of(page).split())
        assert not [attack for attack in every if "".join(safe(attack, 60)[:-1].split()) not in told]
        yield page, url, asked


def test_the_runs_page_runs_and_loads_nothing(evil: tuple[str, str, list[str]], tmp_path: Path) -> None:
    page, url, asked = evil
    browser = chromium()
    document = dumped(browser, page, tmp_path)
    assert not owned(document) and "<title>shardgate capture</title>" in document
    assert asked == [] and "1337" not in document
    # The second wall: attacks put into the page as they stand. A refresh no policy of a page forbids.
    raw = "".join(attack for attack in attacks(url) if "refresh" not in attack)
    assert not owned(dumped(browser, page.replace("<body>", f"<body>{raw}"), tmp_path)) and asked == []


def test_the_runs_page_holds_nothing_that_acts_or_hides(evil: tuple[str, str, list[str]]) -> None:
    page, _, _ = evil
    acts_on_nothing(page)
    assert not set(page) & set("\u202e\u2066\u2069\u200b\ufeff\x00\x1b\x07\u2028")


def test_the_command_writes_it_with_examples_only_when_asked(tmp_path: Path) -> None:
    row = answered(0, content="Quite another text.", verdict="lossy", losses=["content-altered"])
    folder = a_run(tmp_path / "run", [row])

    def report(*more: str, code: int = 0) -> str:
        words = [sys.executable, "-m", "harness", "report", str(folder), *more]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    report()
    assert '<tr class="new">' not in (folder / "report.html").read_text("utf-8")
    page = tmp_path / "page.html"
    report("--examples", "--tokenizer", str(tokenizer_path()), "-o", str(page))
    assert '<tr class="new">' in page.read_text("utf-8"), "its fields give back tokens that nobody generated"
    (folder / "run.json").unlink()
    told = report(code=2)
    assert "Traceback" not in told
