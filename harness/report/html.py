"""The report as one HTML file: no script, nothing loaded, everything escaped, a policy that says so.

Place in the flow: last. May import `contracts`, `harness.outcomes` and the other report modules; jinja2
inside functions.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.losses import LOSSES
from harness.outcomes import DemoReport
from harness.report.files import write_report
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

if TYPE_CHECKING:
    from jinja2 import Environment

_EXCERPT = 120


def page_environment() -> Environment:
    """Return the templates' environment: everything is escaped, an unknown name is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

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
    return environment


def style_sheet(*names: str) -> str:
    """Return the style sheets of that name, one after the other."""
    folder = resources.files("harness.report") / "templates"
    return "".join((folder / name).read_text(encoding="utf-8") for name in names)


def policy_for(css: str) -> str:
    """Return the policy that admits this one style sheet: a style or script smuggled in would not run."""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def render_html(report: Report) -> str:
    """Return a demo's or a probe's report as a self-contained HTML page."""
    from markupsafe import Markup

    environment = page_environment()
    css = style_sheet("report.css")
    policy = policy_for(css)
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
    write_report(path, render_html(report), "HTML")
