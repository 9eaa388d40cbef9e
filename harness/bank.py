"""The bank of counterexamples: each minimised loss replayed through the installed SGLang, by its record.

Place in the flow: above the offline judge, beside the matrix. Imports `contracts` and the harness's own
modules; SGLang and the tokenizer when a case is replayed.

One file `fixtures/counterexamples/NAME.toml` a family, with `[[case]]` tables. Keys:

    name              what goes wrong, in a few words; the only one in the bank
    format            the family, two joined by `+` for parsers of two families; default kimi_k2
    text              what the model generates, markers as tokens; or
    pieces            texts that are encoded one by one (another split); or
    ids               token ids in the vocabulary of `harness.models.codec_for`
    cut               how many tokens to drop from the end (default 0)
    thinking          what the request's template switch asks for (default true)
    prompt            text of the prompt's end, where the prompt is known
    reasoning_parser, tool_parser    SGLang's names; "" for a server without one; default: the family's
    tools             false: the request declares none; default: `harness.strategies.TOOLS`
    parameters        JSON text: the properties of a tool `f`, declared alone in place of those
    finish_reason     default stop
    matched_stop      an end token's text or a stop string, where the response tells it
    history_calls     tool calls of earlier turns (default 0)
    constrained       true: a grammar forced the output's form
    chunks            tokens in each delta of a stream, one number or a list; absent: not streamed
    version, verdict, losses    what was measured, and on which SGLang; `accept` writes them
    report            public reports of the same fault
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from contracts.errors import ShardgateError
from contracts.formats import Format, format_named
from contracts.records import Json, Judgement, ThinkingMode
from contracts.tokens import Codec
from harness.outcomes import BankOutcome
from harness.paths import fixtures_dir

Case = dict[str, Any]

KEYS = frozenset(
    {
        "name", "format", "text", "pieces", "ids", "cut", "thinking", "prompt", "reasoning_parser",
        "tool_parser", "tools", "parameters", "finish_reason", "matched_stop", "history_calls", "constrained",
        "chunks", "version", "verdict", "losses", "report",
    }
)  # fmt: skip


def bank_folder() -> Path:
    """Return the folder of the bank that comes with shardgate."""
    return fixtures_dir() / "counterexamples"


def load_bank(folder: Path | None = None) -> dict[str, tuple[Path, Case]]:
    """Return the cases of a folder (default: shardgate's own bank) by name, each with its file.

    Raises:
        ShardgateError: a file is no TOML, a key is not known, a name is missing or comes twice.
    """
    home = folder or bank_folder()
    cases: dict[str, tuple[Path, Case]] = {}
    for file in sorted(home.glob("*.toml")):
        try:
            found = tomllib.loads(file.read_text(encoding="utf-8")).get("case", [])
        except (ValueError, OSError) as error:
            raise _bad(file, "", str(error)) from error
        for case in found:
            name = case.get("name", "")
            if not name or name in cases:
                raise _bad(file, name, "the name comes twice" if name else "a case has no name")
            if sorted(KEYS & case.keys()) != sorted(case):
                raise _bad(file, name, f"unknown keys: {', '.join(sorted(case.keys() - KEYS))}")
            if len({"text", "pieces", "ids"} & case.keys()) != 1:
                raise _bad(file, name, "it needs one of text, pieces, ids")
            cases[name] = (file, case)
    if not cases:
        raise _bad(home, "", "no file *.toml with a [[case]] lies there")
    return cases


def replay(names: Iterable[str] = (), *, folder: Path | None = None) -> list[BankOutcome]:
    """Replay cases (default: all) through the installed SGLang's parsers, in the files' order.

    Raises:
        ShardgateError: a name is not in the bank, a case can't be replayed, SGLang is not installed.
    """
    cases = load_bank(folder)
    return [_outcome(cases[name][1]) for name in _known(names, cases) or cases]


def accept(names: Iterable[str], *, folder: Path | None = None) -> list[BankOutcome]:
    """Replay cases and write what they showed into their files; returns those that were changed.

    Everything else in a file stays as it is, comments and order included.

    Raises:
        ShardgateError: as `replay`; or a file can't be edited without changing more than the record.
    """
    cases = load_bank(folder)
    changed = [outcome for outcome in map(_outcome, _cases(names, cases)) if outcome.changed]
    for outcome in changed:
        _write(cases[outcome.name][0], outcome)
    return changed


def _cases(names: Iterable[str], cases: dict[str, tuple[Path, Case]]) -> list[Case]:
    return [cases[name][1] for name in _known(names, cases)]


def _known(names: Iterable[str], cases: dict[str, tuple[Path, Case]]) -> list[str]:
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in cases:
            raise ShardgateError(
                f"the bank has no case {name!r}",
                remedy="take the name from `shardgate bank --json`; quote it, it has spaces",
            )
    return wanted


def _bad(where: Path, name: str, why: str) -> ShardgateError:
    place = f"{where}, case {name!r}" if name else str(where)
    return ShardgateError(
        "the bank can't be read", where=place, why=why, remedy="see the keys in harness/bank.py"
    )


def case_format(case: Case) -> Format:
    """Return the format that a case belongs to.

    Raises:
        ShardgateError: no such format.
    """
    fmt = format_named(case.get("format", "kimi_k2"))
    if fmt is None:
        raise ShardgateError(f"case {case['name']!r} names no known format", why=str(case.get("format")))
    return fmt


def case_ids(case: Case, codec: Codec) -> list[int]:
    """Return the token ids that a case's model generates, end token included."""
    ids = list(case.get("ids", ()))
    for piece in case.get("pieces", (case["text"],) if "text" in case else ()):
        ids.extend(codec.encode(piece))
    return ids[: len(ids) - case.get("cut", 0)]


def judge_case(case: Case) -> Judgement:
    """Judge a case with the installed SGLang.

    Raises:
        ShardgateError: as `harness.judge`.
    """
    from harness.models import codec_for
    from harness.offline import judge

    fmt = case_format(case)
    codec = codec_for(fmt)
    ids = case_ids(case, codec)
    thinking = case.get("thinking", True)
    matched = case.get("matched_stop")
    token = codec.token_id(matched) if matched in fmt.end_tokens else None
    chunks = case.get("chunks")
    return judge(
        ids,
        tokenizer=codec,
        reasoning_parser=case.get("reasoning_parser", fmt.reasoning_parser) or None,
        tool_parser=case.get("tool_parser", fmt.tool_parser or "") or None,
        tools=_declared(case, fmt),
        prompt_ids=codec.encode(case["prompt"]) if "prompt" in case else None,
        finish_reason=case.get("finish_reason", "stop"),
        matched_stop=matched if token is None else token,
        thinking_mode=ThinkingMode.THINKING if thinking else ThinkingMode.INSTANT,
        history_calls=case.get("history_calls", 0),
        constrained=case.get("constrained", False),
        chunks=[chunks] * len(ids) if isinstance(chunks, int) else chunks,
    )


def _declared(case: Case, fmt: Format) -> Sequence[dict[str, Json]] | None:
    from harness.strategies import TOOLS

    if not case.get("tools", fmt.tools is not None):
        return None
    if "parameters" not in case:
        return [dict(tool) for tool in TOOLS]
    schema = {"type": "object", "properties": json.loads(case["parameters"])}
    return [{"type": "function", "function": {"name": "f", "parameters": schema}}]


def _outcome(case: Case) -> BankOutcome:
    from importlib.metadata import version

    judgement = judge_case(case)
    losses = tuple(dict.fromkeys(loss.name for loss in judgement.losses))
    recorded = "verdict" in case
    said = tuple(case.get("losses", ()))
    return BankOutcome(
        name=case["name"],
        format=case.get("format", "kimi_k2"),
        version=version("sglang"),
        verdict=judgement.verdict,
        losses=losses,
        recorded_version=case.get("version"),
        recorded_verdict=case.get("verdict"),
        recorded_losses=said if recorded else None,
        changed=case.get("verdict") != judgement.verdict or sorted(said) != sorted(losses),
        streamed="chunks" in case,
        raw_text=judgement.raw_text or "",
        rebuilt_text=judgement.rebuilt_text or "",
        details=tuple(f"{loss.name}: {loss.detail}" for loss in judgement.losses if loss.detail),
        report=case.get("report", ""),
    )


def _write(file: Path, outcome: BankOutcome) -> None:
    """Put an outcome into its `[[case]]`: its lines are replaced or added, no other line is touched."""
    text = file.read_text(encoding="utf-8")
    lines = text.split("\n")
    start, end = _block(lines, outcome.name, file)
    block = _with_record(lines[start:end], outcome)
    made = "\n".join([*lines[:start], *block, *lines[end:]])
    before, after = tomllib.loads(text), tomllib.loads(made)
    for case in (*before.get("case", ()), *after.get("case", ())):
        if case["name"] == outcome.name:
            case.update(version=outcome.version, verdict=str(outcome.verdict), losses=list(outcome.losses))
    if before != after:
        raise _bad(file, outcome.name, "its record can't be replaced line by line: edit it by hand")
    file.write_text(made, encoding="utf-8")


def _block(lines: list[str], name: str, file: Path) -> tuple[int, int]:
    heads = [at for at, line in enumerate(lines) if line.partition("#")[0].strip() == "[[case]]"]
    for start, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        while end > start and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
            end -= 1
        try:
            found = tomllib.loads("\n".join(lines[start:end]))["case"][0].get("name")
        except ValueError:
            continue
        if found == name:
            return start, end
    raise _bad(file, name, "its lines are not found")


def _with_record(block: list[str], outcome: BankOutcome) -> list[str]:
    kept: list[str] = []
    where = None
    skipping = False
    for line in block:
        key = line.partition("=")[0].strip()
        if skipping:
            skipping = "]" not in line
        elif key in ("version", "verdict", "losses"):
            where = len(kept) if where is None else where
            skipping = key == "losses" and "]" not in line
        else:
            kept.append(line)
    if where is None:
        last = kept[-1].startswith("report")
        where = len(kept) - 1 if last else len(kept)
    losses = ", ".join(json.dumps(name) for name in outcome.losses)
    record = [
        f'version = "{outcome.version}"',
        f'verdict = "{outcome.verdict}"',
        f"losses = [{losses}]",
    ]
    return [*kept[:where], *record, *kept[where:]]
