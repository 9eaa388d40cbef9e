"""The golden prompts that are installed, and how a malformed one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.records import Mode, ThinkingMode, Verdict
from contracts.tokens import FastCodec, load_codec
from harness.golden import GoldenError, GoldenPrompt, load_golden, script_ids
from harness.models import tokenizer_only

GOLDENS = {golden.name: golden for golden in load_golden()}
SCRIPTED = [golden for golden in GOLDENS.values() if golden.scripted]

GOOD = """
about = "a"
origin = "b"
script = "x<|im_end|>"
[[messages]]
role = "user"
content = "q"
[expect.raw]
verdict = "exact"
"""


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> FastCodec:
    found = load_codec(tokenizer_only(tmp_path_factory.mktemp("cache")))
    assert isinstance(found, FastCodec)
    return found


def test_the_cases_that_must_be_there() -> None:
    must = {
        "plain-answer",
        "reasoning-answer",
        "reasoning-cut",
        "empty-reasoning",
        "one-call",
        "two-calls",
        "call-nested-unicode",
        "call-in-reasoning",
        "text-after-call",
        "code-with-think",
        "tool-result-answer",
        "chinese-emoji",
    }
    assert must <= set(GOLDENS)
    assert sum(not golden.scripted for golden in GOLDENS.values()) >= 3


@pytest.mark.parametrize("golden", SCRIPTED, ids=lambda golden: golden.name)
def test_each_says_what_must_come_back(golden: GoldenPrompt) -> None:
    modes = set(Mode) if golden.prompt.tools else {Mode.RAW, Mode.REASONING}
    assert set(golden.expect) == modes
    assert golden.expect_unparsed is not None
    # Without a parser, thinking can't come back as thinking; an answer without any can.
    thinks = golden.prompt.thinking_mode is ThinkingMode.THINKING
    assert (golden.expect_unparsed.verdict is Verdict.CONTRADICTED) == thinks
    raw = golden.expect[Mode.RAW].losses
    assert set(raw) <= {"noncanonical-split", "incomplete-utf8"}


@pytest.mark.parametrize("golden", SCRIPTED, ids=lambda golden: golden.name)
def test_scripts_are_ids_with_markers_as_single_tokens(golden: GoldenPrompt, codec: FastCodec) -> None:
    ids = script_ids(golden, codec)
    assert golden.script is not None
    text = codec.decode_bytes(ids)
    assert golden.script.encode().startswith(text)
    assert (text == golden.script.encode()) == (golden.cut == 0)
    ends = {codec.token_id("<|im_end|>"), codec.token_id("[EOS]")}
    assert not ends & set(ids[:-1])
    whole = codec.encode(golden.script)
    canonical = ids == tuple(whole[: len(whole) - golden.cut])
    assert canonical == ("noncanonical-split" not in golden.expect[Mode.RAW].losses)
    for marker in ("<think>", "</think>", "<|tool_call_begin|>"):
        assert ids.count(codec.token_id(marker)) == golden.script.count(marker)  # type: ignore[arg-type]


def test_a_sampled_prompt_has_no_script(codec: FastCodec) -> None:
    sampled = next(golden for golden in GOLDENS.values() if not golden.scripted)
    assert sampled.prompt.sampling["temperature"] == 1.0
    assert sampled.prompt.sampling["max_tokens"] == sampled.max_tokens
    with pytest.raises(GoldenError, match="lets the model speak"):
        script_ids(sampled, codec)


def test_the_template_switch_goes_with_the_thinking_mode() -> None:
    instant = GOLDENS["plain-answer"].prompt
    assert (instant.thinking_mode, instant.template_kwargs) == (ThinkingMode.INSTANT, {"thinking": False})
    assert GOLDENS["reasoning-answer"].prompt.template_kwargs == {}


def _load(folder: Path, text: str) -> GoldenPrompt:
    (folder / "case.toml").write_text(text, encoding="utf-8")
    return load_golden(folder)[0]


def test_a_good_file_loads(tmp_path: Path) -> None:
    golden = _load(tmp_path, GOOD)
    assert (golden.name, golden.script, golden.expect[Mode.RAW].verdict) == (
        "case",
        "x<|im_end|>",
        Verdict.EXACT,
    )


@pytest.mark.parametrize(
    ("old", "new", "key", "why"),
    [
        ('about = "a"', 'about = ""', "key about", "missing"),
        ('origin = "b"', "", "key origin", "missing"),
        ('origin = "b"', 'origin = "b"\ncolour = "red"', "key colour", "unknown"),
        ('origin = "b"', 'origin = "b"\ncut = true', "key cut", "wrong type"),
        ('origin = "b"', 'origin = "b"\ntools = ["fly"]', "key tools", "'fly' is not in"),
        ('script = "x<|im_end|>"', "", "key max_tokens", "needs it"),
        ('script = "x<|im_end|>"', 'script = ["x", ""]', "key script", "none empty"),
        ('role = "user"', "", "key messages[0]", "role"),
        ("expect.raw", "expect.loud", "key expect.loud", "neither a mode"),
        ('verdict = "exact"', 'verdict = "fine"', "key expect.raw", "is not a verdict"),
        ('"exact"', '"lossy"\nlosses = ["lost"]', "key expect.raw", "is not a loss"),
        (
            '"exact"',
            '"exact"\nlosses = ["marker-leaked"]',
            "key expect.raw",
            "bring the verdict contradicted",
        ),
        ('"exact"', '"lossy"', "key expect.raw", "bring the verdict exact"),
        ('about = "a"', "about = ", "case.toml", "line 2"),
    ],
)
def test_a_malformed_file_is_told_by_file_and_key(
    tmp_path: Path, old: str, new: str, key: str, why: str
) -> None:
    assert old in GOOD
    with pytest.raises(GoldenError) as caught:
        _load(tmp_path, GOOD.replace(old, new, 1))
    assert "case.toml" in caught.value.where
    assert key in caught.value.where
    assert why in caught.value.why


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(GoldenError, match="no golden prompts"):
        load_golden(tmp_path)
