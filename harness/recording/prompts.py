"""Prompts out of a file or folder: JSONL, parquet, Arrow; read once to check all, once more to send.

Place in the flow: the run's input. Imports `contracts`, `harness.modes`, and rowforms and sources of this
package.

A prompt's key is a digest of its content: messages, tools, template arguments, sampling. Rows with the same
conversation share one count of samples, so that one that stands there twice gets samples of its own the
second time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from contracts.records import Json, Prompt
from contracts.rules.structural import ROLE_LETTERS, ROLE_ORDER
from contracts.shard import ShardError, message_struct
from harness.modes import chat_body, generate_body
from harness.recording.rowforms import NotAPrompt, messages_of, name_of, samples_of, settings_of, tools_of
from harness.recording.sources import Source, find_source, raw_rows
from harness.wire_errors import RequestRefused

__all__ = [
    "BadRow", "Checked", "Item", "Source", "Task", "Turns", "Wanted", "at_turn", "check", "find_source",
    "items", "new_task", "tasks",
]  # fmt: skip

Turns = Literal["last", "each"]
"""Which assistant turns are generated: the last one, or each in its place with the real history."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What every prompt of the run is asked for, beside what its own row says.

    `sampling` and `template_kwargs` are overridden by a row's own. `samples` is the number of generations a
    prompt, where the row has no `n`.
    """

    sampling: Mapping[str, Json]
    template_kwargs: Mapping[str, Json]
    samples: int = 1
    turns: Turns = "last"
    chat: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One row of the source: the conversation, and where its assistant turns are to be generated.

    `prompt.messages` is the conversation up to the last turn; `cuts` are the lengths of the histories that
    a turn is generated after, in order.
    """

    prompt: Prompt
    key: str
    conversation: str
    cuts: tuple[int, ...]
    samples: int
    row: int
    again: Again | None = None


