"""What the doctor says of a model's small files that hold something else, of flags, of closed folders."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.server import hardware
from harness.server.deployments import Deployment
from harness.server.doctor import examine, examine_deployment
from harness.server.preflight import doubts
from tests.conftest import need
from tests.unit.test_doctor import CONFIG, errors, model, of, run

__all__ = ["model"]


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("file", "content", "check", "words"),
    [
        ("config.json", DEEP, "model", "config.json"),
        ("tokenizer.json", DEEP, "tokenizer", "nested too deeply"),
        ("tokenizer.json", '{"a": 1}', "tokenizer", "tokenizer.json"),
        ("tokenizer.json", "[1]", "tokenizer", "no JSON object"),
        ("model.safetensors.index.json", DEEP, "checkpoint", "nested too deeply"),
        ("model.safetensors.index.json", '{"weight_map": [1]}', "checkpoint", "weight_map"),
        ("model.safetensors.index.json", '{"weight_map": {"a": 3}}', "checkpoint", "weight_map"),
        ("generation_config.json", '{"temperature": ', "config", "generation_config.json"),
    ],
)
def test_a_file_that_holds_something_else_is_named(
    model: Path, file: str, content: str, check: str, words: str
) -> None:
    (model / file).write_text(content)
    assert words in of(model)[check].what


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "generation_config.json"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(model: Path, file: str) -> None:
    (model / file).unlink(missing_ok=True)
    os.mkfifo(model / file)
    assert of(model)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": 7}, "7 attention heads don't divide hidden_size 64"),
        ({"torch_dtype": "float17"}, "torch_dtype is 'float17'"),
        ({"text_config": {"hidden_size": True}}, "text model's part: hidden_size is True"),
    ],
)
def test_values_that_no_model_has(model: Path, value: dict[str, Any], words: str) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | value))
    assert words in of(model)["config"].what


@pytest.mark.parametrize(
    "value",
    [
        {"quantization_config": 3},
        {"num_attention_heads": 7, "head_dim": 16},
        {"torch_dtype": "bfloat16", "vocab_size": None},
        {"model_type": "../\0*"},
    ],
)
def test_odd_values_that_a_boot_takes(model: Path, value: dict[str, Any]) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | value))
    assert of(model) == {}


@pytest.mark.parametrize("value", [[], 3, "LlamaForCausalLM", [None]])
def test_architectures_that_name_none(model: Path, value: object) -> None:
    (model / "config.json").write_text(json.dumps(CONFIG | {"architectures": value}))
    assert "architectures" in of(model)["architecture"].what


@pytest.mark.parametrize("flags", [("--tp-size", "x"), ("--nnodes", "-3"), ("--tp",), ("--tp-size", "0")])
def test_a_number_of_ranks_that_is_none(model: Path, flags: tuple[str, ...]) -> None:
    found = errors(examine(str(model), flags, device="cpu", quick=True))
    assert "whole number" in found["flags"].why


def test_sglang_itself_reads_the_flags(model: Path) -> None:
    need("sglang")
    found = errors(examine(str(model), ("--no-such-flag", "sesame", "--dtype", "half"), device="cpu"))
    assert "--no-such-flag" in found["flags"].what and "sesame" not in found["flags"].what


def test_a_folder_that_can_not_be_read_is_one_failed_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> Path:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("harness.server.deployments.Deployment.model_path", refused)
    found = errors(examine_deployment(Deployment("mine", "builtin:tiny"), quick=True))
    assert "Permission denied" in found["model"].what and str(tmp_path) in found["model"].what
    monkeypatch.undo()
    monkeypatch.setattr("harness.server.checkup_machine.hub_cache", refused)
    checks = {check.name: check for check in examine("org/model", device="cpu", quick=True)}
    assert checks["disk"].outcome == "error" and "open-files" in checks


def test_the_command_asks_a_server_by_its_url() -> None:
    done = run(f"http://127.0.0.1:{hardware.free_port('127.0.0.1')}", "--quick")
    assert done.returncode == 1 and "does not answer" in done.stdout
    assert run("http://127.0.0.1:9", "--flags", "--dtype half").returncode == 2


BROKEN = [
    ("{% for m in messages %}{{ m }}", "line 1"),
    ("{{ messages\n| nosuchfilter }}", "nosuchfilter"),
    ("{% nosuchtag %}", "nosuchtag"),
    ("{{ " + "(" * 100_000 + " }}", "nested too deep"),
]


@pytest.mark.parametrize(("template", "words"), BROKEN, ids=[words for _, words in BROKEN])
def test_a_template_that_does_not_compile_is_told_before_the_boot(
    model: Path, template: str, words: str
) -> None:
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert words in of(model)["chat-template"].what
    assert words in next(doubt for doubt in doubts(str(model), []) if doubt.severity == "error").why
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert "chat-template" not in of(model), "the file of its own is the one that counts"
    given = model / "given.jinja"
    given.write_text(template)
    assert words in of(model, "--chat-template", str(given))["chat-template"].what
    assert any(doubt.severity == "error" for doubt in doubts(str(model), ["--chat-template", str(given)]))


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% if m.skip %}{% continue %}{% endif %}{% break %}{% endfor %}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}",
        "{{ tools | tojson(indent=4) }}{{ raise_exception('no') }}{{ strftime_now('%d') }}",
        "{{ 'x' * 10000000000 * 10000000000 }}{{ 'x' | center(100000000000000) }}",
    ],
)
def test_what_transformers_compiles_is_no_fault(model: Path, template: str) -> None:
    (model / "chat_template.jinja").write_text(template)
    assert of(model) == {}
    assert not [doubt for doubt in doubts(str(model), []) if doubt.severity == "error"]
