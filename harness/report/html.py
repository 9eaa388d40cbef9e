"""The report as one HTML file: no script, nothing loaded, everything escaped, a policy that says so.

Place in the flow: last. May import `contracts`, `harness.outcomes` and the other report modules; jinja2
inside functions.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from importlib import resources
from pathlib import Path

from contracts.errors import ShardgateError
from contracts.losses import LOSSES
from harness.outcomes import DemoReport
from harness.report.rows import (
    RECORD_WITH,
    Report,
    by_server,
    durations,
    outcome_row,
    server_words,
    servers_of,
    tally,
    verdict_style,
)
from harness.report.text import safe

_EXCERPT = 120


def render_html(report: Report) -> str:
    """Return a demo's or a probe's report as a self-contained HTML page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("harness.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["safe_text"] = safe
    environment.filters["colour"] = verdict_style
    environment.filters["meaning"] = _meaning
    css = (resources.files("harness.report") / "templates" / "report.css").read_text(encoding="utf-8")
    # The hash admits this one style sheet; a style or script smuggled into the page would not run.
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    demo = report if isinstance(report, DemoReport) else None
    named = {loss.name for outcome in report.results for loss in outcome.losses}
    return environment.get_template("report.html.j2").render(
        title="shardgate demo" if demo else "shardgate probe",
        policy=policy,
        css=Markup(css),
        tally=tally(report.results),
        servers=[server_words(facts) for facts in servers_of(report)],
        groups=[
            (label, [outcome_row(outcome, _EXCERPT) for outcome in outcomes])
            for label, outcomes in by_server(report.results)
        ],
        losses=[spec for name, spec in LOSSES.items() if name in named],
        demo=demo,
        took=durations(report),
        advice=report.recommendation,
        record_with=RECORD_WITH.get(report.recommendation.record_with, report.recommendation.record_with),
        notes=() if demo else getattr(report, "notes", ()),
    )


def _meaning(name: str) -> str:
    spec = LOSSES.get(name)
    return spec.meaning if spec else ""


def write_html(path: Path, report: Report) -> None:
    """Write the page to `path`: beside it first, fsynced, then renamed.

    Raises:
        ShardgateError: the file can't be written.
    """
    page = render_html(report)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise ShardgateError(
            "the HTML report could not be written",
            where=str(path),
            why=error.strerror or str(error),
            remedy="name a folder that can be written to",
        ) from error
