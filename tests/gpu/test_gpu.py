"""A deployment under test, on GPUs or not: `pytest -m gpu [--deployment NAME] [--base-url URL] …`.

The bodies are those of the CPU suite. Without the GPUs that the deployment asks for everything is skipped,
and the reason says how many there are; a server by URL is asked what any server can be asked, and the rest is
skipped with the reason. docs/gpu.md tells the options.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.plugin import Wishes
from harness.server import SGLangServer
from harness.server.flags import text_of
from tests.bodies import goldens, server, streams, three_boots
from tests.bodies.streams import OVER_HTTP, Served
from tests.bodies.three_boots import BOTH
from tests.gpu.conftest import UnderTest

pytestmark = pytest.mark.gpu


# What any server can be asked ------------------------------------------------------------------------------


def test_it_generates_what_it_is_asked(tested: UnderTest) -> None:
    server.generates_exactly(tested, 32)


def test_it_can_be_attached(tested: UnderTest) -> None:
    server.looks_the_same(tested.base_url, tested.facts)


def test_the_probe_judges_it(tested: UnderTest) -> None:
    goldens.probed(tested.base_url)


# What takes a boot of our own -------------------------------------------------------------------------------


def test_it_reports_what_was_asked(booted: SGLangServer) -> None:
    parsers = text_of(booted.flags, "reasoning_parser"), text_of(booted.flags, "tool_call_parser")
    server.reports_what_was_asked(booted, *parsers)


def test_other_wishes_are_a_mismatch(booted: SGLangServer) -> None:
    server.refuses_another(booted)


def test_progress_came_from_the_log(booted: SGLangServer, tested: UnderTest) -> None:
    server.progressed([now.phase for now in tested.told])


# What takes scripts -----------------------------------------------------------------------------------------


def test_scripted_golden_prompts_come_back(served: Served) -> None:
    if served.fmt.name != goldens.MARKERS_OF:
        pytest.skip(
            f"the golden scripts are written in {goldens.MARKERS_OF}'s markers, this is {served.fmt.name}: "
            "the drawn streams below are in its own"
        )
    if twice := goldens.scripted_come_back(served):
        pytest.xfail(f"SGLang hands out a piece of the text twice, and it was called out: {', '.join(twice)}")


def _needs_a_parser(served: Served) -> None:
    if served.facts.reasoning_parser is None:
        pytest.skip("the server has no reasoning parser: there is nothing to hold it to")


@OVER_HTTP
@given(data=st.data())
def test_complete_over_http(served: Served, data: st.DataObject) -> None:
    _needs_a_parser(served)
    streams.complete(served, data)


@OVER_HTTP
@given(data=st.data())
def test_named_sound_and_as_offline(served: Served, data: st.DataObject) -> None:
    streams.named_sound_and_as_offline(served, data)


@OVER_HTTP
@given(data=st.data())
def test_streamed_as_offline(served: Served, data: st.DataObject) -> None:
    streams.streamed_as_offline(served, data)


@OVER_HTTP
@given(data=st.data())
def test_generate_hands_out_the_ids_text(served: Served, data: st.DataObject) -> None:
    streams.generate_hands_out_the_ids_text(served, data)


# The end, and what comes after it: these end the server ----------------------------------------------------


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    """What the server under test answered, and which prompts: for the comparison after it is gone."""
    return {}


@pytest.fixture(scope="module")
def three(pytestconfig: pytest.Config, served: Served) -> Served:
    if not pytestconfig.getoption("--three-boots"):
        pytest.skip("two more boots: ask for them with --three-boots")
    if served.facts.tool_parser is None or served.facts.reasoning_parser is None:
        pytest.skip("the comparison starts from a deployment with both parsers")
    return served


def test_three_boots_the_first(three: Served, kept: dict[str, Any]) -> None:
    cases = three_boots.cases_for(three)
    kept["prompts"] = three_boots.render(three, cases)
    kept[BOTH] = three_boots.asked(three, cases, kept["prompts"])


def test_a_killed_scheduler_is_a_named_death(booted: SGLangServer) -> None:
    server.dies_by_name(booted, b"scheduler")


def test_three_boots_are_one(three: Served, tested: UnderTest, wish: Wishes, kept: dict[str, Any]) -> None:
    assert tested.deployment is not None
    cases = three_boots.cases_for(three)
    for boot, deployment in three_boots.other_boots(tested.deployment).items():
        with deployment.server(extra_flags=wish.flags) as other:
            on = Served(other, other.facts(), three.codec, three.fmt)
            assert three_boots.render(on, cases) == kept["prompts"]
            kept[boot] = three_boots.asked(on, cases, kept["prompts"])
            pid = other.pid
        server.is_gone(pid)
    three_boots.holds({boot: kept[boot] for boot in three_boots.BOOTS}, three)
