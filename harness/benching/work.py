"""What a bench asks for: prompts, and outputs that are the same in every mode.

Place in the flow: the bench's input. Imports `contracts`, and client, modes, recording's prompts and the
script of the harness.

Scripted, the model is made to say a canonical output of its family, reasoning, content and a tool call, token
by token. Where a server takes no scripts, temperature 0, `ignore_eos` and one `max_tokens` for all make the
outputs equally long; what they were is compared afterwards.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.errors import ShardgateError
from contracts.formats import Format
from contracts.layouts import Parts
from contracts.records import Json, Prompt, ServerFacts
from contracts.tokens import Codec
from harness.client import Client
from harness.modes import Scripted
from harness.recording.prompts import Wanted, check, find_source, items
from harness.scripted import check_script, custom_params, processor_text

OWN_PROMPTS = 32
"""How many prompts the bench brings itself; more requests ask for these again."""

TOOLS: tuple[Mapping[str, Json], ...] = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "note": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
)
"""Declared for prompts that declare no tools of their own: without any, no tool-call parser would run."""

_TEXT = (
    "the weather in a city by the sea changes with the wind and I want to look at it again before I say "
    "what the day will be like so that nobody who goes out without a coat comes home wet and cold"
)


@dataclass(frozen=True, slots=True)
class Task:
    """One request, the same in every mode. `prompt_ids` (n,) None: the server renders the prompt itself."""

    prompt: Prompt
    prompt_ids: tuple[int, ...] | None
    script: Scripted | None


def own_prompts() -> list[Prompt]:
    """Return the bench's own prompts, each declaring one tool."""
    asked = "Question {}: what is the weather in Bern, what should I wear, and why?"
    return [
        Prompt(
            name=f"bench-{number}",
            messages=({"role": "user", "content": asked.format(number)},),
            tools=TOOLS,
        )
        for number in range(1, OWN_PROMPTS + 1)
    ]


def prompts_of(file: Path | None) -> list[Prompt]:
    """Return the prompts of a file, read as `shardgate capture` reads them, or the bench's own.

    Sampling parameters of the rows are left out: the bench sets its own, the same for all.

    Raises:
        ShardgateError: nothing to read, or rows that are no prompts.
    """
    if file is None:
        return own_prompts()
    source, wanted = find_source(file), Wanted(sampling={}, template_kwargs={})
    checked = check(source, wanted, keep=1)
    if checked.bad or not checked.generations:
        raise ShardgateError(
            what="the prompts can't be used",
            where=checked.bad[0].where if checked.bad else str(file),
            why=checked.bad[0].why if checked.bad else "there are none",
            remedy="give a file as for `shardgate capture` (docs/capture.md), or leave --prompts out",
        )
    found = []
    for item in items(source, wanted):
        task = item.task
        messages = task.prompt.messages[: task.cuts[-1]]
        found.append(replace(task.prompt, messages=messages, tools=task.prompt.tools or TOOLS, sampling={}))
    return found


def sampling_of(max_tokens: int) -> dict[str, Json]:
    """Return the sampling parameters that make outputs equally long, and alike as far as a server can."""
    return {"temperature": 0, "top_p": 1, "ignore_eos": True, "max_tokens": max_tokens}


async def rendered(client: Client, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Return each prompt's ids with its tools: the same prompt for every mode."""
    return list(await asyncio.gather(*(client.render(prompt) for prompt in prompts)))


def tasks_of(
    prompts: Sequence[Prompt],
    ids: Sequence[tuple[int, ...] | None],
    scripts: Sequence[Scripted | None],
    *,
    max_tokens: int,
    count: int,
) -> list[Task]:
    """Return `count` tasks over the prompts, again from the first where they are fewer."""
    # A script ends with its own end token and has the length that was asked for.
    sampled = sampling_of(max_tokens)
    scripted = {name: value for name, value in sampled.items() if name != "ignore_eos"}
    made = [
        Task(replace(prompt, sampling=scripted if script else sampled), own, script)
        for prompt, own, script in zip(prompts, ids, scripts, strict=True)
    ]
    return [made[number % len(made)] for number in range(count)]


def scripts_of(
    prompts: Sequence[Prompt], *, facts: ServerFacts, codec: Codec, fmt: Format, max_tokens: int
) -> list[Scripted]:
    """Return a script for each prompt, `max_tokens` long or a few less, its end token included.

    Raises:
        ShardgateError: `max_tokens` is too small for the family's markers, or the script has ids that the
            model does not have.
        ImportError: dill is missing (the extra `cpu` brings it).
    """
    found = []
    for number, prompt in enumerate(prompts):
        ids = script_ids(fmt, codec, prompt, number, max_tokens)
        try:
            check_script(ids, facts.vocab_size or max(ids) + 1)
        except ValueError as error:
            raise ShardgateError(
                what="the model can't be scripted",
                where=facts.model,
                why=str(error),
                remedy="give the model's own tokenizer (--tokenizer), or --work sampled",
            ) from error
        found.append(Scripted(ids, processor_text(), custom_params(ids)))
    return found


def script_ids(fmt: Format, codec: Codec, prompt: Prompt, number: int, limit: int) -> tuple[int, ...]:
    """Return the ids of a canonical output with the most words that fit into `limit` tokens."""

    def encoded(words: int) -> list[int]:
        return list(codec.encode(script_text(fmt, prompt, number, words)))

    least, most = 0, limit
    if len(encoded(0)) > limit:
        raise ShardgateError(
            what=f"{limit} tokens are too few for an output of this family",
            where="--max-tokens",
            why=f"markers, a tool call and the end token alone take {len(encoded(0))}",
            remedy=f"give at least {4 * len(encoded(0))}",
        )
    while least < most:
        middle = (least + most + 1) // 2
        if len(encoded(middle)) <= limit:
            least = middle
        else:
            most = middle - 1
    return tuple(encoded(least))


def script_text(fmt: Format, prompt: Prompt, number: int, words: int) -> str:
    """Return a canonical output: reasoning, then content, then a call, as far as the family has them.

    Half of the words are thought, a quarter is said, a quarter stands in the call's arguments.
    """

    words_known = _TEXT.split()

    def some(count: int) -> str:
        return " ".join(words_known[(number + place) % len(words_known)] for place in range(count))

    call = _call(fmt, prompt)
    thought = words // 2 if fmt.thinks else 0
    noted = words // 4 if call else 0
    content = some(words - thought - noted)
    calls: list[dict[str, Json]] = []
    if call and fmt.tools:
        if fmt.tools.alone or not fmt.tools.follows(content):
            noted, content = words - thought, ""
        arguments = json.dumps({"city": "Bern", "note": some(noted)})
        calls = [{"name": call, "arguments": arguments, "id": f"functions.{call}:0"}]
    parts = Parts(some(thought), content, calls, closed=fmt.thinks, opened=not fmt.opener_prefilled)
    text = "".join(piece for _, piece in fmt.layout.pieces(fmt, parts))
    return text + ((calls and fmt.call_end) or fmt.end_tokens[0])


def _call(fmt: Format, prompt: Prompt) -> str:
    """Return the name of a declared function that the family's syntax can carry; empty for none."""
    if fmt.tools is None:
        return ""
    for tool in prompt.tools or ():
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str) and fmt.tools.takes(name):
            return name
    return ""
