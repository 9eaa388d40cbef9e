"""One boot = three boots: identical request bodies to servers booted with both parsers, one, and none.

Place in the flow: called by `tests/server` and `tests/gpu`. The switches of one request are to stand for a
boot: raw mode for a server without parsers, reasoning mode for one with a reasoning parser only. Where they
do not, the difference is a named finding of `fixtures/three-boots.toml`, which `docs/known-losses.md` shows;
the tests hold that table to what is measured. No fixtures here.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import Phase, given, settings

from contracts.formats import Format
from contracts.records import Fields, Mode, Prompt, ThinkingMode
from contracts.tokens import Codec
from harness.client import Client
from harness.golden import load_golden, script_ids
from harness.http import HttpSession
from harness.modes import Scripted, chat_body
from harness.paths import fixtures_dir
from harness.scripted import custom_params, processor_text
from harness.server import Deployment
from harness.strategies import TOOLS, Stream, disturbed_streams
from harness.wire import parse_chat, parse_chat_stream
from tests.bodies.streams import Served, prompt_of, until_end

BOTH, REASONING, NONE = "both parsers", "reasoning parser", "no parser"
BOOTS = (BOTH, REASONING, NONE)

CHAT = "/v1/chat/completions"
SWITCHES = ("skip_special_tokens", "separate_reasoning", "no_stop_trim")

MARKERS_OF = "kimi_k2"
"""The format in whose markers the golden prompts' scripts are written."""

SPECIAL = "<|im_middle|>"
"""A special token, as the tokenizer counts them, of the golden prompts' format."""

DRAWN = 8

Body = tuple[str, bool]
"""A body's name and whether it asks for a stream."""


@dataclass(frozen=True, slots=True)
class Case:
    """One script with the prompt that it answers."""

    name: str
    prompt: Prompt
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one server handed out for one body."""

    reasoning: str | None
    content: str | None
    tool_calls: str | None
    finish_reason: str | None
    matched_stop: int | str | None
    ids: tuple[int, ...] | None


COMPARED = tuple(Answer.__slots__)


TRIMMED = "raw, end token trimmed"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two requests, (boot, body) each, that are answered alike but for the differences that have a name."""

    left: tuple[str, str]
    right: tuple[str, str]
    differences: tuple[Mapping[str, Any], ...]

    def __str__(self) -> str:
        return f"{' asked for '.join(self.left)}, and {' asked for '.join(self.right)}"


def load_pairs() -> tuple[Pair, ...]:
    """The pairs of `fixtures/three-boots.toml`."""
    tables = tomllib.loads((fixtures_dir() / "three-boots.toml").read_text(encoding="utf-8"))["pair"]
    return tuple(
        Pair(tuple(table["left"]), tuple(table["right"]), tuple(table.get("difference", ())))
        for table in tables
    )


def golden_cases(codec: Codec) -> list[Case]:
    """The scripted golden prompts."""
    return [Case(one.name, one.prompt, script_ids(one, codec)) for one in load_golden() if one.scripted]


def drawn_cases(streams: Iterable[Stream], fmt: Format) -> list[Case]:
    """Drawn streams as cases."""
    return [Case(f"drawn {n}", prompt_of(one, fmt), one.ids) for n, one in enumerate(streams)]


def own_cases(on: Served) -> list[Case]:
    """Scripts that no golden prompt has: a special token amid the text, one that ends no turn."""
    if on.codec.token_id(SPECIAL) is None:
        return []
    text = f"one{SPECIAL}two{on.fmt.closer}three{SPECIAL}four{on.fmt.end_tokens[0]}"
    stream = Stream(tuple(on.codec.encode(text)), ThinkingMode.THINKING, "stop", TOOLS)
    return [Case("special-inside", prompt_of(stream, on.fmt), stream.ids)]


def cases_for(on: Served) -> list[Case]:
    """Golden prompts where the format is theirs, and a few streams drawn the same way every time."""
    found: list[Stream] = []

    @settings(max_examples=DRAWN, derandomize=True, database=None, phases=(Phase.generate,))
    @given(disturbed_streams(on.fmt, on.codec))
    def collect(stream: Stream) -> None:
        found.append(until_end(stream, on))

    collect()
    goldens = golden_cases(on.codec) if on.fmt.name == MARKERS_OF else []
    return [*goldens, *own_cases(on), *drawn_cases(found, on.fmt)]


def bodies_of(case: Case, prompt_ids: tuple[int, ...], model: str) -> dict[Body, dict[str, Any]]:
    """The three modes' bodies, whole and streamed, and those of an application that sets no switch."""
    script = Scripted(case.ids, processor_text(), custom_params(case.ids))
    modes = [mode for mode in Mode if mode is not Mode.TOOLS or case.prompt.tools]
    found: dict[Body, dict[str, Any]] = {
        (str(mode), stream): chat_body(
            case.prompt, mode, model=model, prompt_token_ids=prompt_ids, scripted=script, stream=stream
        )
        for mode in modes
        for stream in (False, True)
    }
    raw = found["raw", False]
    found[TRIMMED, False] = {key: value for key, value in raw.items() if key != "no_stop_trim"}
    for name, source in (("plain", "reasoning"), ("plain with tools", "tools")):
        if body := found.get((source, False)):
            found[name, False] = {key: value for key, value in body.items() if key not in SWITCHES}
    return found


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompt ids of each case, as the first server renders them: every server gets these."""

    model: str
    ids: Mapping[str, tuple[int, ...]]


def render(on: Served, cases: Iterable[Case]) -> Prompts:
    """Have a server render the cases' prompts, tools included."""

    async def go() -> dict[str, tuple[int, ...]]:
        async with Client(on.server.base_url, facts=on.facts) as client:
            return {case.name: await client.render(case.prompt) for case in cases}

    return Prompts(on.facts.model, asyncio.run(go()))


