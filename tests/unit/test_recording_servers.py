"""Which server gets work, what makes two servers the same, and what a run waits for.

Place in the flow: none; the fleet and the identity of `harness.recording` without a server. With servers:
tests/server/test_recording_fleet.py.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.formats import format_named
from contracts.records import ServerFacts
from fixtures.corruptions.rows import codec
from harness.recording.fleet import Fleet, Member, Place, State
from harness.recording.identity import Identity
from harness.recording.pacing import Pacer
from harness.recording.prompts import Wanted, find_source, items
from harness.recording.serving import OtherServer, ServerLost, Serving
from harness.recording.status import ServerStatus, Status, all_gauges

FORMAT = format_named("kimi_k2")
assert FORMAT is not None
FACTS = ServerFacts(
    base_url="http://one:1",
    model="m",
    engine_version="0.5.23",
    weight_version="1",
    reasoning_parser="kimi_k2",
    tool_parser="kimi_k2",
    tokenizer_sha256=codec().sha256,
    chat_template_sha256="t",
    flags={"tp_size": 8, "random_seed": 17, "launch_command": "a", "max_total_tokens": 5},
)


def fleet_of(*limits: int, patience: float = 900.0) -> Fleet:
    members = []
    for number, limit in enumerate(limits):
        serving = Serving(
            url=f"http://127.0.0.1:{number + 1}",
            deployment=None,
            log_folder=Path(),
            on_event=lambda phase, facts: None,
        )
        members.append(Member(serving, Pacer(limit, fixed=True)))
        members[-1].state = State.UP
    return Fleet(members, patience=patience, on_event=lambda phase, facts: None)


@given(limits=st.lists(st.integers(1, 20), min_size=1, max_size=5), takes=st.integers(0, 60))
def test_work_goes_to_where_there_is_room_and_never_beyond(limits: list[int], takes: int) -> None:
    async def go() -> None:
        fleet = fleet_of(*limits)
        places: list[Place] = []
        for _ in range(min(takes, sum(limits))):
            most = max(member.room for member in fleet.members)
            place = await fleet.acquire()
            assert place.member.room == most - 1, "the server with the most room was not taken"
            places.append(place)
        assert all(0 <= member.pacer.under_way <= member.pacer.limit for member in fleet.members)
        for place in places:
            await place.release()
            await place.release()
        assert fleet.under_way == 0

    asyncio.run(go())


def test_a_server_that_is_away_or_doubted_gets_nothing_while_there_is_another() -> None:
    async def go() -> None:
        fleet = fleet_of(9, 3)
        big, small = fleet.members
        big.doubted = 1
        assert (await fleet.acquire()).member is small
        big.doubted, big.state = 0, State.AWAY
        places = [await fleet.acquire() for _ in range(2)]
        assert {place.member for place in places} == {small}
        waiting = asyncio.create_task(fleet.acquire())
        await asyncio.sleep(0.01)
        assert not waiting.done(), "there is no room, and nobody asks where nobody answers"
        big.state = State.UP
        await fleet.notify()
        assert (await waiting).member is big

    asyncio.run(go())


def test_a_place_moves_away_from_its_server_and_holds_one_place_only() -> None:
    async def go() -> None:
        fleet = fleet_of(2, 2)
        place = await fleet.acquire()
        first = place.member
        await place.move()
        assert place.member is not first and fleet.under_way == 1
        second = place.member
        await place.elsewhere()
        assert place.member is first and fleet.under_way == 1
        second.state = State.AWAY
        await place.elsewhere()
        assert place.member is first, "where no other is there, it stays"
        waiting = asyncio.create_task(place.move())
        await waiting
        assert place.member is first and fleet.under_way == 1
        await place.release()
        assert fleet.under_way == 0

    asyncio.run(go())


def test_a_run_waits_for_its_servers_and_gives_up_in_the_end() -> None:
    async def never(told: ServerFacts) -> ServerFacts:
        raise AssertionError("nobody is there to be looked at")

    async def go() -> None:
        fleet = fleet_of(1, 1, patience=0.2)
        for member in fleet.members:
            await member.serving.open(replace(FACTS, base_url=member.name))
        await fleet.open([(member, FACTS) for member in fleet.members], never)
        for member in fleet.members:
            assert await fleet.gone(member, 0), "nobody listens there"
        with pytest.raises(ServerLost) as caught:
            async with asyncio.timeout(60):
                await fleet.acquire()
        for member in fleet.members:
            assert member.name in caught.value.why
        await fleet.close()

    asyncio.run(go())


def identity(**before: Any) -> Identity:
    assert FORMAT is not None
    return Identity(
        {"samples": 1},
        before=before,
        known=lambda url: None,
        folder=Path(),
        codec=codec(),
        fmt=FORMAT,
        renderer=None,
        api_key=lambda: None,
    )


def other(**changes: Any) -> Callable[[ServerFacts], ServerFacts]:
    return lambda facts: replace(facts, **changes)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (other(model="n"), "model: was m, is n"),
        (other(revision="r"), "revision"),
        (other(weight_version="2"), "weight version: was 1, is 2"),
        (other(reasoning_parser=None), "reasoning parser: was kimi_k2, is null"),
        (other(engine_version="0.5.22"), "engine version"),
        (other(chat_template_sha256="u"), "chat template"),
        (other(flags={**FACTS.flags, "tp_size": 4}), "flag tp_size: was 8, is 4"),
        (other(tokenizer_sha256="0"), "tokenizer"),
    ],
)
def test_a_server_that_differs_gets_no_work_and_is_told_why(change: Any, named: str) -> None:
    async def go() -> None:
        same = identity()
        await same.begin(FACTS)
        with pytest.raises(OtherServer) as caught:
            await same.adopt(change(replace(FACTS, base_url="http://two:2")))
        assert named in caught.value.why and caught.value.where == "http://two:2"
        assert len(caught.value.why.split("; ")) == 1

    asyncio.run(go())


def test_what_is_of_the_boot_or_is_not_told_elsewhere_is_no_difference() -> None:
    boot = {**FACTS.flags, "random_seed": 99, "launch_command": "b", "max_total_tokens": 6}

    async def go() -> None:
        same = identity()
        await same.begin(FACTS)
        told = replace(FACTS, base_url="http://two:2", chat_template_sha256=None, flags=boot)
        assert (await same.adopt(told)).chat_template_sha256 == "t"
        assert same.pinned["chat template"] == "t" and "flag random_seed" not in same.pinned
        # A start from another machine: the template is the one that the run was begun with.
        later = identity(**same.pinned)
        assert (await later.begin(told)).chat_template_sha256 == "t" and later.pinned == same.pinned

    asyncio.run(go())


def test_a_seed_is_the_first_samples_and_counts_on(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"prompt": "x", "sampling": {"seed": 5}}) + "\n", "utf-8")
    found = list(items(find_source(path), Wanted(sampling={}, template_kwargs={}, samples=3)))
    assert [item.prompt.sampling["seed"] for item in found] == [5, 6, 7]
    assert len({item.name for item in found}) == 3 and len({item.task.key for item in found}) == 1


def test_each_servers_numbers_are_told() -> None:
    up = ServerStatus("http://one:1", "up", "", 3, 8, 10, 900, 1, {"running": 3, "cache": 0.5})
    away = ServerStatus("http://two:2", "away", "gone", 0, 8, 4, 300, 0, {"running": 1, "cache": 0.7})
    status = Status(total=20, servers=(up, away))
    assert all_gauges(status.servers) == {"running": 4, "cache": 0.7}
    assert status.progress()["servers"] == "1/2 (without http://two:2)"
    text = status.open_metrics()
    for line in (
        'shardgate_capture_server_up{server="http://one:1"} 1',
        'shardgate_capture_server_up{server="http://two:2"} 0',
        'shardgate_capture_server_tokens_total{server="http://two:2"} 300',
        'shardgate_capture_server{server="http://one:1",gauge="cache"} 0.5',
    ):
        assert line in text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--base-url", "http://127.0.0.1:1"], "PROMPTS or --only"),
        (["p.jsonl", "--only", "."], "PROMPTS or --only"),
        (["--only", ".", "--samples", "2", "--base-url", "http://127.0.0.1:1"], "as they were asked for"),
        (["--only", ".", "--base-url", "http://127.0.0.1:1"], "no quarantined rows"),
        (["p.jsonl", "--max-drift", "0.5", "--no-tripwire", "--base-url", "http://127.0.0.1:1"], "tripwire"),
    ],
)
def test_what_contradicts_itself_is_told(tmp_path: Path, options: list[str], told: str) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "x"}\n', "utf-8")
    words = [sys.executable, "-m", "harness", "capture", "-o", "run", *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
