"""The example of docs/strategies.md runs as it stands. Imports nothing but what the page does."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import need

PAGE = Path(__file__).resolve().parents[2] / "docs" / "strategies.md"


def test_the_example_runs() -> None:
    need("sglang")
    (block,) = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    names: dict[str, object] = {}
    exec(compile(block, str(PAGE), "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_") and callable(value)]
    assert len(tests) == 3
    for test in tests:
        test()
