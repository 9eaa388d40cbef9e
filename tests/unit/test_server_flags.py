"""Flags as data, and every deployment's command held to the installed SGLang's own argument parser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.server import CannotBoot, Deployment, load_deployment, load_deployments
from harness.server.deployments import SCRIPTED_FLAGS
from harness.server.families import ModelFiles, families, family_of, known_parsers
from harness.server.flags import ALIASES, DECISIVE, asked, differences, text_of
from tests.conftest import need

OLD_SPELLING = ("--tp-size", "8", "--dp-size", "8", "--enable-dp-attention", "--tool-call-parser", "qwen25")
"""Flags that SGLang takes and reports under other names."""

PLACES = {"NODE_RANK": "1", "HEAD_ADDR": "10.0.0.1:20000"}
BOOTED = {
    name: one.filled(PLACES) for name, one in load_deployments().items() if not one.url and not one.servers
}

# Importing SGLang's parser takes seconds and leaves torch behind, so one process answers everything. Each
# command is parsed, then resolved by SGLang's own checks as a boot on CUDA would, a small model in its place.
ASK_SGLANG = """
import argparse, json, logging, sys
from sglang.srt.server_args import ServerArgs
logging.disable(logging.CRITICAL)
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
options = {option: action.dest for action in parser._actions for option in action.option_strings}
parsed, resolved = {}, {}
asked = json.load(sys.stdin)
for name, argv in asked["commands"].items():
    try:
        chosen = parser.parse_args(argv)
        parsed[name] = {key: str(value) for key, value in vars(chosen).items()}
    except SystemExit:
        parsed[name] = None
for name, argv in asked["resolve"].items():
    try:
        args = ServerArgs.from_cli_args(parser.parse_args([*argv, "--device", "cuda"]))
        args.resolve_once()
        plain = (str, int, float, bool)
        resolved[name] = {k: v for k, v in args.resolved_dict().items() if isinstance(v, plain)}
    except Exception as error:
        resolved[name] = f"{type(error).__name__}: {error}"
from sglang.srt.function_call.function_call_parser import FunctionCallParser
from sglang.srt.parser.reasoning_parser import ReasoningParser
from sglang.srt.parser import template_detection as detection
class Words:
    def __init__(self, tokens): self.tokens = tokens
    def get_vocab(self): return {token: 0 for token in self.tokens}
detected = {}
for name, (template, tokens) in asked["templates"].items():
    force, config = detection.detect_reasoning_pattern(template)
    detected[name] = [
        detect(template, Words(tokens), config, force)
        for detect in (detection.detect_reasoning_parser, detection.detect_tool_call_parser)
    ]
