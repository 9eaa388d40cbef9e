"""The suite's options, markers and hypothesis profiles; no logic, no fixtures.

Place in the flow: read by pytest before everything else. Imports pytest and hypothesis only.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Their assertions are the tests': a failure shows both sides.
pytest.register_assert_rewrite("tests.bodies")

_SLOW_STARTS = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile("default", max_examples=200, deadline=None, suppress_health_check=_SLOW_STARTS)
settings.register_profile(
    "ci",
    max_examples=300,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=_SLOW_STARTS,
)
settings.register_profile("deep", max_examples=20_000, deadline=None, suppress_health_check=_SLOW_STARTS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))


_SHORT = {
    "--base-url": "sglang_url",
    "--deployment": "sglang_deployment",
    "--deployments": "sglang_deployments",
    "--model": "sglang_model",
    "--gpus": "sglang_gpus",
    "--extra-flags": "sglang_flags",
    "--tokenizer": "sglang_tokenizer",
}
"""This suite's short names for the plugin's options."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shardgate suite", "shardgate's own suite, with `-m gpu`")
    for short, name in _SHORT.items():
        text = f"the same as --{name.replace('_', '-')}"
        group.addoption(short, dest=name, metavar="X", default=None, help=text)
    group.addoption(
        "--three-boots",
        action="store_true",
        help="boot the deployment without its parsers too, and compare the answers (two more boots)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "server: boots a real SGLang server (CPU platform)")
    config.addinivalue_line("markers", "gpu: needs GPUs; deselected unless asked for with `-m gpu`")
    chosen = config.option.markexpr
    if "gpu" not in chosen:
        config.option.markexpr = f"({chosen}) and not gpu" if chosen else "not gpu"
