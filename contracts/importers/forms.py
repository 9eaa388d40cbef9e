"""Records that hold no conversation: which known form they are of, and what to do.

Place in the flow: under the importers, for their refusals. Imports nothing of ours.

A form is refused where its file does not say what the model saw and wrote: how an instruction and its input
become a prompt, say, is the trainer's choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHOWN = 8
AS_MESSAGES = "write it as `messages`, the prompt as the model saw it and its answer last"

FORMS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("input_ids",),
        "tokens",
        "read it with --from speculators, which needs `loss_mask` or `labels`, and --tokenizer",
    ),
    (
        ("instruction", "output"),
        "an instruction and its output (Alpaca), and how a trainer makes a prompt of them is not told",
        AS_MESSAGES,
    ),
    (
        ("query", "response"),
        "a query and its response (ms-swift), and how a trainer makes a prompt of them is not told",
        AS_MESSAGES,
    ),
    (("prompt", "completion"), "a text and its completion", AS_MESSAGES),
    (("prompt", "response"), "a text and its response", AS_MESSAGES),
    (("question", "answer"), "a question and its answer, of no model that is told", AS_MESSAGES),
    (("problem", "solution"), "a problem and its solution, of no model that is told", AS_MESSAGES),
    (("choices", "question_id"), "FastChat's answers, without the questions", AS_MESSAGES),
    (
        ("turns",),
        "questions without answers (MT-bench)",
        "write them as `messages` and record them with `shardgate capture`",
    ),
    (
        ("prompt",),
        "a prompt without an answer",
        "record it with `shardgate capture`",
    ),
    (("text",), "a text without roles", "a prompt and its answer can't be told apart in it; " + AS_MESSAGES),
)
"""Keys that tell a form, what it is, what to do; the first that fits."""


def what_it_is(record: Mapping[str, Any]) -> str:
    """Return why a record without a conversation is refused, and what to do."""
    for keys, meaning, remedy in FORMS:
        if all(record.get(key) is not None for key in keys):
            return f"none of conversations, messages is in it; it is {meaning}: {remedy}"
    if len(record) == 1:
        ((key, value),) = record.items()
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            return (
                f"none of conversations, messages is in it, but a list of records under {str(key)[:40]!r}: "
                "give a file of that list alone"
            )
    names = sorted(str(key)[:40] for key in record)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"none of conversations, messages is in it; it has {', '.join(names[:SHOWN]) or 'nothing'}{more}"
