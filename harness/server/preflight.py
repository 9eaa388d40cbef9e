"""Told before the boot: a model, a chat template and parsers that don't go together.

Place in the flow: before the launcher; `shardgate serve` and `shardgate doctor` ask it. Imports the stage's
own modules only. What it knows of families is data, `fixtures/families.toml`.

An hour of loading shows nothing of this, and afterwards only empty `reasoning` fields do. What is certain is
an `error` (SGLang has no such parser; the parser reads another family's markers), what the files make likely
is a `warning`, what the reader should know is a `notice`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.server.families import (
    THINKING_MARKERS,
    TOOL_MARKERS,
    Family,
    ModelFiles,
    families,
    family_of,
    known_parsers,
    model_files,
    remote_code_sha256,
)
from harness.server.flags import asked, text_of
from harness.server.templates import template_fault

__all__ = ["Doubt", "doubts", "parser_doubts", "remote_code_sha256"]

Severity = Literal["error", "warning", "notice"]

BROKEN_TEMPLATE = "the chat template does not compile"
_FLAGS = {"reasoning": "--reasoning-parser", "tools": "--tool-call-parser"}
_SETTINGS = {"reasoning": "reasoning_parser", "tools": "tool_call_parser"}
_WORDS = {"reasoning": "reasoning parser", "tools": "tool-call parser"}


@dataclass(frozen=True, slots=True)
class Doubt:
    """One thing that does not fit before the boot: what, why, and what to do about it."""

    what: str
    why: str
    remedy: str
    severity: Severity


def doubts(model_path: str, flags: Sequence[str]) -> tuple[Doubt, ...]:
    """Return what the model's files on this machine say against these flags, the worst first.

    `model_path` is a folder or a hub name; a hub name is looked up in this machine's cache, never on the net.
    """
    found = _unknown_names(flags)
    unknown = {doubt.what for doubt in found}
    files = model_files(
        model_path, tokenizer=text_of(flags, "tokenizer_path"), revision=text_of(flags, "revision")
    )
    if files is None:
        found.append(
            Doubt(
                "nothing can be said of the parsers before the boot",
                f"neither a folder nor this machine's hub cache has the files of {model_path}",
                "fetch the model first (`hf download`), or compare the flags with its model card",
                "notice",
            )
        )
        return tuple(found)
    files = _with_given_template(files, flags)
    found += _broken_template(files)
    family = family_of(files)
    found += _of_parsers(files, family, flags, unknown)
    found += _switch(family, flags)
    found += _code(files, flags)
    order: tuple[Severity, ...] = ("error", "warning", "notice")
    return tuple(sorted(found, key=lambda doubt: order.index(doubt.severity)))


def parser_doubts(model_path: str, flags: Sequence[str]) -> tuple[Doubt, ...] | None:
    """Return what the model's files say against the parsers of a server that runs, the worst first.

    None where no file of the model is on this machine, or they do not tell its family.
    """
    files = model_files(model_path, tokenizer=text_of(flags, "tokenizer_path"))
    if files is None:
        return None
    files = _with_given_template(files, flags)
    family = family_of(files)
    found = _of_parsers(files, family, flags, set())
    if family is None and not found:
        return None
    order: tuple[Severity, ...] = ("error", "warning", "notice")
    return tuple(sorted(found, key=lambda doubt: order.index(doubt.severity)))


def _of_parsers(
    files: ModelFiles, family: Family | None, flags: Sequence[str], unknown: Collection[str]
) -> list[Doubt]:
    found: list[Doubt] = []
    for kind in ("reasoning", "tools"):
        name = text_of(flags, _SETTINGS[kind])
        if name is None:
            found += _missing(kind, family, files)
        elif name != "auto" and not any(repr(name) in what for what in unknown):
            found += _unfit(kind, name, family)
    return found


def _with_given_template(files: ModelFiles, flags: Sequence[str]) -> ModelFiles:
    given = text_of(flags, "chat_template")
    if given is None:
        return files
    try:
        # SGLang takes conversations of its own as .json; they are no templates.
        named = given.endswith(".json") or not Path(given).is_file()
        template = None if named else Path(given).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        template = None
    return ModelFiles(files.model_type, files.architectures, template, files.tokens, files.remote_code)


def _broken_template(files: ModelFiles) -> list[Doubt]:
    fault = template_fault(files.template) if files.template else None
    if fault is None:
        return []
    return [
        Doubt(
            BROKEN_TEMPLATE,
            f"{fault}; the boot would succeed, and every chat request fail",
            "fetch chat_template.jinja or tokenizer_config.json again, or give --chat-template FILE",
            "error",
        )
    ]


def _unknown_names(flags: Sequence[str]) -> list[Doubt]:
    found = []
    for kind, setting in _SETTINGS.items():
        name, known = text_of(flags, setting), known_parsers(kind)
        if name is None or known is None or name in (*known, "auto"):
            continue
        found.append(
            Doubt(
                f"SGLang has no {_WORDS[kind]} {name!r}",
                f"the installed version has: {', '.join(known)}",
                f"give one of these names with {_FLAGS[kind]}",
                "error",
            )
        )
    return found


def _missing(kind: str, family: Family | None, files: ModelFiles) -> list[Doubt]:
    template = files.template or ""
    if kind == "reasoning":
        seen = [marker for marker in THINKING_MARKERS if marker in template]
        names = family.reasoning if family else ()
        if (family is not None and not names) or (files.template is not None and not seen):
            return []
        if family is None and not seen:
            return []
        shown = f"the chat template has {', '.join(seen)}" if seen else "its configuration names such a model"
        return [
            Doubt(
                "no reasoning parser is given, and the model thinks",
                f"{shown}: `reasoning` will be empty in every response, and `content` will hold the thinking",
                f"add {_FLAGS[kind]} {names[0] if names else 'auto, or the name that the model card gives'}",
                "warning",
            )
        ]
    names = family.tools if family else ()
    if not names or not any(marker in template for marker in TOOL_MARKERS):
        return []
    return [
        Doubt(
            "no tool-call parser is given, and the chat template takes tools",
            "calls will stand in `content` as text",
            f"add {_FLAGS[kind]} {names[0]} if requests have tools",
            "notice",
        )
    ]


def _unfit(kind: str, name: str, family: Family | None) -> list[Doubt]:
    """What speaks against a parser that SGLang has."""
    owners = [one for one in families() if name in (one.reasoning if kind == "reasoning" else one.tools)]
    if family is None:
        return []
    suited = family.reasoning if kind == "reasoning" else family.tools
    if name in suited:
        return []
    instead = f"use {_FLAGS[kind]} {suited[0]}" if suited else f"leave {_FLAGS[kind]} out"
    what = f"the {_WORDS[kind]} {name!r} is not made for this model"
    why = f"its files show the family {family.name} (by {family.origin})"
    if family.reads(name):
        return [Doubt(what, f"{why}; {name!r} reads the same markers", instead, "warning")]
    if owners:
        theirs = ", ".join(one.name for one in owners)
        return [Doubt(what, f"{why}; {name!r} reads what {theirs} writes", instead, "error")]
    return [Doubt(what, f"{why}; no family that shardgate knows uses {name!r}", instead, "warning")]


def _switch(family: Family | None, flags: Sequence[str]) -> list[Doubt]:
    if family is None or family.thinking is not False or not text_of(flags, "reasoning_parser"):
        return []
    return [
        Doubt(
            "the model thinks only when a request asks for it",
            f"thinking is off by default in the family {family.name}, so `reasoning` will be empty",
            f'send "chat_template_kwargs": {{"{family.switch}": true}} with the requests',
            "notice",
        )
    ]


def _code(files: ModelFiles, flags: Sequence[str]) -> list[Doubt]:
    if not files.remote_code or asked(flags).get("trust_remote_code"):
        return []
    return [
        Doubt(
            "the model brings Python code of its own, and it is not trusted",
            "its configuration has `auto_map`; a boot ends where SGLang has no implementation of its own",
            "read the code, then add --trust-remote-code (trust_remote_code = true in a deployment)",
            "warning",
        )
    ]