print("ANSWER" + json.dumps({
    "options": options, "parsed": parsed, "resolved": resolved, "detected": detected,
    "reasoning": list(ReasoningParser.DetectorMap), "tools": list(FunctionCallParser.ToolCallParserEnum),
}))
"""

TEMPLATES: dict[str, tuple[str, list[str]]] = {
    "kimi_k2": ("<|tool_calls_section_begin|><think>", ["<|tool_calls_section_begin|>"]),
    "kimi": ("◁think▷", []),
    "gpt_oss": ("<|start|>assistant<|channel|>analysis", []),
    "deepseek_v31": (
        "{% if not thinking is defined %}{% set thinking = false %}{% endif %}</think>"
        "<｜tool▁calls▁begin｜>{{ name }}<｜tool▁sep｜>",
        [],
    ),
    "glm45": (
        "[gMASK]<sop>{{ '/nothink' if enable_thinking is defined and not enable_thinking }}"
        "<tool_call>{{ tc.name }}<arg_key><arg_value><think>",
        ["<tool_call>", "<|user|>"],
    ),
    "glm47": (
        "[gMASK]<sop>{{ '/nothink' if enable_thinking is defined and not enable_thinking }}"
        "{{ '<tool_call>' + tc.name }}<arg_key><arg_value><think>",
        ["<tool_call>", "<|user|>"],
    ),
    "qwen3": (
        "<|im_start|>{% if enable_thinking is defined and enable_thinking is false %}<think>{% endif %}"
        "<tool_call>",
        ["<tool_call>"],
    ),
    "qwen3_coder": ("<|im_start|><tool_call><function=x><parameter=y>", []),
    "minimax_m2": ("<think><minimax:tool_call>", []),
}
"""The least of each family's template by which SGLang's own detection knows it; its rules are the origin."""


def _resolvable(one: Deployment) -> list[str]:
    from harness.models import tiny_model

    argv = ["--model-path", str(tiny_model()), *one.all_flags()]
    if "--speculative-draft-model-path" in argv:
        argv[argv.index("--speculative-draft-model-path") + 1] = str(tiny_model())
    return argv


@pytest.fixture(scope="module")
def sglang_says() -> dict[str, Any]:
    need("sglang")
    commands = {name: ["--model-path", one.model, *one.all_flags()] for name, one in BOOTED.items()}
    commands["no such flag"] = ["--model-path", "x", "--no-such-flag"]
    resolve = {name: _resolvable(one) for name, one in BOOTED.items() if one.gpus}
    tiny = resolve["kimi-k2.5-dp-attention"][:2]
    resolve["draft model missing"] = [*tiny, "--speculative-algorithm", "DFLASH"]
    resolve["old spelling"] = [*tiny, *OLD_SPELLING]
    said = subprocess.run(
        [sys.executable, "-c", ASK_SGLANG],
        input=json.dumps({"commands": commands, "resolve": resolve, "templates": TEMPLATES}),
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "SGLANG_PLATFORM"},
    )
    assert said.returncode == 0, said.stderr[-2000:]
    answer: dict[str, Any] = json.loads(said.stdout.split("ANSWER")[1])
    return answer


def test_sglang_parses_every_deployment(sglang_says: dict[str, Any]) -> None:
    parsed = sglang_says["parsed"]
    assert parsed["no such flag"] is None, "the parser refuses what is wrong"
    for name, one in BOOTED.items():
        assert parsed[name] is not None, name
        assert parsed[name]["model_path"] == one.model
        assert parsed[name]["reasoning_parser"] == str(one.reasoning_parser)
        assert parsed[name]["tool_call_parser"] == str(one.tool_parser)
        assert parsed[name]["enable_custom_logit_processor"] == str(one.scripted)
        assert parsed[name]["disable_overlap_schedule"] == str(one.scripted)
        nodes = int(parsed[name]["nnodes"])
        assert int(parsed[name]["tp_size"]) == max(one.gpus * nodes, int(text_of(one.flags, "tp_size") or 1))


def test_sglangs_own_checks_pass_and_its_report_is_taken_for_what_was_asked(
    sglang_says: dict[str, Any],
) -> None:
    resolved = sglang_says["resolved"]
    assert "speculative" in resolved["draft model missing"], "the checks refuse what is wrong"
    for name, one in BOOTED.items():
        if one.gpus:
            assert isinstance(resolved[name], dict), (name, resolved[name])
            assert differences(_resolvable(one)[2:], resolved[name]) == [], name
    assert differences(OLD_SPELLING, resolved["old spelling"]) == []
    assert resolved["old spelling"]["attn_dp_size"] == 8


def test_every_parser_name_is_in_sglangs_registries(sglang_says: dict[str, Any]) -> None:
    for name, one in BOOTED.items():
        assert one.reasoning_parser is None or one.reasoning_parser in sglang_says["reasoning"], name
        assert one.tool_parser is None or one.tool_parser in sglang_says["tools"], name
    for family in families():
        assert set(family.reasoning) <= set(sglang_says["reasoning"]), family.name
        assert set(family.tools) <= set(sglang_says["tools"]), family.name
        assert set(family.also) <= {*sglang_says["reasoning"], *sglang_says["tools"]}, family.name
    assert sorted(known_parsers("reasoning") or ()) == sorted(sglang_says["reasoning"])
    assert sorted(known_parsers("tools") or ()) == sorted(sglang_says["tools"])


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_families_agree_with_sglangs_own_detection(name: str, sglang_says: dict[str, Any]) -> None:
    template, tokens = TEMPLATES[name]
    family = family_of(ModelFiles(template=template, tokens=frozenset(tokens)))
    assert family is not None and family.name == name
    reasoning, tools = sglang_says["detected"][name]
    assert reasoning in (family.reasoning or (None,))
    assert tools in (family.tools or (None,))


def test_our_reading_of_flags_is_sglangs(sglang_says: dict[str, Any]) -> None:
    options = sglang_says["options"]
    for name in DECISIVE:
        assert options["--" + name.replace("_", "-")] == name
    # argparse takes a unique beginning, so `--tp` is no option of its own.
    abbreviations = {"tp", "dp", "pp"}
    for name, key in ALIASES.items():
        option = "--" + name.replace("_", "-")
        if name in abbreviations:
            assert option not in options
            assert "--" + key.replace("_", "-") in options
        else:
            assert options[option] == key
    for one in BOOTED.values():
        assert asked(one.all_flags()).keys() <= set(options.values())


def test_the_main_deployment() -> None:
    kimi = load_deployment("kimi-k2.5")
    assert (kimi.model, kimi.gpus) == ("moonshotai/Kimi-K2.5", 8)
    assert kimi.all_flags() == (
        *("--tp-size", "8", "--trust-remote-code"),
        *("--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2"),
        *SCRIPTED_FLAGS,
    )


def test_a_deployment_makes_its_server(tmp_path: Path) -> None:
    server = load_deployment("kimi-k2.5").server(extra_flags=("--context-length", "4096"), port=30000)
    assert not server.on_cpu
    assert server.command[-2:] == ("--context-length", "4096")
    assert server.command[3:5] == ("--model-path", "moonshotai/Kimi-K2.5")
    file = tmp_path / "mine.toml"
    file.write_text(
        f'[here]\nmodel = "{tmp_path}"\ngpus = 0\ntimeout_s = 7\nenv = {{ A = "b" }}\n', encoding="utf-8"
    )
    own = load_deployment("here", file).server()
    assert (own.on_cpu, own.timeout, own.environment()["A"]) == (True, 7, "b")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[a\n", "line 1"),
        ("a = 1\n", "no table"),
        ("[a]\ngpus = 1\n", "'model' is missing"),
        ('[a]\nmodel = "x"\n', "'gpus' is missing"),
        ('[a]\nmodel = "x"\ngpus = true\n', "'gpus' must be"),
        ('[a]\nmodel = "x"\ngpus = 1\nflags = "--tp 8"\n', "'flags' must be a list"),
        ('[a]\nmodel = "x"\ngpus = 1\nreasoning-parser = "x"\n', "no known key"),
        ('[a]\nmodel = "builtin:other"\ngpus = 0\n', "no built-in model"),
    ],
)
def test_a_wrong_file_is_told_where_and_why(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(CannotBoot) as told:
        load_deployment("a", file)
    assert why in told.value.why
    assert str(file) in told.value.where


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(CannotBoot, match="no deployment 'nosuch'") as told:
        load_deployment("nosuch")
    assert "others, such as" in told.value.why
    with pytest.raises(CannotBoot, match="can't be read"):
        load_deployments("/no/such/file.toml")


def test_flags_are_read_as_argparse_reads_them() -> None:
    flags = [
        "--tp",
        "8",
        "--trust-remote-code",
        "--lora-paths",
        "a=1",
        "b=2",
        "--dtype=half",
        "--tp-size",
        "4",
    ]
    assert asked(flags) == {
        "tp_size": "4",
        "trust_remote_code": True,
        "lora_paths": ["a=1", "b=2"],
        "dtype": "half",
    }


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        (["--tp", "2"], {"tp_size": 2}),
        (["--dtype", "half"], {"dtype": "float16"}),
        (["--speculative-algorithm", "NEXTN"], {"speculative_algorithm": "EAGLE"}),
        (["--reasoning-parser", "auto"], {"reasoning_parser": "kimi_k2"}),
        (["--tokenizer-path", "/tmp/../tmp"], {"tokenizer_path": "/tmp"}),
        (["--mem-fraction-static", "0.9"], {"mem_fraction_static": 0.8}),
        (["--revision", "abc"], {}),
    ],
)
def test_the_same_said_otherwise_is_no_difference(flags: list[str], reported: dict[str, Any]) -> None:
    assert differences(flags, reported) == []


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        (["--tp", "2"], {"tp_size": 1}),
        (["--reasoning-parser", "kimi_k2"], {"reasoning_parser": None}),
        (["--trust-remote-code"], {"trust_remote_code": False}),
        (["--revision", "abc"], {"revision": "abd"}),
        (["--chat-template", "/a.jinja"], {"chat_template": "/b.jinja"}),
    ],
)
def test_a_difference_names_both_sides(flags: list[str], reported: dict[str, Any]) -> None:
    (told,) = differences(flags, reported)
    ((key, value),) = reported.items()
    assert key in told and repr(value) in told
