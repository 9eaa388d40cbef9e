"""Rows as conversations, and whether a trainer that renders them gets the row's own ids.

Place in the flow: an exporter. Imports the standard library and `contracts.shard`'s row type; transformers
inside functions. Nothing but what the trainer reads is written: SpecForge hands every other column to the
chat template.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.shard import Row

Render = Callable[[list[dict[str, Any]], "list[Any] | None"], list[int]]
"""Conversation and tools to the ids that a trainer makes of them."""


def messages(row: Row, *, calls_as_text: bool) -> list[dict[str, Any]]:
    """Return a row's messages with the keys that are set; calls as JSON text or as objects."""
    out = []
    for message in row["messages"]:
        told = {key: value for key, value in message.items() if value is not None}
        if "tool_calls" in told and not calls_as_text:
            told["tool_calls"] = json.loads(told["tool_calls"])
        out.append(told)
    return out


def tools(row: Row) -> list[Any] | None:
    """Return a row's tools as objects."""
    return None if row["tools"] is None else list(json.loads(row["tools"]))


def conversations(row: Row) -> dict[str, Any]:
    """Return a record of SpecForge's `train_data_path`: calls and tools as JSON text, so that rows agree."""
    record = {"id": row["sample_id"], "conversations": messages(row, calls_as_text=True)}
    return record if row["tools"] is None else {**record, "tools": row["tools"]}


def chat(row: Row) -> dict[str, Any]:
    """Return a record of Automodel's JSONL."""
    record = {"messages": messages(row, calls_as_text=False)}
    declared = tools(row)
    return record if declared is None else {**record, "tools": declared}


def modelopt(row: Row) -> dict[str, Any]:
    """Return a record of Model-Optimizer's JSONL."""
    return {"conversation_id": row["sample_id"], **chat(row)}


def renderer(tokenizer: Path | str, *, trust_remote_code: bool = False) -> Render:
    """Return what renders a conversation as trainers do: whole, no generation prompt, no template switch.

    Raises:
        ShardgateError: the folder holds no tokenizer with a chat template.
    """
    import logging

    logging.getLogger("transformers").setLevel(logging.ERROR)
    from transformers import AutoTokenizer

    try:
        loaded: Any = AutoTokenizer.from_pretrained(str(tokenizer), trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ShardgateError(
            "the tokenizer can't be loaded",
            where=str(tokenizer),
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
            remedy="pass the model's folder; one with code of its own needs --trust-remote-code",
        ) from error
    if not getattr(loaded, "chat_template", None):
        raise ShardgateError(
            "the tokenizer has no chat template",
            where=str(tokenizer),
            remedy="pass the model's own folder, with its chat_template.jinja",
        )

    def render(conversation: list[dict[str, Any]], declared: list[Any] | None) -> list[int]:
        text = loaded.apply_chat_template(
            conversation, tools=declared, tokenize=False, add_generation_prompt=False
        )
        return list(loaded(text, add_special_tokens=False)["input_ids"])

    return render


def difference(row: Row, render: Render, *, drops_bad_arguments: bool = False) -> dict[str, Any] | None:
    """Return where a row's rendering leaves its ids, None where it begins with them.

    What the template writes after the response (a line break, say) is no difference: it has no loss.
    `drops_bad_arguments` is what SpecForge does: arguments that are no JSON become an empty object.
    """
    ids = [*row["prompt_token_ids"], *row["response_token_ids"]]
    try:
        made = render(_for_template(row, drops_bad_arguments), tools(row))
    except Exception as error:  # a template may refuse a conversation in any way it likes
        return {"why": f"the template refuses it: {' '.join(str(error).split())[:200]}"}
    if made[: len(ids)] == ids:
        return None
    at = next(
        (n for n, (a, b) in enumerate(zip(ids, made, strict=False)) if a != b), min(len(ids), len(made))
    )
    prompt = len(row["prompt_token_ids"])
    return {
        "why": "the rendering differs",
        "part": "prompt" if at < prompt else "response",
        "token": at,
        "stored": ids[at : at + 8],
        "rendered": made[at : at + 8],
        "lengths": [len(ids), len(made)],
    }


def _for_template(row: Row, drops_bad_arguments: bool) -> list[dict[str, Any]]:
    """Return the messages as trainers hand them to the template: arguments as objects where they are any."""
    out = messages(row, calls_as_text=False)
    for message in out:
        for call in message.get("tool_calls", ()):
            function = call.get("function") or {}
            try:
                value = json.loads(function.get("arguments") or "")
            except ValueError:
                value = {} if drops_bad_arguments else None
            if isinstance(value, Mapping):
                function["arguments"] = value
    return out
