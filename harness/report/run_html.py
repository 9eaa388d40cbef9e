"""A capture run as one HTML file: no script, nothing loaded, everything escaped, a policy that says so.

Place in the flow: last. Imports `harness.standing` and the other report modules; jinja2 inside
functions. No prompt and no answer is on the page unless examples are asked for; what the settings name as a
key or password never is.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.masks import masked_urls
from harness.report.audit_html import Example, example_lines, length_charts, loss_lines, verdict_bar
from harness.report.audit_summary import share
from harness.report.files import write_report
from harness.report.html import page_environment, policy_for, style_sheet
from harness.report.text import safe, seconds, without_secrets
from harness.standing import Standing

REPORT = "report.html"
SHARDS = 100
STARTS = 30
POINTS = 120
"""Points of the chart over time; of a longer run each stands for several minutes."""
VALUE = 200
"""Characters that are shown of a setting."""

_WORDS = {
    "running": ("RUNNING, OR KILLED", "the same command goes on with a run that was killed"),
    "finished": ("FINISHED", "every generation that was asked for is captured or failed"),
    "stopped": ("STOPPED", "by a signal; the same command goes on from here"),
    "tripped": ("STOPPED BY THE TRIPWIRE", "the answers were not worth going on; see below"),
    "interrupted": ("INTERRUPTED", "by an error; the same command goes on from here"),
}
_SHOWN_ELSEWHERE = frozenset({"verdicts", "losses", "finish_reasons", "failures", "recommendation"})


@dataclass(frozen=True, slots=True)
class Point:
    """One bar of the chart over time, in SVG units; `label` is the time, `told` the rate in words."""

    x: float
    y: float
    width: float
    height: float
    label: str
    told: str


def write_run_report(run: Standing, path: Path | None = None, examples: Sequence[Example] = ()) -> Path:
    """Write a run's page, `report.html` in its folder unless another path is given; returns its path.

    Raises:
        ShardgateError: the page can't be written.
    """
    path = path or run.folder / REPORT
    write_report(path, render_run(run, examples), "HTML")
    return path


def render_run(run: Standing, examples: Sequence[Example] = (), *, made: datetime | None = None) -> str:
    """Return a run as a self-contained HTML page."""
    from markupsafe import Markup

    environment = page_environment()
    environment.globals.update(share=share)
    css = style_sheet("report.css", "audit.css")
    word, told = _WORDS.get(run.state, (safe(run.state, 40).upper(), ""))
    failed = sum(run.failures.values())
    captured = run.counts.rows
    asked = run.summary.get("asked")
    left = asked - captured - failed if isinstance(asked, int) else None
    points, span = over_time(run.counts.minutes)
    return environment.get_template("run.html.j2").render(
        policy=policy_for(css),
        css=Markup(css),
        word=word,
        told=told,
        good=run.state == "finished" and not failed,
        made=(made or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
        run=run,
        figures=[
            ("asked for", "?" if asked is None else f"{asked:,}", ""),
            ("captured", f"{captured:,}", "green"),
            ("failed", f"{failed:,}", "red"),
            ("left", "?" if left is None else f"{left:,}", "yellow"),
            ("response tokens", f"{run.counts.tokens:,}", ""),
            ("shards", f"{len(run.shards):,}", ""),
        ],
        steps=next_steps(run, failed, left),
        advice=run.summary.get("recommendation") or {},
        verdicts=verdict_bar(run.counts.verdicts),
        losses=loss_lines(run.counts.losses, captured),
        failures=[(name, rows, share(rows, failed)) for name, rows in run.failures.items()],
        points=points,
        span=span,
        starts=[_start(one) for one in run.starts[-STARTS:]],
        starts_left=max(len(run.starts) - STARTS, 0),
        charts=length_charts(run.counts.lengths, run.counts.finish_reasons),
        more=_more_counts(run.summary),
        settings=_settings(run.settings),
        shards=run.shards[-SHARDS:],
        shards_left=max(len(run.shards) - SHARDS, 0),
        examples=[example_lines(example) for example in examples],
    )


def next_steps(run: Standing, failed: int, left: int | None) -> list[str]:
    """Return what to do now, the most needed first; commands are complete but for the run's own."""
    folder = shlex.quote(str(run.folder))
    steps = []
    if run.state == "tripped":
        steps.append("boot and record as is recommended below, into a new folder")
    elif left is None or left > 0:
        steps.append("go on: give the same `shardgate capture` command again")
    if failed:
        steps.append(f"see what failed, line by line: {folder}/failed.jsonl; to ask again: --retry-failed")
    if run.certificate:
        steps.append(f"check the set before each use: shardgate verify {folder}")
    elif run.counts.rows:
        steps.append(f"check every row: shardgate audit {folder}")
        steps.append(f"and sign off what holds: shardgate audit {folder} --certify {folder}")
    if run.counts.losses:
        steps.append(f"see the tokens of some rows with a loss: shardgate report {folder} --examples")
    return steps