@dataclass(frozen=True, slots=True)
class Again:
    """Which row of a shard a task generates anew, under what item's name, and what that row was.

    `prompt_ids` are the row's own, None where they are not what it was sealed with.
    """

    replaces: str
    item: str
    sample_index: int
    parent: str | None
    dataset: str
    prompt_ids: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Item:
    """One unit of work: one conversation, one sample. `name` is unique in the run and the same each time."""

    task: Task
    sample_index: int

    @property
    def name(self) -> str:
        """Return the key of the content, and the sample; of a row made anew, what it replaces says both."""
        if self.task.again is not None:
            return self.task.again.item
        return f"{self.task.key}-{self.sample_index:03d}"

    @property
    def prompt(self) -> Prompt:
        """Return what is asked for: a seed is the first sample's, the next ones count on from it.

        With one seed for all, a server that keeps to seeds would give the same sample each time.
        """
        prompt = self.task.prompt
        seed = prompt.sampling.get("seed")
        if type(seed) is not int or not self.sample_index or self.task.again is not None:
            return prompt
        return replace(prompt, sampling={**prompt.sampling, "seed": seed + self.sample_index})


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is no prompt: its number from 0, where it stands for people, and why."""

    row: int
    where: str
    why: str


def tasks(source: Source, wanted: Wanted) -> Iterator[Task | BadRow]:
    """Yield what each row asks for, in order; a row that is no prompt as its fault."""
    if source.kind == "quarantine":
        from harness.recording.quarantine import again

        yield from again(source, wanted)
        return
    stem = source.path.stem
    for row, (where, raw) in enumerate(raw_rows(source)):
        try:
            yield _task(raw, f"{stem}:{row}", row, wanted)
        except NotAPrompt as error:
            yield BadRow(row, where, str(error))


def _task(raw: Any, default_name: str, row: int, wanted: Wanted) -> Task:
    if isinstance(raw, NotAPrompt):
        raise raw
    if not isinstance(raw, Mapping):
        raise NotAPrompt(f"the row is a {type(raw).__name__}, not an object")
    messages = messages_of(raw)
    tools = tools_of(raw)
    own, kwargs = settings_of(raw)
    sampling = {**wanted.sampling, **own}
    samples = samples_of(sampling, wanted.samples)
    sampling.pop("n", None)
    kwargs = {**wanted.template_kwargs, **kwargs}
    name = name_of(raw) or default_name
    return new_task(name, messages, tools, sampling, kwargs, wanted=wanted, samples=samples, row=row)


def new_task(
    name: str,
    messages: list[dict[str, Json]],
    tools: list[dict[str, Json]],
    sampling: Mapping[str, Json],
    kwargs: Mapping[str, Json],
    *,
    wanted: Wanted,
    samples: int,
    row: int,
    again: Again | None = None,
) -> Task:
    """Return the task of one conversation.

    Raises:
        NotAPrompt: it is none, or none that the transport can ask for.
    """
    cuts = _cuts(messages, wanted.turns)
    prompt = Prompt(
        name=name,
        messages=tuple(messages[: cuts[-1]]),
        tools=tuple(tools) or None,
        sampling=sampling,
        template_kwargs=kwargs,
        conversation_id=name,
    )
    _refuse_unaskable(prompt, wanted.chat)
    told = [prompt.messages, list(tools), kwargs, wanted.turns]
    return Task(
        prompt=prompt,
        key=_digest([*told, sampling]),
        conversation=_digest(told),
        cuts=tuple(cuts),
        samples=samples,
        row=row,
        again=again,
    )


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=dict)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _cuts(messages: list[dict[str, Json]], turns: Turns) -> list[int]:
    """Return the lengths of the histories before the turns to generate.

    What follows the last user message or tool result is the turn that is generated anew, whatever the
    source had there.
    """
    end = len(messages)
    while end and messages[end - 1]["role"] == "assistant":
        end -= 1
    if not end:
        raise NotAPrompt("no message of a user")
    for index, message in enumerate(messages[:end]):
        try:
            message_struct(message)
        except ShardError as error:
            raise NotAPrompt(f"message {index}: {error.what}") from None
    letters = "".join(ROLE_LETTERS.get(str(message["role"]), "x") for message in messages[:end])
    if not re.match(ROLE_ORDER, letters + "a"):
        raise NotAPrompt(f"the roles do not follow system? (user assistant (tool+ assistant)*)+: {letters}a")
    if turns == "last":
        return [end]
    return [index for index in range(end) if messages[index]["role"] == "assistant"] + [end]


def _refuse_unaskable(prompt: Prompt, chat: bool) -> None:
    """Find what the transport has no word for now, instead of in the middle of the run."""
    from contracts.records import Mode

    try:
        if chat:
            chat_body(prompt, Mode.TOOLS, model="", prompt_token_ids=None)
        else:
            generate_body(prompt, prompt_token_ids=(0,))
    except RequestRefused as error:
        raise NotAPrompt(error.what) from None
    limit = prompt.sampling.get("max_completion_tokens", prompt.sampling.get("max_tokens"))
    if limit is not None and (type(limit) is not int or limit < 1):
        raise NotAPrompt(f"max_tokens is {limit!r}, not a number of tokens")


def items(source: Source, wanted: Wanted) -> Iterator[Item]:
    """Yield the work of a checked source, in its order; rows that are no prompts are passed over."""
    seen: Counter[str] = Counter()
    for task in tasks(source, wanted):
        if isinstance(task, BadRow):
            continue
        if task.again is not None:
            yield Item(task, task.again.sample_index)
            continue
        first = seen[task.conversation]
        seen[task.conversation] += task.samples
        for number in range(first, first + task.samples):
            yield Item(task, number)


def at_turn(prompt: Prompt, messages: tuple[Mapping[str, Json], ...]) -> Prompt:
    """Return the prompt of one turn: this history, and the count of the assistant's turns in it."""
    turn = sum(message["role"] == "assistant" for message in messages)
    return replace(prompt, messages=messages, turn_index=turn)


@dataclass(frozen=True, slots=True)
class Checked:
    """What the first reading of a source found: generations asked for, and the rows that are no prompts."""

    rows: int
    generations: int
    bad: tuple[BadRow, ...]


def check(source: Source, wanted: Wanted, *, keep: int | None = None) -> Checked:
    """Read every row once. `keep`: stop after that many bad ones."""
    rows = generations = 0
    bad: list[BadRow] = []
    for task in tasks(source, wanted):
        rows += 1
        if isinstance(task, BadRow):
            bad.append(task)
            if keep is not None and len(bad) >= keep:
                break
        else:
            generations += task.samples * len(task.cuts)
    return Checked(rows, generations, tuple(bad))
