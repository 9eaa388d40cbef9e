"""The bank of counterexamples: each minimised loss is replayed through SGLang's parsers, by its version."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from contracts.formats import FORMATS
from contracts.tokens import load_codec
from harness import judge
from harness.models import tokenizer_only
from harness.paths import fixtures_dir
from harness.strategies import TOOLS
from tests.conftest import need

BANK = fixtures_dir() / "counterexamples" / "sglang.toml"
CASES: list[dict[str, Any]] = tomllib.loads(BANK.read_text(encoding="utf-8"))["case"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_case_comes_out_as_recorded(case: dict[str, Any]) -> None:
    need("sglang")  # replays through SGLang's own parsers
    fmt = FORMATS[case.get("format", "kimi_k2")]
    codec = load_codec(tokenizer_only())
    ids = codec.encode(case["text"])
    judgement = judge(
        ids,
        tokenizer=codec,
        reasoning_parser=case.get("reasoning_parser", fmt.reasoning_parser) or None,
        tool_parser=case.get("tool_parser", fmt.tool_parser or "") or None,
        tools=TOOLS if case.get("tools", fmt.tools is not None) else None,
        finish_reason=case.get("finish_reason", "stop"),
        chunks=[case["chunks"]] * len(ids) if "chunks" in case else None,
    )
    found = (str(judgement.verdict), sorted(loss.name for loss in judgement.losses))
    assert found == (case["verdict"], sorted(case["losses"]))


def test_names_are_unique() -> None:
    names = [case["name"] for case in CASES]
    assert len(set(names)) == len(names)


def test_every_fault_names_what_holds_it() -> None:
    root = fixtures_dir().parent
    for fault in tomllib.loads((BANK.parent / "faults.toml").read_text(encoding="utf-8"))["fault"]:
        assert fault["what"] and fault["then"] and fault["package"]
        assert (root / fault["held_by"]).is_file(), fault["held_by"]
