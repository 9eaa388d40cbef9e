"""Which parsers suit a model, as its folder shows before a boot: families as data (`families.toml`).

Place in the flow: under the pre-flight check. Imports `contracts.formats`, which has the parser names where
it has the family, `harness.paths`, the stage's own modules and the standard library; `huggingface_hub` only
inside a function.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from contracts.formats import FORMATS
from harness.paths import fixtures_dir
from harness.server.checkpoint import expanded, load_json

THINKING_MARKERS: tuple[str, ...] = (
    "<think>",
    "◁think▷",
    "[THINK]",
    "<|channel|>",
    "<mm:think>",
    "<seed:think>",
)
"""What a template that makes a model think holds, whatever the family."""

TOOL_MARKERS: tuple[str, ...] = ("tool_calls", "tools")
"""Names that a chat template reads when it renders tools."""

_REGISTRIES = {
    "reasoning": ("parser/reasoning_parser_names.py", "REASONING_PARSER_NAMES"),
    "tools": ("function_call/parser_names.py", "TOOL_CALL_PARSER_NAMES"),
}


@dataclass(frozen=True, slots=True)
class Family:
    """One way to write thinking and calls, how to know it, and the parsers that read it."""

    name: str
    reasoning: tuple[str, ...]
    tools: tuple[str, ...]
    origin: str
    all: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    pattern: str | None = None
    model_types: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    switch: str | None = None
    thinking: bool | None = None

    def reads(self, parser: str) -> bool:
        """Whether the parser is one of this family's or reads the same markers."""
        return parser in (*self.reasoning, *self.tools, *self.also)

    def fits(self, template: str, tokens: frozenset[str]) -> bool:
        """Whether the template, or the tokenizer's added tokens, hold this family's markers."""

        def held(text: str) -> bool:
            return text in template or text in tokens

        if self.pattern is not None and re.search(self.pattern, template) is None:
            return False
        return all(map(held, self.all)) and not any(map(held, self.none))


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a model's small files say: configuration, chat template, added tokens."""

    model_type: str = ""
    architectures: tuple[str, ...] = ()
    template: str | None = None
    tokens: frozenset[str] = frozenset()
    remote_code: bool = False


@lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    """All families in the file's order, which is the order in which they are tried."""
    tables = tomllib.loads((fixtures_dir() / "families.toml").read_text("utf-8"))
    return tuple(_family(name, table) for name, table in tables.items())


def _family(name: str, table: dict[str, Any]) -> Family:
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
    }
    known = FORMATS.get(given.pop("format", ""))
    if known is not None:
        given.setdefault("reasoning", known.reasoning_parsers)
        given.setdefault("tools", known.tool_parsers)
    given.setdefault("reasoning", ())
    given.setdefault("tools", ())
    return Family(name=name, **given)


def family_of(files: ModelFiles) -> Family | None:
    """The family that the template shows; without one, the one that the configuration names; else None."""
    if files.template is not None:
        for family in families():
            if family.fits(files.template, files.tokens):
                return family
        return None
    for family in families():
        if files.model_type in family.model_types or set(files.architectures) & set(family.architectures):
            return family
    return None


def known_parsers(kind: str) -> tuple[str, ...] | None:
    """The parser names (`reasoning` or `tools`) of the installed SGLang, read without importing it.

    None where SGLang is not installed, or is a version that keeps its names elsewhere.
    """
    found = importlib.util.find_spec("sglang")
    file, variable = _REGISTRIES[kind]
    for folder in (found.submodule_search_locations or []) if found else []:
        with contextlib.suppress(OSError, SyntaxError, ValueError):
            for node in ast.parse((Path(folder) / "srt" / file).read_text("utf-8")).body:
                if isinstance(node, ast.Assign) and any(
                    isinstance(target, ast.Name) and target.id == variable for target in node.targets
                ):
                    return tuple(ast.literal_eval(node.value))
    return None


def local_file(model: str, name: str, revision: str | None = None) -> Path | None:
    """A model's file on this machine: in its folder, or in the hub's cache; None where it is not here."""
    folder = expanded(model)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(model, name, revision=revision)
    except ValueError:
        return None
    return Path(found) if isinstance(found, str) else None


def _loaded(path: Path | None) -> dict[str, Any]:
    return {} if path is None else load_json(path)


def template_text(path: Path | None) -> str | None:
    """The text of a template's file; None where it is no file, or no text."""
    if path is None or not path.is_file():
        return None
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def template_in(config: dict[str, Any]) -> str | None:
    """The template in tokenizer_config.json: a text, or a list of named ones of which `default` is used."""
    given = config.get("chat_template")
    if isinstance(given, list):
        named = {item.get("name"): item.get("template") for item in given if isinstance(item, dict)}
        given = named.get("default")
    return given if isinstance(given, str) else None


def model_files(
    model: str, *, tokenizer: str | None = None, revision: str | None = None
) -> ModelFiles | None:
    """What the files of a model on this machine say; None where none of them is here."""
    config_path = local_file(model, "config.json", revision)
    source = tokenizer or model
    tokenizer_path = local_file(source, "tokenizer_config.json", revision)
    if config_path is None and tokenizer_path is None:
        return None
    config, settings = _loaded(config_path), _loaded(tokenizer_path)
    inner = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    added = settings.get("added_tokens_decoder")
    listed: list[Any] = list(added.values()) if isinstance(added, dict) else []
    more = _loaded(local_file(source, "tokenizer.json", revision)).get("added_tokens")
    listed += more if isinstance(more, list) else []
    architectures = config.get("architectures")
    return ModelFiles(
        model_type=str(config.get("model_type") or (inner or {}).get("model_type") or ""),
        architectures=tuple(map(str, architectures)) if isinstance(architectures, list) else (),
        template=template_text(local_file(source, "chat_template.jinja", revision)) or template_in(settings),
        tokens=frozenset(
            str(token["content"]) for token in listed if isinstance(token, dict) and "content" in token
        ),
        remote_code="auto_map" in config or "auto_map" in settings,
    )


def remote_code_sha256(folder: Path) -> str | None:
    """SHA-256 over the Python files that come with a model, names and contents in sorted order; None if none.

    They are what `--trust-remote-code` lets run.
    """
    digest = hashlib.sha256()
    files = sorted(path for path in folder.rglob("*.py") if path.is_file()) if folder.is_dir() else []
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest() if files else None
