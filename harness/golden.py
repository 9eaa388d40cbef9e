"""Golden prompts: what is asked, what a scripted model says, and what must come back in each mode.

Place in the flow: the first input. Imports `contracts` and `harness.paths`; no torch, no SGLang.

One file `fixtures/golden/NAME.toml` per prompt; files that begin with `_` are not prompts. Keys:

    about, origin    what the prompt is for; where its text comes from
    thinking         whether the template opens the thinking (default true)
    tools            names out of `_tools.toml`; absent: the request declares none
    messages         OpenAI-style messages, as tables
    script           what the model is made to say, markers as text; a list of strings is joined
    split            true: the list's strings are encoded one by one (default: the whole, once)
    cut              how many tokens to drop from the script's end (default 0)
    max_tokens       needed without a script; with one the default is the script's length
    expect.MODE      verdict and losses for `raw`, `reasoning`, `tools`
    expect.unparsed  the same for mode `reasoning` on a server booted without parsers

A prompt without a script lets the model speak: its claims are checked, not its text.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.losses import LOSSES, worst
from contracts.records import Loss, Mode, Prompt, SegmentKind, ThinkingMode, Verdict
from contracts.tokens import Codec
from harness.paths import fixtures_dir

TOOLS_FILE = "_tools.toml"
UNPARSED = "unparsed"

_KEYS: Mapping[str, type | tuple[type, ...]] = {
    "about": str,
    "origin": str,
    "thinking": bool,
    "tools": list,
    "messages": list,
    "script": (str, list),
    "split": bool,
    "cut": int,
    "max_tokens": int,
    "expect": dict,
}


class GoldenError(ShardgateError):
    """A golden prompt's file can't be used; `where` names the file and the key."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What must come back: the verdict and the losses' names, in no order."""

    verdict: Verdict
    losses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GoldenPrompt:
    """A prompt kept in `fixtures/` with what must come back.

    `script` is the text that the model is made to say, None for a sampled prompt; `pieces` are the parts
    that `script_ids` encodes, one for a script in its canonical split. `cut` drops tokens from the end.
    `max_tokens` is None where the script's length decides. `expect` has no entry for a mode of which the
    fixture says nothing; `expect_unparsed` holds for a server booted without parsers.
    """

    prompt: Prompt
    scripted: bool
    script: str | None
    max_tokens: int | None
    expect: Mapping[Mode, Expectation]
    origin: str
    path: Path
    expect_unparsed: Expectation | None = None
    pieces: tuple[str, ...] = ()
    cut: int = 0
    about: str = ""

    @property
    def name(self) -> str:
        """The prompt's name, which is the file's."""
        return self.prompt.name


def load_golden(folder: Path | None = None) -> tuple[GoldenPrompt, ...]:
    """All golden prompts of `folder` (default: the installed `fixtures/golden`), by file name.

    Raises `GoldenError` for a folder without prompts and for the first file that is not well formed.
    """
    home = fixtures_dir() / "golden" if folder is None else folder
    files = sorted(path for path in home.glob("*.toml") if not path.name.startswith("_"))
    if not files:
        raise GoldenError("no golden prompts", str(home), "no file *.toml lies there", "name another folder")
    tools = _read(home / TOOLS_FILE) if (home / TOOLS_FILE).exists() else {}
    return tuple(_golden(path, tools) for path in files)


def script_ids(golden: GoldenPrompt, codec: Codec) -> tuple[int, ...]:
    """The token ids that the script forces, in the codec's vocabulary: int[T], the end token included.

    Raises `GoldenError` for a sampled prompt, and when `cut` leaves nothing.
    """
    if golden.script is None:
        raise GoldenError("no script", str(golden.path), "the prompt lets the model speak", "ask without ids")
    ids = [token for piece in golden.pieces or (golden.script,) for token in codec.encode(piece)]
    ids = ids[: len(ids) - golden.cut]
    if not ids:
        raise GoldenError("the script is empty", f"{golden.path}, key cut", "every token is dropped")
    return tuple(ids)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise GoldenError("not a TOML file", str(path), str(error), "correct the file") from None


