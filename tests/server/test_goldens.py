"""The golden prompts on real servers, as their fixtures say: with both parsers, with one, with none."""

from __future__ import annotations

import pytest

from contracts.formats import FORMATS
from contracts.tokens import Codec
from tests.bodies import goldens
from tests.bodies.streams import Served

pytestmark = pytest.mark.server


@pytest.mark.parametrize("boot", ["tiny_server", "reasoning_server", "bare_server"])
def test_scripted_golden_prompts_come_back(
    boot: str, request: pytest.FixtureRequest, tiny_codec: Codec
) -> None:
    server = request.getfixturevalue(boot)
    twice = goldens.scripted_come_back(Served(server, server.facts(), tiny_codec, FORMATS["kimi_k2"]))
    # Parsed modes hand out no raw text to see it in, so it does not show where only those are asked.
    assert twice == (set() if boot == "bare_server" else {"chinese-emoji"})
