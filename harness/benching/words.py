"""A bench's report as lines of text: the answer first, then a table for each load.

Place in the flow: the bench's end, for the terminal and for a report file. Pure; imports results, records
and stats of this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.benching.records import RecordsCell, RecordsReport
from harness.benching.results import ArmResult, Cell, ModesReport
from harness.benching.stats import Ratio

_FIGURES = (
    "mode", "tokens/s", "requests/s", "latency s", "first token s", "token after token ms", "gap ms",
    "client CPU µs/token", "ms/request", "server HTTP CPU µs/token",
)  # fmt: skip
_RATIOS = ("throughput", "latency", "first", "between", "client_cpu", "front_cpu")
_NAMES = {
    "first": "first token", "between": "token after token", "client_cpu": "client CPU",
    "front_cpu": "server HTTP CPU",
}  # fmt: skip


def lines(report: ModesReport | RecordsReport) -> list[str]:
    """Return the report, a line each; what came from a server stands in them as it came."""
    told = [*report.answer, ""]
    if isinstance(report, ModesReport):
        for cell in report.cells:
            told += [*_cell(cell, report.base), ""]
    else:
        for load in report.cells:
            told += [*_clients(load), ""]
    told += [f"note: {note}" for note in report.notes]
    done = report.settings
    told.append(
        f"{done['repeats']} repeats in alternation after a discarded warm-up; ± is half of Student's "
        "interval of 95 %, in brackets the least and the greatest; three numbers are p50 / p90 / p99"
    )
    return told


def _cell(cell: Cell, base: str) -> list[str]:
    same = "the same work" if cell.equal else "NOT the same work"
    outputs = {True: ", the same tokens", False: ", not all the same tokens", None: ""}[cell.same_outputs]
    head = (
        f"{cell.name}: {cell.requests} requests a repeat, {same} in every mode{outputs if cell.equal else ''}"
    )
    figures = _whole([list(_FIGURES), *(_arm(arm) for arm in cell.arms)])
    named = [name for name in _RATIOS if any(name in arm.ratios for arm in cell.arms)]
    ratios = [
        [f"{arm.arm} ÷ {base}", *(_ratio(arm.ratios.get(name)) for name in named)]
        for arm in cell.arms
        if arm.arm != base
    ]
    table = [*_table(figures), *_table([["", *(_NAMES.get(name, name) for name in named)], *ratios])]
    faults = [
        f"  {arm.arm}: {arm.failed} of {arm.requests} requests failed: "
        + ", ".join(f"{fault} ({count})" for fault, count in arm.faults.items())
        for arm in cell.arms
        if arm.failed
    ]
    return [head, *table, *faults]


def _arm(arm: ArmResult) -> list[str]:
    return [
        arm.arm,
        _number(arm.tokens_per_s),
        _number(arm.requests_per_s),
        _three(arm.latency),
        _three(arm.first),
        _three(arm.between, 1e3),
        _three(arm.gaps, 1e3),
        _number(arm.client_cpu_us_per_token),
        _number(arm.client_cpu_ms_per_request),
        _number(arm.front_cpu_us_per_token),
    ]


def _whole(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Leave out the columns that no row has anything in."""
    kept = [place for place in range(len(rows[0])) if any(row[place] != "-" for row in rows[1:])]
    return [[row[place] for place in kept] for row in rows]


def _clients(cell: RecordsCell) -> list[str]:
    same = "the same work" if cell.equal else "NOT the same work"
    rows = [["client", "tokens/s", "requests/s", "capture ÷ this"]]
    rows += [
        [one.client, _number(one.tokens_per_s), _number(one.requests_per_s), _ratio(one.ratio)]
        for one in cell.clients
    ]
    faults = [
        f"  {one.client}: {one.failed} requests failed: {', '.join(one.faults) or 'no reason told'}"
        for one in cell.clients
        if one.failed
    ]
    return [f"{cell.concurrency} at once: {cell.requests} requests a repeat, {same}", *_table(rows), *faults]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _three(values: Mapping[str, float] | None, factor: float = 1.0) -> str:
    return "-" if values is None else " / ".join(f"{factor * value:.3g}" for value in values.values())


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    spread = "" if ratio.half is None else f" ± {ratio.half:.3f}"
    return f"{ratio.value:.3f}{spread} [{ratio.minimum:.3f} {ratio.maximum:.3f}]"
