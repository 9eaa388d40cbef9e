"""The table of what gateways lose, answers taken apart, and the router's command lines; nothing is booted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.gateway.facts import (
    CHAT,
    GENERATE,
    STREAM,
    Lacking,
    fill,
    frame,
    leaves,
    lost,
    put,
    stream_leaves,
    table,
    take,
    there,
)
from harness.server.deployments import Deployment, load_deployments
from harness.server.failures import CannotBoot
from harness.server.group import DEFAULT_BOOTSTRAP_PORT, ServerGroup, role_of
from harness.server.router import Router
from tests.conftest import need

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=12,
)


def test_each_entry_of_the_table_says_what_follows_and_what_to_do() -> None:
    known = table()
    told = [*known.requests, *known.answers.values(), *known.streams.values()]
    told += [endpoint.told for endpoint in known.endpoints]
    assert all(one.consequence and one.remedy for one in told)
    names = [one.name for one in known.requests]
    assert len(names) == len(set(names))
    assert {one.path for one in known.requests} == {CHAT, STREAM, GENERATE}
    for one in known.requests:
        peers = {other.field for other in known.requests if other.path == one.path}
        assert set(one.rests_on) <= peers, one.name


def test_what_the_recorder_sends_is_probed() -> None:
    """Every switch that the harness sets in its own requests is among the probed fields."""
    from contracts.records import Mode, Prompt
    from harness.modes import Scripted, chat_body, generate_body

    prompt = Prompt("p", ({"role": "user", "content": "x"},), ({"type": "function"},), {"max_tokens": 1})
    script = Scripted((1,), "p", {"a": 1})
    sent = {STREAM: set[str](), CHAT: set[str](), GENERATE: set[str]()}
    for mode in Mode:
        for stream in (False, True):
            body = chat_body(prompt, mode, model="m", prompt_token_ids=[1], scripted=script, stream=stream)
            sent[STREAM if stream else CHAT] |= body.keys()
    body = generate_body(prompt, prompt_token_ids=[1], scripted=script, logprobs=True)
    sent[GENERATE] = body.keys() - {"sampling_params"} | {
        f"sampling_params.{name}" for name in body["sampling_params"]
    }
    # Without these no request is one, or their loss shows in every answer.
    plain = {"model", "messages", "stream", "max_tokens", "logprob_start_len"}
    plain |= {"sampling_params.spaces_between_special_tokens"}
    probed = {path: {one.field for one in table().requests if one.path == path} for path in sent}
    assert sent[CHAT] - plain <= probed[CHAT]
    assert sent[GENERATE] - plain <= probed[GENERATE]
    # One router reads chat's fields the same way, streamed or not; what only a stream has is probed there.
    assert sent[STREAM] - plain <= probed[CHAT] | probed[STREAM]


def test_the_measured_findings_are_names_of_the_table() -> None:
    known = table()
    names = {f"{kind}: {one.name}" for one in known.requests for kind in ("field-dropped", "field-refused")}
    names |= {f"endpoint-absent: {one.paths[0]}" for one in known.endpoints}
    assert known.measured
    for one in known.measured:
        assert set(one.findings) <= names


@settings(max_examples=60)
@given(JSON)
def test_nothing_is_lost_between_equal_answers(data: Any) -> None:
    assert lost(leaves(data), leaves(json.loads(json.dumps(data)))) == []


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from("abcd"), JSON, min_size=1), st.sampled_from("abcd"))
def test_a_lost_key_is_told_as_high_up_as_it_is_gone(data: dict[str, Any], key: str) -> None:
    rest = {name: value for name, value in data.items() if name != key}
    found = lost(leaves(data), leaves(rest))
    assert found == ([key] if there(key, leaves(data)) or f"{key}[]" in leaves(data) else [])


def test_a_null_and_an_absence_are_the_same() -> None:
    assert leaves({"a": None, "b": [], "c": {}}) == {}
    assert leaves({"a": {"b": [{"c": 1}, {"c": 2}]}}) == {"a.b[].c": (1, 2)}


@settings(max_examples=40)
@given(st.lists(st.integers(1, 5), max_size=6))
def test_a_stream_is_the_same_however_it_is_cut(cuts: list[int]) -> None:
    text = "The whole answer, piece by piece."
    pieces, start = [], 0
    for length in (*cuts, len(text)):
        pieces.append(text[start : start + length])
        start += length
    events = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    assert stream_leaves(events) == {"choices[].index": (0,), "choices[].delta.content": (text,)}


def test_a_frame_tells_what_is_wrong_with_it() -> None:
    whole = b'data: {"a": 1}\n\ndata: [DONE]\n\n'
    assert frame(whole) == ([{"a": 1}], ())
    assert frame(whole.replace(b"data: [DONE]\n\n", b"")) == ([{"a": 1}], ("no-done",))
    assert frame(whole.replace(b"{", b""))[1] == ("broken-event",)
    assert frame(b'{"a": 1}')[1] == ("no-stream",)
    assert frame(b"")[1] == ("no-stream",)


def test_fields_inside_others_are_set_and_taken_without_changing_what_was_given() -> None:
    inner = {"a": 1}
    body = {"sampling_params": inner, "b": 2}
    put(body, "sampling_params.c", 3)
    assert body == {"sampling_params": {"a": 1, "c": 3}, "b": 2} and inner == {"a": 1}
    take(body, "sampling_params.a")
    take(body, "b")
    take(body, "never.there")
    assert body == {"sampling_params": {"c": 3}}


def test_places_are_filled_or_told() -> None:
    assert fill({"$id": [1, "$id", "x"]}, {"$id": 7}) == {"7": [1, 7, "x"]}
    with pytest.raises(Lacking, match=r"\$id"):
        fill(["$id"], {"$id": None})


# Groups and the router's command line ---------------------------------------------------------------------


def _groups() -> Iterator[Deployment]:
    yield from (one for one in load_deployments().values() if one.servers)


def _router(group: Deployment) -> Router:
    """The router that the group would boot, its members at made-up URLs."""
    roles = []
    for number, one in enumerate(group.members()):
        role = role_of(one.flags)
        if one.url is not None and "--pd-disaggregation" in group.router_flags:
            role = "decode"  # an attached member reports its role itself
        roles.append((f"http://127.0.0.1:{21000 + number}", role))
    return Router(
        [url for url, role in roles if role is None],
        prefill=[(url, DEFAULT_BOOTSTRAP_PORT) for url, role in roles if role == "prefill"],
        decode=[url for url, role in roles if role == "decode"],
        flags=group.router_flags,
        port=31000,
    )


@pytest.mark.parametrize("group", list(_groups()), ids=lambda one: one.name)
def test_each_groups_router_command_parses(group: Deployment) -> None:
    need("sglang_router")
    from sglang_router.launch_router import parse_router_args

    router = _router(group)
    parsed = parse_router_args(list(router.arguments))
    assert (parsed.host, parsed.port) == ("127.0.0.1", 31000)
    roles = {role_of(one.flags) for one in group.members()}
    assert parsed.pd_disaggregation == ("prefill" in roles)
    if parsed.pd_disaggregation:
        assert parsed.prefill_urls and parsed.decode_urls and not parsed.worker_urls
        assert all(port == DEFAULT_BOOTSTRAP_PORT for _, port in parsed.prefill_urls)
    else:
        assert tuple(parsed.worker_urls) == router.workers and len(router.workers) == len(group.servers)


def test_a_router_is_refused_what_it_could_not_do() -> None:
    need("sglang_router")
    url = "http://127.0.0.1:1"
    with pytest.raises(CannotBoot, match="no worker"):
        Router().start()
    with pytest.raises(CannotBoot, match="don't go together"):
        Router(prefill=[(url, 1)]).start()
    with pytest.raises(CannotBoot, match="--port among the router's flags"):
        Router([url], flags=["--port", "3"]).start()


def test_the_key_is_not_among_the_arguments_that_are_shown() -> None:
    router = Router(["http://127.0.0.1:1"], api_key="secret-7", port=31000)
    assert "secret-7" not in router.arguments
    assert router.command[-2:] == ("--api-key", "secret-7")


def test_a_single_server_is_no_group() -> None:
    with pytest.raises(CannotBoot, match="is no group"):
        ServerGroup(load_deployments()["tiny"])
