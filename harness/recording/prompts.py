"""Prompts out of a file or folder: JSONL, parquet, Arrow; read once to check all, once more to send.

Place in the flow: the run's input. Imports `contracts`, `harness.modes` and `rowforms` of this package;
pyarrow inside functions.

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
from pathlib import Path
from typing import Any, Literal

from contracts.errors import ShardgateError
from contracts.records import Json, Prompt
from contracts.rules.structural import ROLE_LETTERS, ROLE_ORDER
from contracts.shard import ShardError, message_struct
from harness.modes import chat_body, generate_body
from harness.recording.rowforms import NotAPrompt, messages_of, name_of, samples_of, settings_of, tools_of
from harness.wire_errors import RequestRefused

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


@dataclass(frozen=True, slots=True)
class Item:
    """One unit of work: one conversation, one sample. `name` is unique in the run and the same each time."""

    task: Task
    sample_index: int

    @property
    def name(self) -> str:
        """Return the key of the content, and the sample."""
        return f"{self.task.key}-{self.sample_index:03d}"


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is no prompt: its number from 0, where it stands for people, and why."""

    row: int
    where: str
    why: str


@dataclass(frozen=True, slots=True)
class Source:
    """Prompts on disk. `digest` is SHA-256 over the files' bytes, in order."""

    path: Path
    files: tuple[Path, ...]
    kind: Literal["jsonl", "parquet", "arrow"]
    digest: str

    @property
    def name(self) -> str:
        """Return what the rows call it: the file's or folder's name."""
        return self.path.name


def find_source(path: Path) -> Source:
    """Return the files that a path stands for.

    Raises:
        ShardgateError: nothing there that prompts are read from.
    """
    if path.is_dir():
        files, kind = _in_folder(path)
    else:
        files, kind = [path], _kind(path)
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        except OSError as error:
            raise ShardgateError(
                what="the prompts can't be read", where=str(file), why=error.strerror or str(error)
            ) from error
    return Source(path, tuple(files), kind, digest.hexdigest())


_SUFFIXES: Mapping[str, Literal["jsonl", "parquet", "arrow"]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
}


def _kind(path: Path) -> Literal["jsonl", "parquet", "arrow"]:
    if path.suffix not in _SUFFIXES:
        raise ShardgateError(
            what="the prompts are of no kind that is read",
            where=str(path),
            why=f"its name ends with {path.suffix!r}",
            remedy="give a .jsonl file (one JSON object a line), .parquet, .arrow, or a folder of a data set",
        )
    return _SUFFIXES[path.suffix]


def _in_folder(path: Path) -> tuple[list[Path], Literal["jsonl", "parquet", "arrow"]]:
    splits = path / "dataset_dict.json"
    if splits.is_file():
        try:
            names = [str(path / name) for name in json.loads(splits.read_text("utf-8"))["splits"]]
        except (ValueError, KeyError, TypeError):
            names = []
        raise ShardgateError(
            what="the folder holds several splits of a data set",
            where=str(path),
            why="a run records one set of prompts",
            remedy=f"give one of them: {', '.join(names) or 'a folder inside it'}",
        )
    state = path / "state.json"
    if state.is_file():
        try:
            told = json.loads(state.read_text("utf-8"))
            files = [path / entry["filename"] for entry in told["_data_files"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ShardgateError(
                what="the data set's state can't be read", where=str(state), why=str(error)
            ) from error
        if told.get("_indices_files"):
            raise ShardgateError(
                what="the data set is a selection of rows of another one",
                where=str(state),
                why="its indices are kept apart from its rows",
                remedy="write it flat: dataset.flatten_indices().save_to_disk(FOLDER)",
            )
        return files, "arrow"
    for suffix, kind in _SUFFIXES.items():
        if found := sorted(path.glob(f"*{suffix}")):
            return found, kind
    raise ShardgateError(
        what="the folder holds no prompts",
        where=str(path),
        why=f"no file in it ends with {', '.join(_SUFFIXES)}",
        remedy="give a file, or a folder that datasets' save_to_disk wrote",
    )


def raw_rows(source: Source) -> Iterator[tuple[str, Any]]:
    """Yield each row with where it stands; a line that is no JSON object as the error that says so."""
    for file in source.files:
        if source.kind == "jsonl":
            yield from _lines(file)
        else:
            yield from _table_rows(file, source.kind)


def _lines(file: Path) -> Iterator[tuple[str, Any]]:
    with file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            where = f"{file}:{number}"
            if not line.strip():
                continue
            try:
                yield where, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield where, NotAPrompt(f"the line is no JSON: {error}")


def _table_rows(file: Path, kind: str) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    number = 0
    try:
        if kind == "parquet":
            with parquet.ParquetFile(file) as opened:
                for batch in opened.iter_batches(batch_size=256):
                    for row in batch.to_pylist():
                        yield f"{file}, row {number}", without_nulls(row)
                        number += 1
            return
        with pa.memory_map(str(file)) as mapped, _arrow(mapped) as reader:
            for batch in reader:
                for row in batch.to_pylist():
                    yield f"{file}, row {number}", without_nulls(row)
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise ShardgateError(
            what="the prompts can't be read", where=f"{file}, row {number}", why=str(error)
        ) from error


def _arrow(mapped: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(mapped)  # what `datasets` writes
    except pa.ArrowInvalid:
        mapped.seek(0)
        opened = pa.ipc.open_file(mapped)
        batches = (opened.get_batch(n) for n in range(opened.num_record_batches))
        return pa.RecordBatchReader.from_batches(opened.schema, batches)


def without_nulls(value: Any) -> Any:
    """Drop null entries of objects: a table gives every struct all keys that any of them has."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def tasks(source: Source, wanted: Wanted) -> Iterator[Task | BadRow]:
    """Yield what each row asks for, in order; a row that is no prompt as its fault."""
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
    cuts = _cuts(messages, wanted.turns)
    name = name_of(raw) or default_name
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
