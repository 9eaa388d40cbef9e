"""What can get lost on the way, as data, and answers taken apart for comparison.

Place in the flow: under `harness.gateway.compare`. Pure but for reading `fixtures/gateways.toml`, where the
keys are described; imports `harness.paths`, `harness.sse` and the standard library.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from harness.paths import fixtures_dir
from harness.sse import DONE, sse_events

CHAT, STREAM, GENERATE = "chat", "stream", "generate"

Leaves = dict[str, tuple[Any, ...]]
"""Path → its values, in order. A null is no leaf: null and absent tell a reader the same."""

_JOINED = ("content", "reasoning_content", "arguments", "text")
GENERATED = (
    "content", "reasoning_content", "tool_calls", "text", "output_ids", "response_token_ids", "logprobs",
    "output_token_logprobs", "matched_stop", "matched", "completion_tokens", "total_tokens", "finish_reason",
    "reasoning_tokens", "length", "weight_versions", "output_token_logprobs_length", "sglext",
)  # fmt: skip
"""Keys whose values follow the sample: comparable only where both sides sampled the same tokens."""


@dataclasses.dataclass(frozen=True, slots=True)
class RequestField:
    """One request field and how to see that it arrives; the keys are those of the table."""

    field: str
    value: Any
    watch: tuple[str, ...]
    consequence: str
    remedy: str
    path: str = CHAT
    with_: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    without: tuple[str, ...] = ()
    rests_on: tuple[str, ...] = ()
    greedy: bool = False
    needed: bool = False
    bad: bool = True

    @property
    def name(self) -> str:
        """The field's name, with the path in front unless it is chat's."""
        return self.field if self.path == CHAT else f"{self.path} {self.field}"


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What is said of a lost field of the answer, an endpoint or a stream."""

    consequence: str
    remedy: str
    needed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """A path of the server (or its older name) and the key that its answer has."""

    paths: tuple[str, ...]
    key: str
    told: Told
    body: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What a released gateway was seen to do in front of one SGLang version."""

    package: str
    version: str
    engine: str
    mode: str
    findings: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """The whole of `fixtures/gateways.toml`."""

    requests: tuple[RequestField, ...]
    answers: Mapping[str, Told]
    endpoints: tuple[Endpoint, ...]
    streams: Mapping[str, Told]
    measured: tuple[Measured, ...]
    volatile: frozenset[str]
    reads_more: str

    def told_of(self, path: str) -> Told:
        """What is said of a lost field of the answer: the entry of the longest path that leads to it."""
        fits = [
            known for known in self.answers if path == known or path.startswith((f"{known}.", f"{known}["))
        ]
        if fits:
            return self.answers[max(fits, key=len)]
        inside = [self.answers[known] for known in self.answers if known.startswith(f"{path}.")]
        worst = next((one for one in inside if one.needed), None)
        return worst or Told(self.reads_more, "ask the server itself")


@cache
def table() -> Table:
    """The table that comes with shardgate."""
    data = tomllib.loads((fixtures_dir() / "gateways.toml").read_text("utf-8"))
    return Table(
        requests=tuple(_request(one) for one in data["request"]),
        answers={one["path"]: _told(one) for one in data["answer"]},
        endpoints=tuple(
            Endpoint(tuple(one["paths"]), one["key"], _told(one), one.get("body")) for one in data["endpoint"]
        ),
        streams={one["name"]: _told(one) for one in data["stream"]},
        measured=tuple(
            Measured(**{**one, "findings": tuple(one["findings"])}) for one in data.get("measured", ())
        ),
        volatile=frozenset(data["volatile"]),
        reads_more=data["reads_more"],
    )


def _request(one: Mapping[str, Any]) -> RequestField:
    keys: dict[str, Any] = {("with_" if key == "with" else key): value for key, value in one.items()}
    for key in ("watch", "without", "rests_on"):
        keys[key] = tuple(keys.get(key, ()))
    return RequestField(**keys)


def _told(one: Mapping[str, Any]) -> Told:
    return Told(one["consequence"], one["remedy"], one.get("needed", False))


def put(body: dict[str, Any], name: str, value: Any) -> None:
    """Set a field; `sampling_params.x` is one inside the other. The inner mapping is copied, not changed."""
    outer, dot, inner = name.partition(".")
    body[outer] = {**body.get(outer, {}), inner: value} if dot else value


def take(body: dict[str, Any], name: str) -> None:
    """Take a field out again, where it is."""
    outer, dot, inner = name.partition(".")
    if dot and isinstance(body.get(outer), Mapping):
        body[outer] = {key: value for key, value in body[outer].items() if key != inner}
    elif not dot:
        body.pop(name, None)


class Lacking(Exception):
    """A place of the table that nothing can fill here: no script is allowed, no end token is known."""


def fill(value: Any, places: Mapping[str, Any]) -> Any:
    """Return `value` with its `$places` filled, also as keys.

    Raises:
        Lacking: a place that has no value here.
    """
    if isinstance(value, str) and value.startswith("$"):
        if places.get(value) is None:
            raise Lacking(value)
        return places[value]
    if isinstance(value, Mapping):
        return {str(fill(key, places)): fill(item, places) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [fill(item, places) for item in value]
    return value


def leaves(data: Any) -> Leaves:
    """Return the leaves of a JSON value."""
    found: dict[str, list[Any]] = {}
    for path, value in _walk(data, ""):
        found.setdefault(path, []).append(value)
    return {path: tuple(values) for path, values in found.items()}


def _walk(data: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _walk(value, f"{path}.{key}" if path else str(key))
    elif isinstance(data, list):
        for value in data:
            yield from _walk(value, f"{path}[]")
    elif data is not None:
        yield path, data


def stream_leaves(objects: Iterable[Mapping[str, Any]]) -> Leaves:
    """Return the leaves of a stream's events, however it was cut: text joined, other values once each."""
    found: dict[str, list[Any]] = {}
    for one in objects:
        for path, values in leaves(one).items():
            found.setdefault(path, []).extend(values)
    return {
        path: ("".join(map(str, values)),)
        if path.rpartition(".")[2] in _JOINED
        else tuple(values)
        if path.endswith("[]")
        else tuple(dict.fromkeys(values))
        for path, values in found.items()
    }


