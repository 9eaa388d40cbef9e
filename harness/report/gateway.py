"""What a gateway loses, on a terminal.

Place in the flow: part of the terminal report. Imports rich, `harness.outcomes` and the text helpers.
"""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from harness.outcomes import GatewayFinding, GatewayReport
from harness.report.text import safe


def print_gateway(out: Console, report: GatewayReport) -> None:
    """Print each finding with what was seen and what to do, the needed ones first."""
    out.print()
    out.print(Text(f"Gateway {safe(report.through)} in front of {safe(report.direct)}", style="bold"))
    for finding in report.findings:
        _print_finding(out, finding)
    needed = sum(one.needed for one in report.findings)
    told = f"{len(report.checked)} things compared: "
    if not report.findings:
        told += "all of them come through"
    else:
        told += f"{len(report.findings)} lost or altered, {needed} of them needed for recording"
    out.print(Text(told, style="bold"))
    if report.unseen:
        names = ", ".join(safe(name) for name, _ in report.unseen)
        out.print(Text(f"could not be told apart: {names}; `--json` has the reasons"))


def _print_finding(out: Console, finding: GatewayFinding) -> None:
    name = Text(safe(finding.name), style="red" if finding.needed else "yellow")
    if finding.needed:
        name.append("  needed for recording", style="bold red")
    out.print(name)
    lines = (
        f"direct:  {safe(finding.direct)}",
        f"through: {safe(finding.through)}",
        f"{safe(finding.consequence)}",
        f"remedy:  {safe(finding.remedy)}",
    )
    for line in lines:
        out.print(Padding(Text(line), (0, 0, 0, 4)))
