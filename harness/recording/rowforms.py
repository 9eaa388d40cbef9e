"""The forms in which data sets keep a prompt: OpenAI messages, one text, ShareGPT turns, the rest of a row.

Place in the flow: under `harness.recording.prompts`. Imports `harness.modes`, and conversation of
`contracts`, which the import reads the same forms with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contracts.conversation import Malformed, conversation, declarations, decoded, refuse_unwritable
from contracts.records import Json
from harness.modes import GENERATE_NAMES

_OPENAI_NAMES = {own: openai for openai, own in GENERATE_NAMES.items()} | {"max_new_tokens": "max_tokens"}


class NotAPrompt(Exception):
    """A row that no prompt can be made of; its text says why."""


def messages_of(raw: Mapping[str, Any]) -> list[dict[str, Json]]:
    """Return a row's messages: from `messages`, `prompt` (a text or messages) or `conversations`.

    Raises:
        NotAPrompt: the row has none of them, or what it has is malformed.
    """
    for column in ("messages", "prompt", "conversations"):
        value = raw.get(column)
        if value is None:
            continue
        if column == "prompt" and isinstance(value, str):
            value = [{"role": "user", "content": value}]
        try:
            return conversation(value, column, system=raw.get("system")).messages
        except Malformed as error:
            raise NotAPrompt(str(error)) from None
    raise NotAPrompt("it has none of `messages`, `prompt`, `conversations`")


def tools_of(raw: Mapping[str, Any]) -> list[dict[str, Json]]:
    """Return the tools that a row declares, none as an empty list.

    Raises:
        NotAPrompt: they are no OpenAI-style declarations.
    """
    try:
        return declarations(raw.get("tools"), bare=False) or []
    except Malformed as error:
        raise NotAPrompt(str(error)) from None


def settings_of(raw: Mapping[str, Any]) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return a row's own sampling parameters, by OpenAI's names, and its template arguments.

    Raises:
        NotAPrompt: one of them is no object.
    """
    sampling: dict[str, Json] = {}
    kwargs: dict[str, Json] = {}
    for column, into in (
        ("sampling", sampling),
        ("sampling_params", sampling),
        ("template_kwargs", kwargs),
        ("chat_template_kwargs", kwargs),
    ):
        value = raw.get(column)
        if value is None:
            continue
        try:
            value = decoded(value, f"`{column}`")
            if not isinstance(value, Mapping):
                raise NotAPrompt(f"`{column}` is no object")
            refuse_unwritable(dict(value), f"`{column}`")
        except Malformed as error:
            raise NotAPrompt(str(error)) from None
        into.update(value)
    return openai_names(sampling), kwargs


def openai_names(sampling: Mapping[str, Json]) -> dict[str, Json]:
    """Return sampling parameters by OpenAI's names; SGLang's own (`max_new_tokens`) are taken too."""
    return {_OPENAI_NAMES.get(name, name): value for name, value in sampling.items() if value is not None}


def samples_of(sampling: Mapping[str, Json], default: int) -> int:
    """Return how many generations a prompt is asked for: its own `n`, else the run's.

    Raises:
        NotAPrompt: `n` is no count.
    """
    number = sampling.get("n", default)
    if type(number) is not int or not 1 <= number <= 999:
        raise NotAPrompt(f"n is {number!r}, not a number from 1 to 999")
    return number


def name_of(raw: Mapping[str, Any]) -> str:
    """Return the row's own name, "" where it has none."""
    for column in ("id", "prompt_id", "conversation_id", "uuid"):
        value = raw.get(column)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return str(value)
    return ""
