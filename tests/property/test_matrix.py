"""The fidelity matrix: the recorded one is what the installed SGLang gives, and the command tells it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from contracts.formats import FORMATS
from contracts.losses import LOSSES
from harness.matrix import pairs_of, run_matrix
from harness.outcomes import matrix_of
from harness.paths import fixtures_dir
from harness.report.matrix import html_page, markdown
from tests.conftest import need

need("sglang")  # the matrix runs SGLang's own parsers


def test_the_recorded_matrix_is_what_the_installed_sglang_gives() -> None:
    """A new SGLang, a new family or another judgement changes it: `make matrix` records it anew."""
    file = fixtures_dir() / "matrix" / f"sglang-{version('sglang')}.json"
    assert file.is_file(), "run `make matrix`"
    recorded = matrix_of(json.loads(file.read_text(encoding="utf-8")))
    measured = run_matrix(examples=recorded.examples)
    changed = [
        f"{new.family}: {new.reasoning_parser} + {new.tool_parser}"
        for new in measured.rows
        if new not in recorded.rows
    ]
    assert changed == [], "run `make matrix` and read the difference"
    assert len(measured.rows) == len(recorded.rows)
    assert (measured.unmapped_reasoning, measured.unmapped_tools) == (
        recorded.unmapped_reasoning,
        recorded.unmapped_tools,
    )
    for row in measured.rows:
        assert row.exact == row.safe > 0, (row.family, row.broken)
        assert all(loss.name in LOSSES and loss.count > 0 for loss in row.losses)
    names = {name for fmt in FORMATS.values() for name in (*fmt.reasoning_parsers, *fmt.tool_parsers)}
    shown = {name for row in measured.rows for name in (row.reasoning_parser, row.tool_parser)}
    assert names <= shown, "each mapped name is in a row"


def test_the_command_tells_what_it_measured(tmp_path: Path) -> None:
    page, text = tmp_path / "matrix.html", tmp_path / "matrix.md"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "harness", "matrix", "kimi_k2", "--examples", "5", "--json"),
            *("--html", str(page), "--markdown", str(text)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = matrix_of(json.loads(done.stdout))
    assert [(row.reasoning_parser, row.tool_parser) for row in report.rows] == list(
        pairs_of(FORMATS["kimi_k2"])
    )
    assert page.read_text(encoding="utf-8") == html_page(report)
    assert text.read_text(encoding="utf-8") == "\n".join(markdown(report))
    assert "<script>" not in html_page(report), "an example's markup stays text"


@pytest.mark.parametrize("wrong", [["nothing"], ["kimi_k2", "--examples", "0"]])
def test_wrong_use_is_told(wrong: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "matrix", *wrong], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
