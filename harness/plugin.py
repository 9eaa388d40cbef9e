"""The pytest plugin: a real SGLang server, the golden prompts and a probe, as fixtures for any test suite.

Place in the flow: outermost, found by pytest through the entry point `harness.plugin`. At the top it imports
pytest and the standard library only; a fixture imports its stage when it is asked for.

    def test_thinking_is_kept(probe):
        assert all(outcome.verdict != "contradicted" for outcome in probe.results)

The server is the one of `--sglang-url`, or one that is booted: a `--sglang-deployment`, or `--sglang-model`
(a suite may override the fixture `shardgate_model` instead). Each option is an ini key as well. What can't be
had skips the test, and under CI (the variable `CI` is set) fails it. docs/pytest-plugin.md shows the use.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from contracts.records import ServerFacts
    from harness.outcomes import ProbeReport
    from harness.server import Deployment

TRUST = "--trust-remote-code"
BUILTIN = ("builtin:demo", "builtin:tiny")

_OPTIONS: dict[str, tuple[str, str]] = {
    "sglang_url": ("URL", "a running SGLang server to test instead of booting one; wins over the others"),
    "sglang_deployment": ("NAME", "the deployment to boot, or to attach to"),
    "sglang_deployments": ("FILE", "a TOML file of your own deployments (default: shardgate's)"),
    "sglang_model": ("MODEL", "model folder or hub name to boot; with a deployment, instead of its model"),
    "sglang_gpus": ("N", "GPUs that a deployment may use (default: all that are there)"),
    "sglang_flags": ("FLAGS", "further flags for the boot, one text, split as a shell would"),
    "sglang_tokenizer": ("FOLDER", "the model's tokenizer (default: the server's own, asked over HTTP)"),
}

_NAMING = ("sglang_url", "sglang_deployment", "sglang_model")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options and their ini keys; the prefix keeps them clear of other plugins' `--base-url`."""
    group = parser.getgroup("shardgate", "shardgate: a real SGLang server under test")
    for name, (value, text) in _OPTIONS.items():
        option = "--" + name.replace("_", "-")
        group.addoption(option, dest=name, metavar=value, default=None, help=f"{text} (ini: {name})")
        parser.addini(name, f"{text} ({option})", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse what can't be read before any test runs, as wrong use (exit code 4)."""
    wishes(config)


@dataclass(frozen=True, slots=True)
class Wishes:
    """Which server the tests are to have, from the command line or else the ini file."""

    url: str | None
    deployment: str | None
    deployments: str | None
    model: str | None
    gpus: int | None
    flags: tuple[str, ...]
    tokenizer: str | None


def wishes(config: pytest.Config) -> Wishes:
    """Read the options. Raises `pytest.UsageError` for what can't be read as a number or as flags.

    A server named on the command line keeps every server of the ini file out.
    """
    named = any(config.getoption(name, default=None) for name in _NAMING)

    def text(name: str) -> str | None:
        if given := config.getoption(name, default=None):
            return str(given)
        return None if named and name in _NAMING else str(config.getini(name)) or None

    gpus, flags = text("sglang_gpus"), text("sglang_flags")
    if gpus is not None and not (gpus.isascii() and gpus.isdigit()):
        raise pytest.UsageError(f"--sglang-gpus {gpus!r} is no number of GPUs; give 0 or more")
    try:
        split = tuple(shlex.split(flags or ""))
    except ValueError:
        # The text itself is not told: a flag may hold a key.
        raise pytest.UsageError("--sglang-flags: not a shell-like list of words (an open quote?)") from None
    model = text("sglang_model")
    if model is not None and model.startswith("builtin:") and model not in BUILTIN:
        raise pytest.UsageError(f"--sglang-model {model!r}: there are {' and '.join(BUILTIN)}")
    return Wishes(
        url=text("sglang_url"),
        deployment=text("sglang_deployment"),
        deployments=text("sglang_deployments"),
        model=model,
        gpus=None if gpus is None else int(gpus),
        flags=split,
        tokenizer=text("sglang_tokenizer"),
    )


def without(reason: str) -> NoReturn:
    """Skip for the lack of a part; under CI fail, so that no gate passes unseen."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (under CI a missing part fails)", pytrace=False)
    pytest.skip(reason)


def chosen_deployment(wish: Wishes, default: str | None = None) -> Deployment:
    """The wished deployment, on its wished model; `without` where this machine has too few GPUs for it.

    Raises `CannotBoot` where there is none of that name.
    """
    from harness.server import gpu_count, load_deployment

    name = wish.deployment or default
    assert name is not None
    chosen = load_deployment(name, wish.deployments)
    if wish.model is not None:
        chosen = dataclasses.replace(chosen, model=wish.model)
    if chosen.gpus:
        there = gpu_count() if wish.gpus is None else min(gpu_count(), wish.gpus)
        if there < chosen.gpus:
            without(f"deployment {chosen.name!r} asks for {chosen.gpus} GPUs, {there} are there to use")
    return chosen


def record_facts(record: Callable[[str, object], None], facts: ServerFacts) -> None:
    """Put what the server says about itself into the JUnit file, as properties `sglang.NAME`."""
    for field in dataclasses.fields(facts):
        value = getattr(facts, field.name)
        if value is not None:
            record(f"sglang.{field.name}", json.dumps(dict(value)) if field.name == "flags" else str(value))


@pytest.fixture(scope="session")
def shardgate_model(pytestconfig: pytest.Config) -> str:
    """The model that `sglang_server` boots: `--sglang-model`; override this fixture to name one in code."""
    model = wishes(pytestconfig).model
    if model is None:
        without(
            "no server to test: give --sglang-url, --sglang-deployment or --sglang-model, "
            "or override the fixture `shardgate_model`"
        )
    return model


@pytest.fixture(scope="session")
def golden_prompts() -> tuple[Any, ...]:
    """The golden prompts of the installed package, each with what must come back."""
    from harness.golden import load_golden

    return tuple(load_golden())


@pytest.fixture(scope="session")
def sglang_server(
    request: pytest.FixtureRequest,
    pytestconfig: pytest.Config,
    record_testsuite_property: Callable[[str, object], None],
) -> Iterator[Any]:
    """A ready server: attached to by URL, or booted for the session and gone after it."""
    from harness.server import Deployment, ServerError, SGLangServer, attach

    wish = wishes(pytestconfig)
    booted: SGLangServer | None = None
    try:
        if wish.url is not None:
            server: Any = attach(wish.url)
        elif wish.deployment is not None:
            deployment = chosen_deployment(wish)
            if deployment.url is not None:
                server = deployment.attach()
            else:
                server = booted = deployment.server(extra_flags=wish.flags)
        else:
            model = request.getfixturevalue("shardgate_model")
            path = Deployment(name="pytest", model=str(model)).model_path()
            server = booted = SGLangServer(path, flags=wish.flags)
        if booted is not None:
            booted.start()
    except ServerError as error:
        pytest.fail(str(error), pytrace=False)
    try:
        record_facts(record_testsuite_property, server.facts if booted is None else booted.facts())
        yield server
    finally:
        if booted is not None:
            booted.stop()


@pytest.fixture(scope="session")
def probe(sglang_server: Any, pytestconfig: pytest.Config) -> ProbeReport:
    """The report of `shardgate probe` on `sglang_server`."""
    from pathlib import Path

    from contracts.errors import ShardgateError
    from harness import pipeline
    from harness.server import ServerError

    wish = wishes(pytestconfig)
    try:
        report: ProbeReport = pipeline.probe(
            sglang_server.base_url,
            tokenizer=None if wish.tokenizer is None else Path(wish.tokenizer),
            on_event=lambda phase, facts: None,
            trust_remote_code=TRUST in wish.flags,
        )
    except (ShardgateError, ServerError) as error:
        pytest.fail(str(error), pytrace=False)
    return report
