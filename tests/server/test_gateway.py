"""Gateways before a real server: what is lost on the way is named, and nothing else.

The gateways are a forwarding proxy that takes one field away, and SGLang's own router as it was released.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from contracts.tokens import Codec
from harness.gateway import compare
from harness.gateway.facts import RequestField, table, take
from harness.golden import load_golden, script_ids
from harness.modes import Scripted
from harness.scripted import custom_params, processor_text
from harness.server import SGLangServer
from harness.server.router import Router
from tests.bodies.proxy import Proxy, change_at
from tests.conftest import need

pytestmark = pytest.mark.server

FIELDS = table().requests
GOLDEN = next(one for one in load_golden() if one.name == "call-with-content")


@pytest.fixture(scope="module")
def script(tiny_codec: Codec) -> Scripted:
    ids = script_ids(GOLDEN, tiny_codec)
    return Scripted(ids, processor_text(), custom_params(ids))


@pytest.fixture(scope="module")
def router(tiny_server: SGLangServer) -> Iterator[Router]:
    need("sglang_router")
    with Router([tiny_server.base_url]) as booted:
        yield booted


def names(server: SGLangServer, proxy: Proxy, script: Scripted | None, **limits: Any) -> list[str]:
    report = compare(server.base_url, proxy.base_url, script=script, prompt=GOLDEN.prompt, **limits)
    assert report.checked
    return [one.name for one in report.findings]


def without(*fields: RequestField) -> Callable[[str, dict[str, Any]], None]:
    """What a proxy does to requests: takes these fields out."""

    def request(kind: str, body: dict[str, Any]) -> None:
        for one in fields:
            if one.path == kind:
                take(body, one.field)

    return request


@pytest.mark.parametrize("scripted", [True, False], ids=["scripted", "sampled"])
def test_a_gateway_that_hands_all_on_is_found_to_do_so(
    tiny_server: SGLangServer, script: Scripted, scripted: bool
) -> None:
    with Proxy(tiny_server.base_url) as proxy:
        report = compare(
            tiny_server.base_url,
            proxy.base_url,
            script=script if scripted else None,
            prompt=GOLDEN.prompt,
        )
    assert report.findings == ()
    assert report.same_greedy
    if scripted:
        # Each field of the table is told apart on this server, so that its loss would be seen.
        assert {one.name for one in FIELDS} - {"min_p", "top_k", "top_p"} <= set(report.checked)


def _touches(one: RequestField) -> set[str]:
    """The fields that a probe of this one sends."""
    return {one.field, *one.with_, *one.rests_on}


def _groups() -> list[list[RequestField]]:
    """All fields, in groups within which no probe sends another's field: their losses are independent."""
    groups: list[list[RequestField]] = []
    for one in FIELDS:
        for group in groups:
            if len(group) < 9 and not any(
                other.path == one.path and (other.field in _touches(one) or one.field in _touches(other))
                for other in group
            ):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


@pytest.mark.parametrize("group", _groups(), ids=lambda group: group[0].name)
def test_request_fields_that_are_taken_away_are_named(
    tiny_server: SGLangServer, script: Scripted, group: list[RequestField]
) -> None:
    """Every field of the table, several at once: each is named by its own name, and nothing else is."""
    with Proxy(tiny_server.base_url, request=without(*group)) as proxy:
        wanted = {one.name for one in group}
        report = compare(tiny_server.base_url, proxy.base_url, script=script, only=wanted)
    told = {finding.name: finding for finding in report.findings}
    assert set(told) == {f"field-dropped: {one.name}" for one in group}, report.unseen
    for one in group:
        finding = told[f"field-dropped: {one.name}"]
        assert finding.side == "request" and finding.needed == one.needed
        assert finding.direct != finding.through
        assert finding.consequence == one.consequence and finding.remedy == one.remedy


