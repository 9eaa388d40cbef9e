"""Flags as data, and every deployment's command held to the installed SGLang's own argument parser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.server import CannotBoot, load_deployment, load_deployments
from harness.server.deployments import SCRIPTED_FLAGS
from harness.server.flags import ALIASES, DECISIVE, asked, differences, text_of

PLACES = {"NODE_RANK": "1", "HEAD_ADDR": "10.0.0.1:20000"}
BOOTED = {
    name: one.filled(PLACES) for name, one in load_deployments().items() if not one.url and not one.servers
}

# Importing SGLang's parser takes seconds and leaves torch behind, so one process answers everything.
ASK_SGLANG = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
options = {option: action.dest for action in parser._actions for option in action.option_strings}
parsed = {}
for name, argv in json.load(sys.stdin).items():
    try:
        chosen = parser.parse_args(argv)
        parsed[name] = {key: str(value) for key, value in vars(chosen).items()}
    except SystemExit:
        parsed[name] = None
print("ANSWER" + json.dumps({"options": options, "parsed": parsed}))
"""


@pytest.fixture(scope="module")
def sglang_says() -> dict[str, Any]:
    commands = {name: ["--model-path", one.model, *one.all_flags()] for name, one in BOOTED.items()}
    commands["no such flag"] = ["--model-path", "x", "--no-such-flag"]
    said = subprocess.run(
        [sys.executable, "-c", ASK_SGLANG],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        env={**os.environ, "SGLANG_PLATFORM": "shardgate_cpu"},
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
    assert "kimi-k2.5" in told.value.why
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