def over_time(minutes: Mapping[int, tuple[int, int]]) -> tuple[list[Point], str]:
    """Return the bars of tokens a second over time, and in words what each stands for.

    Every minute from the first answer to the last has its place: a gap is a server that was away, or a run
    that was not running.
    """
    if not minutes:
        return [], ""
    first, last = min(minutes), max(minutes)
    # A clock that jumped must not make a chart of a million bars.
    each = max(1, -(-(last - first + 1) // POINTS))
    stretches: dict[int, tuple[int, int]] = {}
    for minute, (rows, tokens) in minutes.items():
        at = (minute - first) // each
        before = stretches.get(at, (0, 0))
        stretches[at] = before[0] + rows, before[1] + tokens
    most = max(tokens for _, tokens in stretches.values()) or 1
    width = 1000 / max((last - first) // each + 1, 30)
    points = []
    for at, (rows, tokens) in sorted(stretches.items()):
        height = round(max(100 * tokens / most, 0.5), 1)
        when = datetime.fromtimestamp(60 * (first + at * each), UTC)
        points.append(
            Point(
                x=round(at * width, 1),
                y=round(110 - height, 1),
                width=round(width * 0.9, 1),
                height=height,
                label=when.strftime("%Y-%m-%d %H:%M UTC"),
                told=f"{tokens / (60 * each):,.0f} tokens/s, {rows:,} rows",
            )
        )
    return points, "a minute" if each == 1 else f"{each} minutes"


def _start(one: Mapping[str, Any]) -> dict[str, str]:
    shown = {str(name): safe(str(value), 40) for name, value in one.items()}
    if isinstance(one.get("seconds"), int | float):
        shown["seconds"] = seconds(one["seconds"])
    names = (
        "began",
        "ended",
        "state",
        "captured",
        "failed",
        "left",
        "tokens",
        "seconds",
        "retries",
        "outages",
    )
    return {name: shown.get(name, "") for name in names}


def _more_counts(summary: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the summary's other counts by name, whatever they are: prompt parity, servers."""
    found = []
    for title, counts in summary.items():
        if title in _SHOWN_ELSEWHERE or not isinstance(counts, Mapping) or not counts:
            continue
        told = {name: _in_words(value) for name, value in counts.items()}
        if all(told.values()):
            lines = [(safe(str(name), 80), safe(masked_urls(words), 160)) for name, words in told.items()]
            found.append((safe(str(title).replace("_", " "), 60), lines))
    return found


def _in_words(value: Any) -> str:
    """Return a count, or what is told of one server, in words; "" for what is neither."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return str(value) if isinstance(value, int | float | str) else ""


def _settings(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    told = without_secrets(settings)
    return [
        (safe(name, 80), safe(masked_urls(value if isinstance(value, str) else json.dumps(value)), VALUE))
        for name, value in told.items()
    ]