@pytest.mark.parametrize("field", ["return_token_ids", "custom_params"])
def test_one_lost_field_is_all_that_is_told(tiny_server: SGLangServer, script: Scripted, field: str) -> None:
    """The whole comparison, one field lost: one finding."""
    lost = next(one for one in FIELDS if one.name == field)
    with Proxy(tiny_server.base_url, request=without(lost)) as proxy:
        assert names(tiny_server, proxy, script) == [f"field-dropped: {field}"]


ANSWERS = {
    "reasoning": (
        "choices[].message.content",
        "choices[].message.reasoning_content",
        "choices[].response_token_ids",
        "choices[].prompt_token_ids",
        "choices[].matched_stop",
        "choices[].finish_reason",
        "choices[].meta_info",
        "choices[].logprobs",
        "usage",
        "metadata",
    ),
    "raw": ("usage.prompt_tokens", "metadata.weight_version"),
    "tools": ("choices[].message.tool_calls",),
    "reasoning, streamed": ("sglext", "choices[].delta.content", "choices[].delta.reasoning_content"),
    "tools, streamed": ("choices[].delta.tool_calls[].index", "choices[].delta.tool_calls[].function.name"),
    "raw, streamed": ("choices[].finish_reason", "usage"),
    "generate": ("text", "output_ids", "meta_info"),
    "generate, streamed": ("meta_info.finish_reason", "output_ids"),
}
"""By mode, paths that a proxy takes out of the answers."""


@pytest.mark.parametrize("mode", ANSWERS)
def test_fields_of_the_answer_that_are_taken_away_are_named(
    tiny_server: SGLangServer, script: Scripted, mode: str
) -> None:
    def answer(kind: str, body: dict[str, Any]) -> None:
        for path in ANSWERS[mode]:
            change_at(body, path, lambda value: None)

    with Proxy(tiny_server.base_url, answer=answer) as proxy:
        found = names(tiny_server, proxy, script, only={f"answers: {mode}"})
    over = "generate " if mode.startswith("generate") else ""
    assert set(found) == {f"answer-dropped: {over}{path}" for path in ANSWERS[mode]}


def test_the_table_tells_of_every_field_of_an_answer() -> None:
    taken = {path for paths in ANSWERS.values() for path in paths}
    assert set(table().answers) - taken <= {"prompt_token_ids", "choices[].delta.tool_calls"}


def test_a_lost_answer_is_not_blamed_on_the_request(tiny_server: SGLangServer, script: Scripted) -> None:
    """The ids are gone from the answer, but the switch that asks for them arrives."""

    def answer(kind: str, body: dict[str, Any]) -> None:
        change_at(body, "choices[].prompt_token_ids", lambda value: None)

    asked = {"return_prompt_token_ids", "return_token_ids", "answers: raw"}
    with Proxy(tiny_server.base_url, answer=answer) as proxy:
        assert names(tiny_server, proxy, script, only=asked) == ["answer-dropped: choices[].prompt_token_ids"]


def test_what_is_altered_is_named(tiny_server: SGLangServer, script: Scripted) -> None:
    def answer(kind: str, body: dict[str, Any]) -> None:
        change_at(body, "choices[].message.content", str.strip)
        change_at(body, "choices[].message.reasoning_content", lambda text: text + " ")
        change_at(body, "choices[].finish_reason", lambda reason: "length")

    with Proxy(tiny_server.base_url, answer=answer) as proxy:
        found = names(tiny_server, proxy, script, only={"answers: reasoning"})
    assert found == [
        "answer-altered: choices[].finish_reason",
        "answer-altered: choices[].message.reasoning_content",
    ]


def test_a_field_that_is_refused_is_named(tiny_server: SGLangServer, script: Scripted) -> None:
    def request(kind: str, body: dict[str, Any]) -> None:
        if "separate_reasoning" in body:
            body["temperature"] = "as you like"

    with Proxy(tiny_server.base_url, request=request) as proxy:
        report = compare(tiny_server.base_url, proxy.base_url, only={"separate_reasoning"})
    assert [one.name for one in report.findings] == ["field-refused: separate_reasoning"]
    assert "400" in report.findings[0].through and report.findings[0].needed