class _File:
    """One file's keys, each read once, each fault told with its key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table = _read(path)

    def fail(self, key: str, why: str) -> GoldenError:
        return GoldenError("a golden prompt is malformed", f"{self.path}, key {key}", why, "correct the file")

    def check(self) -> None:
        for key, value in self.table.items():
            if key not in _KEYS:
                raise self.fail(key, f"unknown; known are {', '.join(_KEYS)}")
            kinds = _KEYS[key]
            # bool is an int to Python, not to a reader.
            if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is int):
                raise self.fail(key, f"{value!r} has the wrong type")
        for key in ("about", "origin", "messages"):
            if not self.table.get(key):
                raise self.fail(key, "missing or empty")

    def messages(self) -> tuple[Mapping[str, Any], ...]:
        for index, message in enumerate(self.table["messages"]):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise self.fail(f"messages[{index}]", "needs a role")
            for call in message.get("tool_calls", ()):
                arguments = call.get("function", {}).get("arguments")
                if not isinstance(arguments, str) or not _is_json(arguments):
                    raise self.fail(f"messages[{index}].tool_calls", "arguments must be a string of JSON")
        return tuple(self.table["messages"])

    def tools(self, known: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...] | None:
        names = self.table.get("tools")
        if names is None:
            return None
        out = []
        for name in names:
            if name not in known:
                raise self.fail("tools", f"{name!r} is not in {TOOLS_FILE}")
            tool = known[name]
            parameters = json.loads(tool["parameters"])
            function = {"name": name, "description": tool["description"], "parameters": parameters}
            out.append({"type": "function", "function": function})
        return tuple(out)

    def pieces(self) -> tuple[str, ...]:
        script = self.table.get("script")
        if script is None:
            return ()
        parts = [script] if isinstance(script, str) else script
        if not all(isinstance(part, str) and part for part in parts):
            raise self.fail("script", "must be a text or a list of texts, none empty")
        return tuple(parts) if self.table.get("split") else ("".join(parts),)

    def expectation(self, key: str, value: Any) -> Expectation:
        where = f"expect.{key}"
        if not isinstance(value, dict) or set(value) - {"verdict", "losses"} or "verdict" not in value:
            raise self.fail(where, "needs a verdict and, if any, losses; nothing else")
        try:
            verdict = Verdict(value["verdict"])
        except ValueError:
            raise self.fail(where, f"{value['verdict']!r} is not a verdict: {', '.join(Verdict)}") from None
        losses = tuple(value.get("losses", ()))
        for name in losses:
            if name not in LOSSES:
                raise self.fail(where, f"{name!r} is not a loss; the registry is contracts/losses.py")
        brought = worst(Loss(name, SegmentKind.CONTENT, 0, 0) for name in losses)
        if brought is not verdict:
            raise self.fail(where, f"the losses bring the verdict {brought}, not {verdict}")
        return Expectation(verdict, losses)


def _golden(path: Path, tools: Mapping[str, Any]) -> GoldenPrompt:
    file = _File(path)
    file.check()
    table = file.table
    pieces = file.pieces()
    max_tokens = table.get("max_tokens")
    if not pieces and max_tokens is None:
        raise file.fail("max_tokens", "a prompt without a script needs it")
    expect: dict[Mode, Expectation] = {}
    unparsed = None
    for key, value in table.get("expect", {}).items():
        if key == UNPARSED:
            unparsed = file.expectation(key, value)
        elif key in set(Mode):
            expect[Mode(key)] = file.expectation(key, value)
        else:
            raise file.fail(f"expect.{key}", f"is neither a mode ({', '.join(Mode)}) nor {UNPARSED}")
    thinking = table.get("thinking", True)
    messages = file.messages()
    sampling: dict[str, Any] = {"temperature": 1.0}
    if max_tokens is not None:
        sampling["max_tokens"] = max_tokens
    prompt = Prompt(
        name=path.stem,
        messages=messages,
        tools=file.tools(tools),
        sampling=sampling,
        template_kwargs={} if thinking else {"thinking": False},
        thinking_mode=ThinkingMode.THINKING if thinking else ThinkingMode.INSTANT,
        conversation_id=path.stem,
        turn_index=sum(message["role"] == "assistant" for message in messages),
    )
    return GoldenPrompt(
        prompt=prompt,
        scripted=bool(pieces),
        script="".join(pieces) if pieces else None,
        max_tokens=max_tokens,
        expect=expect,
        origin=table["origin"],
        path=path,
        expect_unparsed=unparsed,
        pieces=pieces,
        cut=table.get("cut", 0),
        about=table["about"],
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