def frame(body: bytes) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return a stream's JSON events, and what is wrong with its frame (names of the table's streams)."""
    events = sse_events(body)
    data = [event.data for event in events if event.data]
    if not data:
        return [], ("no-stream",)
    problems = [] if data[-1] == DONE else ["no-done"]
    objects = []
    for one in data:
        if one == DONE:
            continue
        try:
            parsed = json.loads(one)
        except ValueError:
            parsed = None
        if isinstance(parsed, dict):
            objects.append(parsed)
        elif "broken-event" not in problems:
            problems.append("broken-event")
    return objects, tuple(problems)


def there(path: str, found: Leaves) -> bool:
    """Whether a path, or anything below it, is among the leaves."""
    return any(leaf == path or leaf.startswith((f"{path}.", f"{path}[")) for leaf in found)


def seen(watch: Sequence[str], found: Leaves) -> tuple[Any, ...]:
    """What a field's watches show in an answer: whether a path is there, or its values."""
    return tuple(found.get(one[1:], ()) if one.startswith("=") else there(one, found) for one in watch)


def lost(expected: Leaves, got: Leaves) -> list[str]:
    """Return the paths that are expected and not there, each as high up as all of it is gone."""
    out: list[str] = []
    for path in expected:
        if path in got:
            continue
        parts = path.split(".")
        above = (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        top = next(one for one in above if not there(one, got))
        while top.endswith("[]"):
            top = top[:-2]
        if top not in out:
            out.append(top)
    return out


def follows_the_sample(path: str) -> bool:
    """Whether a path's value, or its being there, depends on which tokens were sampled."""
    return any(part.rstrip("[]") in GENERATED for part in path.split("."))


def shown(watch: Sequence[str], found: Leaves) -> str:
    """Return in words what `seen` sees."""
    parts = []
    for one, value in zip(watch, seen(watch, found), strict=True):
        told = excerpt(value) if one.startswith("=") else ("there" if value else "absent")
        parts.append(f"{one.removeprefix('=')}: {told}")
    return "; ".join(parts)


def excerpt(values: Any, limit: int = 60) -> str:
    """Return values as a short text."""
    if isinstance(values, tuple):
        values = values[0] if len(values) == 1 else list(values)
    text = "nothing" if values == [] else json.dumps(values, ensure_ascii=False, default=str)
    return text if len(text) <= limit else text[: limit - 1] + "…"