def test_a_gateway_that_samples_otherwise_gives_no_false_findings(
    tiny_server: SGLangServer, script: Scripted
) -> None:
    def request(kind: str, body: dict[str, Any]) -> None:
        sampling = body.get("sampling_params", body)
        if sampling.get("temperature") == 0:
            sampling["temperature"] = 1.5

    with Proxy(tiny_server.base_url, request=request) as proxy:
        report = compare(tiny_server.base_url, proxy.base_url, prompt=GOLDEN.prompt)
    assert not report.same_greedy
    assert report.findings == ()
    assert any("temperature 0" in why for _, why in report.unseen)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda data: data.replace(b"data: [DONE]\n\n", b""), "stream: no-done"),
        (lambda data: data.replace(b"data: {", b"data: ", 1), "stream: broken-event"),
        (lambda data: b"", "stream: no-stream"),
    ],
    ids=["no-done", "broken-event", "no-stream"],
)
def test_what_happens_to_a_stream_is_named(
    tiny_server: SGLangServer, script: Scripted, change: Callable[[bytes], bytes], finding: str
) -> None:
    with Proxy(tiny_server.base_url, stream=change) as proxy:
        assert finding in names(tiny_server, proxy, script, only={"answers: raw, streamed"})


def test_endpoints_that_are_not_there_are_named(tiny_server: SGLangServer) -> None:
    closed = ("/generate", "/server_info", "/get_server_info", "/tokenize")
    with Proxy(tiny_server.base_url, closed=closed) as proxy:
        report = compare(tiny_server.base_url, proxy.base_url, only={"endpoints"})
    assert [one.name for one in report.findings] == [
        "endpoint-absent: /generate",
        "endpoint-absent: /server_info",
        "endpoint-absent: /tokenize",
    ]
    assert [one.needed for one in report.findings] == [True, False, False]


def test_the_released_router_does_what_the_table_says(
    tiny_server: SGLangServer, router: Router, script: Scripted
) -> None:
    known = next(one for one in table().measured if one.package == "sglang-router" and one.mode == "regular")
    assert importlib.metadata.version("sglang-router") == known.version
    assert importlib.metadata.version("sglang") == known.engine
    report = compare(tiny_server.base_url, router.base_url, script=script, prompt=GOLDEN.prompt)
    assert sorted(one.name for one in report.findings) == sorted(known.findings)
    # A processor that is no JSON would have ended it: a comparison sends none.
    tiny_server.check()


def shardgate(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=env)


def test_probe_tells_what_the_router_drops(tiny_server: SGLangServer, router: Router) -> None:
    done = shardgate("probe", router.base_url, "--direct", tiny_server.base_url, "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    found = {one["name"]: one for one in report["gateway"]["findings"]}
    assert found["field-dropped: return_token_ids"]["needed"] is True
    assert "record from the server itself" in found["field-dropped: return_token_ids"]["remedy"]
    # The facts are the server's: the router does not tell them.
    assert report["server"]["reasoning_parser"] == "kimi_k2"
    assert report["server"]["engine_version"]


def test_probe_of_a_router_alone_says_that_it_is_one(router: Router) -> None:
    done = shardgate("probe", router.base_url)
    assert done.returncode == 2
    assert "--direct" in done.stderr and "gateway" in done.stderr and "Traceback" not in done.stderr


def test_nothing_is_said_of_a_gateway_that_is_not_there(tiny_server: SGLangServer) -> None:
    done = shardgate("probe", "http://127.0.0.1:9", "--direct", tiny_server.base_url)
    assert done.returncode == 2
    assert "127.0.0.1:9" in done.stderr and "Traceback" not in done.stderr
