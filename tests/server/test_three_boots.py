"""One boot = three boots: the switches of one server against servers booted with one parser, and with none.

The same request bodies, with the same prompt ids, go to all three: golden scripts, a script with a special
token, drawn streams, whole and streamed. `fixtures/three-boots.toml` names where they differ, and is held to
it.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from contracts.formats import FORMATS
from contracts.tokens import Codec
from harness.server import SGLangServer
from tests.bodies import three_boots
from tests.bodies.streams import TRIES, Served
from tests.bodies.three_boots import BOTH, NONE, REASONING, Answers, Case

pytestmark = pytest.mark.server

FMT = FORMATS["kimi_k2"]


@pytest.fixture(scope="module")
def boots(
    tiny_server: SGLangServer, reasoning_server: SGLangServer, bare_server: SGLangServer, tiny_codec: Codec
) -> dict[str, Served]:
    servers = {BOTH: tiny_server, REASONING: reasoning_server, NONE: bare_server}
    return {boot: Served(server, server.facts(), tiny_codec, FMT) for boot, server in servers.items()}


@pytest.fixture(scope="module")
def cases(boots: Mapping[str, Served]) -> list[Case]:
    return three_boots.cases_for(boots[BOTH])


@pytest.fixture(scope="module")
def answers(boots: Mapping[str, Served], cases: list[Case]) -> dict[str, Answers]:
    prompts = three_boots.render(boots[BOTH], cases)
    found = {boot: three_boots.asked(on, cases, prompts, streams_at_once=4) for boot, on in boots.items()}
    for _ in range(TRIES):
        # Only streams depend on how busy the server was: those that differ are asked for again, one by one.
        again = {shown.case for shown in three_boots.unnamed(found, boots[BOTH]) if shown.streamed}
        some = [case for case in cases if case.name in again]
        for boot, on in boots.items():
            found[boot] |= three_boots.asked(on, some, prompts)
    return found


def test_they_were_booted_so(boots: Mapping[str, Served]) -> None:
    parsers = {boot: (on.facts.reasoning_parser, on.facts.tool_parser) for boot, on in boots.items()}
    assert parsers == {
        BOTH: ("kimi_k2", "kimi_k2"),
        REASONING: ("kimi_k2", None),
        NONE: (None, None),
    }


def test_the_prompts_are_rendered_alike(boots: Mapping[str, Served], cases: list[Case]) -> None:
    first, second, third = (three_boots.render(on, cases) for on in boots.values())
    assert first == second == third


def test_every_boot_emitted_the_script(answers: Mapping[str, Answers], cases: list[Case]) -> None:
    scripts = {case.name: case.ids for case in cases}
    for boot, given in answers.items():
        assert {key: answer.ids for key, answer in given.items()} == {
            key: scripts[key[0]] for key in given
        }, boot


def test_where_they_differ_the_difference_has_a_name(
    answers: Mapping[str, Answers], boots: Mapping[str, Served]
) -> None:
    assert [str(shown) for shown in three_boots.unnamed(answers, boots[BOTH])] == []


def test_every_named_difference_is_still_seen(
    answers: Mapping[str, Answers], boots: Mapping[str, Served]
) -> None:
    assert three_boots.unseen(answers, boots[BOTH]) == []


def test_the_comparison_would_see_a_difference(
    answers: Mapping[str, Answers], boots: Mapping[str, Served]
) -> None:
    """Answers of one boot given out as another's are told, field by field."""
    swapped = {**answers, NONE: answers[REASONING]}
    told = three_boots.unnamed(swapped, boots[BOTH])
    assert {shown.part for shown in told} >= {"reasoning", "content"}
    assert three_boots.unseen(swapped, boots[BOTH])
