"""The doctor finds, in files and on this machine, what would end a boot; each fault made for real."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from harness.server import checkpoint, hardware
from harness.server.checkup import Check, Need
from harness.server.checkup_machine import accelerators, limits, memory, storage
from harness.server.checkup_model import hub, known_architectures, model_checks
from harness.server.deployments import Deployment
from harness.server.doctor import examine, examine_deployment
from tests.conftest import need

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_attention_heads": 4}
CONFIG |= {"max_position_embeddings": 8192, "hidden_size": 64}

TOKENIZER = json.dumps(
    {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
)


def safetensors(path: Path, size: int) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder as a hub's snapshot has it: config, two shards with their index, tokenizer, template."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name in names:
        safetensors(folder / name, 1000)
    weight_map = {"a": names[0], "b": names[1]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "tokenizer.json").write_text(TOKENIZER)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return folder


def errors(checks: Iterator[Check] | tuple[Check, ...]) -> dict[str, Check]:
    found = {check.name: check for check in checks if check.outcome == "error"}
    assert all(check.what and check.remedy for check in found.values()), "each error says what to do"
    return found


def of(model: Path | str, *flags: str, **environment: str) -> dict[str, Check]:
    return errors(model_checks(str(model), flags, environment))


def test_a_sound_model_has_no_errors(model: Path) -> None:
    assert of(model) == {}
    assert checkpoint.checkpoint_bytes(str(model)) == sum(
        f.stat().st_size for f in model.glob("*.safetensors")
    )


def test_a_missing_shard_is_named(model: Path) -> None:
    (model / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in of(model)["checkpoint"].what


def test_a_cut_shard_is_named_with_its_sizes(model: Path) -> None:
    path = model / "model-00001-of-00002.safetensors"
    size = path.stat().st_size
    os.truncate(path, size - 100)
    what = of(model)["checkpoint"].what
    assert path.name in what and str(size) in what and str(size - 100) in what


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"<!DOCTYPE html><html>401 Unauthorized</html>"])
def test_what_is_no_safetensors_file_is_named(model: Path, content: bytes) -> None:
    (model / "model-00001-of-00002.safetensors").write_bytes(content)
    assert "model-00001-of-00002.safetensors" in of(model)["checkpoint"].what


def test_a_git_lfs_pointer_is_told_as_one(model: Path) -> None:
    for path in model.glob("*.safetensors"):
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4661195696\n")
    error = of(model)["checkpoint"]
    assert "Git LFS pointer" in error.what and "git lfs pull" in error.remedy


def test_no_weights_no_config_no_tokenizer(model: Path) -> None:
    for path in [*model.glob("*.safetensors*"), model / "tokenizer.json"]:
        path.unlink()
    assert {"checkpoint", "tokenizer"} <= set(of(model))
    (model / "config.json").write_text('{"architectures": [')
    assert "config.json" in of(model)["model"].what
    assert "no model at" in of(model / "nothing")["model"].what


def test_layers_that_the_checkpoint_has_not(model: Path) -> None:
    """SGLang 0.5.23 boots such a model, and generates from memory that was never filled."""
    index = model / "model.safetensors.index.json"
    file = json.loads(index.read_text())["weight_map"]["a"]
    names = [f"model.layers.{number}.self_attn.q_proj.weight" for number in range(3)]
    weight_map = {**dict.fromkeys(names, file), "b": "model-00002-of-00002.safetensors"}
    index.write_text(json.dumps({"weight_map": weight_map}))
    (model / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 3}))
    assert of(model) == {}
    (model / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 4}))
    assert "4 layers, the checkpoint has 3" in of(model)["layers"].what


def test_a_cut_tokenizer_is_seen(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"model": {"vocab": {"a": 1')
    assert "tokenizer.json" in of(model)["tokenizer"].what


def test_a_chat_template_that_is_missing(model: Path) -> None:
    (model / "tokenizer_config.json").write_text("{}")
    told = {check.name: check.outcome for check in model_checks(str(model), (), {})}
    assert told["chat-template"] == "warning"
    assert "chat-template" in of(model, "--chat-template", str(model / "none.jinja"))


def test_heads_that_ranks_do_not_divide(model: Path) -> None:
    error = of(model, "--tp-size", "3")["split"]
    assert "4 attention heads over 3" in error.what and "1, 2, 4" in error.remedy
    assert "split" not in of(model, "--tp", "8", "--dp", "2", "--enable-dp-attention")


def test_more_context_than_the_model_has(model: Path) -> None:
    assert "context-length" in of(model, "--context-length", "9999")
    assert "context-length" not in of(model, "--context-length", "8192")


def test_a_quantisation_that_the_checkpoint_has_not(model: Path) -> None:
    assert "quantization" in of(model, "--quantization", "awq")


def test_a_draft_of_another_size(model: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(model, draft)
    flags = ("--speculative-draft-model-path", str(draft))
    assert "draft" not in of(model, *flags)
    (draft / "config.json").write_text(json.dumps(CONFIG | {"hidden_size": 128}))
    assert "hidden size 128, the target 64" in of(model, *flags)["draft"].what


def test_an_architecture_that_nobody_knows(model: Path) -> None:
    need("sglang")
    (model / "config.json").write_text(json.dumps(CONFIG | {"architectures": ["NoSuchForCausalLM"]}))
    assert "NoSuchForCausalLM" in of(model)["architecture"].what


def test_the_architectures_are_those_that_sglang_registers() -> None:
    """Read from source, without an import: held to what the source says in its own words."""
    need("sglang")
    known = known_architectures()
    assert {"LlamaForCausalLM", "Qwen3ForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM"} <= known
    assert {"KimiK25ForConditionalGeneration", "Glm4MoeForCausalLM"} <= known
    assert len(known) > 150


class Hub(BaseHTTPRequestHandler):
    """A hub that has one model, one gated one, and is busy for a third."""

    def do_HEAD(self) -> None:
        token = self.headers.get("Authorization") == "Bearer good"
        status = 404
        if self.path.startswith("/org/open"):
            status = 200
        elif self.path.startswith("/org/gated"):
            status = 200 if token else 401
        elif self.path.startswith("/org/busy"):
            status = 429
        self.send_response(status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("model", "environment", "outcome", "words"),
    [
        ("org/open", {}, "ok", "hands out"),
        ("org/gated", {}, "error", "HTTP 401"),
        ("org/gated", {"HF_TOKEN": "good"}, "ok", "hands out"),
        ("org/none", {}, "error", "HTTP 404"),
        ("org/busy", {}, "warning", "HTTP 429"),
        ("org/open", {"HF_HUB_OFFLINE": "1"}, "error", "not cached"),
    ],
)
def test_the_hub_is_asked_before_the_boot(
    model: str,
    environment: dict[str, str],
    outcome: str,
    words: str,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    check = hub(model, {"HF_ENDPOINT": endpoint, **environment})
    assert (check.outcome, words in check.what) == (outcome, True), check


def test_a_hub_that_does_not_answer() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        check = hub("org/open", {"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"})
    assert check.outcome == "error" and "can't be reached" in check.what


def test_a_cached_model_is_looked_at_by_its_hub_name(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    cached = tmp_path / "hub" / "models--org--cached"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc123")
    shutil.copytree(model, cached / "snapshots" / "abc123")
    assert of("org/cached", HF_HUB_OFFLINE="1") == {}
    next((cached / "snapshots" / "abc123").glob("*.safetensors")).unlink()
    assert "checkpoint" in of("org/cached", HF_HUB_OFFLINE="1")
    assert "hub" in of("org/other", HF_HUB_OFFLINE="1")


def test_a_taken_port_is_told_with_who_has_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        error = errors(limits(Need(port=taken.getsockname()[1])))["port"]
    assert f"pid {os.getpid()}" in error.why


def test_a_proxy_that_would_swallow_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:3128")
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    assert [c.outcome for c in limits(Need()) if c.name == "proxy"] == ["warning"]
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    assert [c.outcome for c in limits(Need()) if c.name == "proxy"] == ["ok"]


def test_too_little_memory_or_disk_is_an_error(tmp_path: Path) -> None:
    assert "host-memory" in errors(memory(Need(weights=10**15)))
    assert "host-memory" not in errors(memory(Need()))
    assert errors(storage(Need(log_folder=tmp_path / "not" / "yet"))) == {}


# Eight GPUs of 80 GB, as nvidia-smi would list them.
GPUS = tuple(
    hardware.Gpu(number, f"GPU-{number}", "NVIDIA H100", 80 * 10**9, 79 * 10**9, "9.0", "580.95")
    for number in range(8)
)


@pytest.mark.parametrize(
    ("weights", "ranks", "outcome"),
    [
        (300 * 10**9, 8, "ok"),
        (450 * 10**9, 8, "warning"),
        (620 * 10**9, 8, "error"),
        (1100 * 10**9, 8, "error"),
        (0, 8, "unknown"),
    ],
)
def test_the_model_must_fit_the_gpus(
    weights: int, ranks: int, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.server.checkup_machine.visible_gpus", lambda environment: GPUS)
    found = {check.name: check for check in accelerators(Need(ranks=ranks, on_cpu=False, weights=weights))}
    assert found["gpu-memory"].outcome == outcome
    assert found["gpus"].outcome == "ok" and "8 × NVIDIA H100" in found["gpus"].what


def test_no_gpu_where_gpus_are_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "8 wanted, none visible" in errors(accelerators(Need(ranks=8, on_cpu=False)))["gpus"].what


def test_a_deployment_is_examined_with_its_flags(model: Path) -> None:
    deployment = Deployment("mine", str(model), 0, ("--tp-size", "3", "--port", "1"))
    found = errors(examine_deployment(deployment, quick=True))
    assert {"split", "flags"} <= set(found)


def test_a_running_server_by_url_is_asked() -> None:
    port = hardware.free_port("127.0.0.1")
    found = errors(examine_deployment(Deployment("there", url=f"http://127.0.0.1:{port}"), quick=True))
    assert "does not answer" in found["server"].what


def test_nothing_given_examines_the_machine() -> None:
    names = {check.name for check in examine(device="cpu", quick=True)}
    assert {"python", "sglang", "host-memory", "disk", "port"} <= names
    assert "checkpoint" not in names


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_command_tells_each_error_and_what_to_do(model: Path) -> None:
    (model / "model-00002-of-00002.safetensors").unlink()
    done = run(str(model), "--quick", "--flags", "--tp-size 3")
    assert done.returncode == 1 and done.stderr == ""
    assert "model-00002-of-00002.safetensors" in done.stdout and "remedy: " in done.stdout
    assert "a boot would fail" in done.stdout


def test_the_command_gives_one_json_value(model: Path) -> None:
    done = run(str(model), "--quick", "--json")
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["ok"] == (done.returncode == 0)
    assert {"name", "outcome", "what", "why", "remedy"} == set(told["checks"][0])
    assert {"checkpoint", "tokenizer"} <= {check["name"] for check in told["checks"]}


def test_a_name_that_is_no_deployment_is_wrong_use() -> None:
    done = run("no-such-deployment", "--quick")
    assert done.returncode == 2 and "no deployment" in done.stderr


def test_sglang_is_imported_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    need("sglang")
    monkeypatch.setattr("harness.server.checkup.IMPORT", "import no_such_package_at_all")
    found = errors(examine(device="cpu"))
    assert "no_such_package_at_all" in found["import"].why