Answers = dict[tuple[str, str, bool], Answer]
"""By case, body and streaming."""


def asked(on: Served, cases: list[Case], prompts: Prompts, *, streams_at_once: int = 1) -> Answers:
    """Send every body of every case to one server.

    A busy server puts several tokens into one delta, which changes what its streaming parsers make of them.
    """

    async def one(http: HttpSession, body: dict[str, Any], stream: bool) -> Answer:
        payload = await http.post(CHAT, body)
        found = parse_chat_stream(payload) if stream else parse_chat(payload)
        fields: Fields = found.fields
        return Answer(
            # Streamed, nothing came; whole, null or "": the comparison is of texts.
            fields.reasoning_content or None,
            fields.content or None,
            fields.tool_calls,
            found.finish_reason,
            found.matched_stop,
            found.response_token_ids,
        )

    async def go() -> Answers:
        wanted = [
            ((case.name, *key), body)
            for case in cases
            for key, body in bodies_of(case, prompts.ids[case.name], prompts.model).items()
        ]
        answers: Answers = {}
        for stream, width in ((False, 16), (True, streams_at_once)):
            some = [(key, body) for key, body in wanted if key[2] is stream]
            async with HttpSession(
                on.server.base_url, concurrency=width, timeout=300.0, api_key=None
            ) as http:
                got = await asyncio.gather(*(one(http, body, stream) for _, body in some))
            answers |= {key: answer for (key, _), answer in zip(some, got, strict=True)}
        return answers

    return asyncio.run(go())


@dataclass(frozen=True, slots=True)
class Shown:
    """One difference that was measured: where, in which case, and both sides."""

    pair: Pair
    part: str
    streamed: bool
    case: str
    left: Any
    right: Any

    def __str__(self) -> str:
        how = "streamed" if self.streamed else "whole"
        return f"{self.pair}: {self.part} ({how}) of {self.case!r}: {self.left!r} / {self.right!r}"


def compared(answers: Mapping[str, Answers]) -> list[Shown]:
    """Every difference between what the pairs' two sides handed out."""
    found = []
    for pair in load_pairs():
        (left_boot, left_body), (right_boot, right_body) = pair.left, pair.right
        for (case, body, streamed), left in answers[left_boot].items():
            right = answers[right_boot].get((case, right_body, streamed))
            if body != left_body or right is None:
                continue
            for part in COMPARED:
                sides = getattr(left, part), getattr(right, part)
                if sides[0] != sides[1]:
                    found.append(Shown(pair, part, streamed, case, *sides))
    return found


def _end_token_kept(shown: Shown, on: Served) -> bool:
    return any(shown.left == (shown.right or "") + end for end in on.fmt.end_tokens)


def _special_tokens_skipped(shown: Shown, on: Served) -> bool:
    texts = [str(side or "").replace(SPECIAL, "") for side in (shown.left, shown.right)]
    return texts[0] == texts[1]


HOW: Mapping[str, Callable[[Shown, Served], bool]] = {
    "end token kept": _end_token_kept,
    "special tokens skipped": _special_tokens_skipped,
    # Other pairs, without a difference, say what is there instead.
    "parser missing": lambda shown, on: True,
}
"""What a named difference is held to, beyond the part that differs."""


def _name_of(shown: Shown, on: Served) -> str | None:
    for entry in shown.pair.differences:
        parts = (*entry.get("parts", ()), *(() if shown.streamed else entry.get("whole_only", ())))
        if shown.part in parts and HOW[entry["how"]](shown, on):
            return str(entry["name"])
    return None


def unnamed(answers: Mapping[str, Answers], on: Served) -> list[Shown]:
    """The differences that `fixtures/three-boots.toml` does not name."""
    return [shown for shown in compared(answers) if _name_of(shown, on) is None]


def unseen(answers: Mapping[str, Answers], on: Served) -> list[str]:
    """The parts of named differences that nothing showed, and scripts that were to show one and did not."""
    seen = {(_name_of(shown, on), shown.part, shown.streamed) for shown in compared(answers)}
    shown_by = {(_name_of(shown, on), shown.case) for shown in compared(answers)}
    wanted = [
        (entry["name"], part, streamed)
        for pair in load_pairs()
        for entry in pair.differences
        for parts, ways in (("parts", (False, True)), ("whole_only", (False,)))
        for part in entry.get(parts, ())
        for streamed in ways
    ]
    missing = [
        f"{name}: {part} ({'streamed' if way else 'whole'})"
        for name, part, way in wanted
        if (name, part, way) not in seen
    ]
    entries = [entry for pair in load_pairs() for entry in pair.differences]
    return missing + [f"{e['name']}: {e['seen']}" for e in entries if (e["name"], e["seen"]) not in shown_by]


def holds(answers: Mapping[str, Answers], on: Served) -> None:
    """Hold what was measured to the table, both ways where the golden prompts are of this format."""
    assert set(answers) == set(BOOTS)
    assert [str(shown) for shown in unnamed(answers, on)] == []
    if on.fmt.name == MARKERS_OF:
        assert unseen(answers, on) == []


def other_boots(deployment: Deployment) -> dict[str, Deployment]:
    """The same deployment as the two other boots have it: without its tool-call parser, and without any."""
    reasoning = replace(deployment, name=f"{deployment.name}, {REASONING}", tool_parser=None)
    none = replace(reasoning, name=f"{deployment.name}, {NONE}", reasoning_parser=None)
    return {REASONING: reasoning, NONE: none}
