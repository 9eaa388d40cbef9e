"""What a run was started with, pinned in its `run.json`; it goes on under these settings only.

Place in the flow: before the runner asks for anything. Imports `contracts`, and prompts and store of this
package.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.records import Json, ServerFacts
from harness.recording.prompts import Source, Wanted
from harness.recording.store import replace_json

RUN_FILE = "run.json"

_OF_THE_BOOT = frozenset({"launch_command", "max_total_tokens", "random_seed"})
"""Reported flags that differ from boot to boot of one deployment, and from replica to replica: the port, the
memory left, the seed that SGLang draws where none is given."""

_NOT_PINNED = frozenset(f"flag {name}" for name in _OF_THE_BOOT)


class OtherSettings(ShardgateError):
    """A run was started with other settings than it is to go on with."""


def asked_for(source: Source, wanted: Wanted, *, logprobs: bool) -> dict[str, Json]:
    """Return the settings that are known before any server answers."""
    return {
        "prompts": source.digest,
        "transport": "chat" if wanted.chat else "generate",
        "sampling": dict(wanted.sampling),
        "template arguments": dict(wanted.template_kwargs),
        "samples": wanted.samples,
        "turns": wanted.turns,
        "logprobs": logprobs,
    }


def served_by(facts: ServerFacts, format_name: str) -> dict[str, Json]:
    """Return the settings that the server, its model and the contract make."""
    from contracts.run import fingerprint

    flags = {f"flag {name}": value for name, value in facts.flags.items() if name not in _OF_THE_BOOT}
    return {
        "model": facts.model,
        "revision": facts.revision,
        "weight version": facts.weight_version,
        "tokenizer": facts.tokenizer_sha256,
        "chat template": facts.chat_template_sha256,
        "engine": facts.engine,
        "engine version": facts.engine_version,
        "reasoning parser": facts.reasoning_parser,
        "tool-call parser": facts.tool_parser,
        "quantization": facts.quantization,
        "kv cache dtype": facts.kv_cache_dtype,
        "speculative": facts.speculative,
        "lora": facts.lora,
        **dict(sorted(flags.items())),
        "format": format_name,
        "contract": fingerprint(),
    }


def refuse_others(folder: Path, then: Mapping[str, Json], now: Mapping[str, Json]) -> None:
    """Raise `OtherSettings` where one of the settings in `now` is not what it was."""
    if changed := differences({name: then.get(name) for name in now}, now):
        raise OtherSettings(
            what="the run was begun under other settings",
            where=str(folder / RUN_FILE),
            why="; ".join(changed),
            remedy="give the settings that it was begun with, or another folder (-o) for a run of its own",
        )


def differences(then: Mapping[str, Json], now: Mapping[str, Json]) -> list[str]:
    """Return what differs, as `name: was A, is B`, in the order of `now`."""
    names: Iterable[str] = dict.fromkeys([*now, *then])
    return [
        f"{name}: was {_word(then.get(name))}, is {_word(now.get(name))}"
        for name in names
        if _plain(then.get(name)) != _plain(now.get(name))
    ]


def _plain(value: Json) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _word(value: Json) -> str:
    text = value if isinstance(value, str) else _plain(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def read_run(folder: Path) -> dict[str, Any] | None:
    """Return what the folder's `run.json` says, None where no run was begun.

    Raises:
        ShardgateError: the folder holds something that is no capture run.
    """
    path = folder / RUN_FILE
    if not path.is_file():
        if folder.exists() and (not folder.is_dir() or any(_foreign(folder))):
            raise ShardgateError(
                what="the run folder is taken",
                where=str(folder),
                why=f"it holds files but no {RUN_FILE}, so no run began here",
                remedy="name another folder (-o), or empty this one",
            )
        return None
    try:
        run = json.loads(path.read_text("utf-8"))
        if isinstance(run["settings"], dict):
            return dict(run)
        why = "its `settings` are no object"
    except (ValueError, KeyError, TypeError) as error:
        why = f"no capture run wrote it: {error}"
    raise ShardgateError(
        what="the folder holds no capture run", where=str(path), why=why, remedy="name another folder (-o)"
    )


def _foreign(folder: Path) -> list[Path]:
    # What a run killed before its first words leaves: its lock's folder, its server's log.
    ours = (".log", ".tmp")
    return [one for one in folder.iterdir() if one.name != "journal" and not one.name.endswith(ours)]


def pin(folder: Path, now: Mapping[str, Json], more: Mapping[str, Any]) -> bool:
    """Begin or continue the run; returns whether it was there already.

    Raises:
        OtherSettings: it was begun under other settings.
    """
    run = read_run(folder)
    if run is None:
        replace_json(folder / RUN_FILE, {"settings": dict(now), "state": "running", **more})
        return False
    then = {name: value for name, value in run["settings"].items() if name not in _NOT_PINNED}
    refuse_others(folder, then, {**dict.fromkeys(then), **now})
    replace_json(folder / RUN_FILE, {**run, "state": "running", **more})
    return True


def finish(folder: Path, state: str, summary: Mapping[str, Any]) -> None:
    """Write how the run stands into its `run.json`."""
    run = read_run(folder) or {"settings": {}}
    replace_json(folder / RUN_FILE, {**run, "state": state, "summary": dict(summary)})
