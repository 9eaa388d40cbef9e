"""The suite's shared parts: real servers booted once a session, their codecs and clients.

A part that this machine lacks skips the test; under CI it fails instead, so that no gate passes unseen.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.tokens import Codec, load_codec
from harness.server import SGLangServer, load_deployment


def need(module: str) -> None:
    """Skip where a package is missing; fail under CI. Also for a whole module, at its top."""
    if importlib.util.find_spec(module) is not None:
        return
    message = f"{module} is not installed (pip install 'shardgate[cpu]')"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message, allow_module_level=True)


def _boot(deployment: str, folder: Path) -> SGLangServer:
    need("sglang")
    return load_deployment(deployment).server(log_path=folder / f"{deployment}.log")


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangServer]:
    """The tiny model with both kimi_k2 parsers; carries scripts."""
    with _boot("tiny", tmp_path_factory.mktemp("tiny")) as server:
        yield server


@pytest.fixture(scope="session")
def reasoning_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangServer]:
    """The same model with the reasoning parser alone."""
    with _boot("tiny-reasoning", tmp_path_factory.mktemp("reasoning")) as server:
        yield server


@pytest.fixture(scope="session")
def bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangServer]:
    """The same model booted without parsers: the seed's case."""
    with _boot("tiny-plain", tmp_path_factory.mktemp("bare")) as server:
        yield server


@pytest.fixture(scope="session")
def tiny_codec() -> Codec:
    """The tiny model's tokenizer."""
    need("sglang")
    from harness.models import tiny_model

    return load_codec(tiny_model())
