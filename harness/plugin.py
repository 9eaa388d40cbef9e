"""The pytest plugin: a real SGLang server, the golden prompts and a probe, as fixtures for any test suite.

Place in the flow: outermost, found by pytest through the entry point `harness.plugin`. At the top it imports
pytest and `contracts` data only; a fixture imports its stage when it is asked for.

    def test_thinking_is_kept(probe):
        assert all(outcome.verdict != "contradicted" for outcome in probe.results)

The server is the one of `--base-url URL`, or one that is booted from `--model MODEL`; a suite may override
the fixture `shardgate_model` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.outcomes import ProbeReport


def _option(config: pytest.Config, name: str) -> str | None:
    # The options are the suite's to define (this repository's conftest does); a foreign suite may have none.
    value = config.getoption(name, default=None)
    return str(value) if value else None


@pytest.fixture(scope="session")
def shardgate_model(pytestconfig: pytest.Config) -> str:
    """The model that `sglang_server` boots: `--model`; override this fixture to name one in code."""
    model = _option(pytestconfig, "model")
    if model is None:
        pytest.skip(
            "no server to test: give --base-url or --model, or override the fixture `shardgate_model`"
        )
    return model


@pytest.fixture(scope="session")
def golden_prompts() -> tuple[Any, ...]:
    """The golden prompts of the installed package, each with what must come back."""
    from harness.golden import load_golden

    return tuple(load_golden())


@pytest.fixture(scope="session")
def sglang_server(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[Any]:
    """A ready server: attached to `--base-url`, or booted for the session and gone after it."""
    from harness.server import SGLangServer

    url = _option(pytestconfig, "base_url")
    if url is not None:
        yield SGLangServer.attach(url)
        return
    with SGLangServer(request.getfixturevalue("shardgate_model")) as server:
        yield server


@pytest.fixture(scope="session")
def probe(sglang_server: Any) -> ProbeReport:
    """The report of `shardgate probe` on `sglang_server`."""
    from harness import pipeline

    report: ProbeReport = pipeline.probe(
        sglang_server.base_url, tokenizer=None, on_event=lambda phase, facts: None
    )
    return report
