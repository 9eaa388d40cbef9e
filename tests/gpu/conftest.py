"""The server under test of `pytest -m gpu`: the options' deployment booted here, or a running server by URL.

Place in the flow: fixtures of `tests/gpu`; the bodies are those of the CPU suite, in `tests/bodies`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contracts.records import ServerFacts
from contracts.tokens import Codec, load_codec
from harness.capture import served_format
from harness.plugin import TRUST, Wishes, chosen_deployment, record_facts, wishes
from harness.server import AttachedServer, BootProgress, Deployment, SGLangServer, attach
from harness.server.flags import asked, text_of
from harness.server.nodes import node_count, node_rank, serves_api
from harness.server_codec import ServerCodec
from tests.bodies import streams as bodies
from tests.bodies.streams import Served

DEFAULT = "kimi-k2.5"


@dataclass(frozen=True, slots=True)
class UnderTest:
    """The server under test. Of one that runs elsewhere, `booted` and `deployment` are None."""

    base_url: str
    facts: ServerFacts
    booted: SGLangServer | None = None
    deployment: Deployment | None = None
    told: list[BootProgress] = field(default_factory=list)


@pytest.fixture(scope="session")
def wish(pytestconfig: pytest.Config) -> Wishes:
    return wishes(pytestconfig)


def _attached(server: AttachedServer) -> UnderTest:
    return UnderTest(server.base_url, server.facts)


def refuse_parts(deployment: Deployment) -> None:
    """A part is not tested by itself: another node than the first, half of a pair, a group without URL."""
    flags = deployment.filled().all_flags()
    serve = f"`shardgate serve {deployment.name}`"
    if not serves_api(flags):
        pytest.skip(
            f"this is node {node_rank(flags)} of {node_count(flags)}: "
            f"the tests run on node 0; run {serve} here"
        )
    if mode := text_of(flags, "disaggregation_mode"):
        pytest.skip(
            f"the {mode} half of a pair generates nothing by itself: run the pair, give its --base-url"
        )
    if deployment.servers:
        pytest.skip(f"{deployment.name!r} is a group: boot it with {serve} and give its URL with --base-url")


@pytest.fixture(scope="session")
def tested(
    wish: Wishes,
    tmp_path_factory: pytest.TempPathFactory,
    record_testsuite_property: Callable[[str, object], None],
) -> Iterator[UnderTest]:
    if wish.url is not None:
        one = _attached(attach(wish.url))
        record_facts(record_testsuite_property, one.facts)
        yield one
        return
    deployment = chosen_deployment(wish, DEFAULT)
    record_testsuite_property("shardgate.deployment", deployment.name)
    if deployment.url is not None:
        one = _attached(deployment.attach())
        record_facts(record_testsuite_property, one.facts)
        yield one
        return
    refuse_parts(deployment)
    told: list[BootProgress] = []
    log = Path(tmp_path_factory.mktemp("server")) / "server.log"
    with deployment.server(extra_flags=wish.flags, log_path=log, on_progress=told.append) as server:
        one = UnderTest(server.base_url, server.facts(), server, deployment, told)
        record_facts(record_testsuite_property, one.facts)
        record_testsuite_property("shardgate.boot_seconds", round(server.boot_seconds, 1))
        yield one


@pytest.fixture(scope="session")
def booted(tested: UnderTest) -> SGLangServer:
    """The server, where it was booted here."""
    if tested.booted is None:
        pytest.skip("the server runs already (given by URL): this needs one that is booted here")
    return tested.booted


def codec_of(facts: ServerFacts, wish: Wishes, flags: tuple[str, ...]) -> Codec:
    """The tokenizer of `--tokenizer`, or the model's own where it lies on this machine, else the server's."""
    trust = TRUST in flags
    if wish.tokenizer is not None:
        return load_codec(wish.tokenizer, trust_remote_code=trust)
    folder = Path(text_of(flags, "tokenizer_path") or facts.model).expanduser()
    if not folder.exists():
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            # SGLang has just loaded it from there.
            folder = Path(snapshot_download(str(folder), revision=facts.revision, local_files_only=True))
        except (LocalEntryNotFoundError, OSError, ValueError):
            return ServerCodec(facts.base_url)
    return load_codec(folder, trust_remote_code=trust)


@pytest.fixture(scope="session")
def carries_scripts(booted: SGLangServer) -> SGLangServer:
    """The server, where streams can be forced through it."""
    missing = [
        name
        for name in ("enable_custom_logit_processor", "disable_overlap_schedule")
        if name not in asked(booted.flags)
    ]
    if missing:
        flags = ", ".join("--" + name.replace("_", "-") for name in missing)
        pytest.skip(
            f"the deployment carries no scripts: {flags} is missing (scripted = true adds what it takes)"
        )
    return booted


@pytest.fixture(scope="session")
def unproven(carries_scripts: SGLangServer, tested: UnderTest, wish: Wishes) -> Served:
    """The server for scripted bodies, before it is known whether scripts are obeyed."""
    codec = codec_of(tested.facts, wish, carries_scripts.flags)
    fmt = served_format(tested.facts, codec)
    if fmt is None:
        pytest.skip(f"no format is mapped for {tested.facts.model}: add the family (docs/adding-a-format.md)")
    return Served(carries_scripts, tested.facts, codec, fmt)


@pytest.fixture(scope="session")
def served(unproven: Served) -> Served:
    """The same, scripts obeyed: what is emitted is what was scripted."""
    if why := bodies.bypassed(unproven):
        if unproven.facts.speculative:
            pytest.xfail(f"{why}: speculative decoding ({unproven.facts.speculative}) goes around them")
        pytest.fail(why, pytrace=False)
    return unproven
