"""The tiny model: a random Llama over a small real vocabulary, for scripted streams.

Place in the flow: under the models, before the server. Imports numpy and safetensors; no torch.

What it says by itself is noise. It is there to carry forced token ids through the real server fast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness.models.store import Progress, materialize
from harness.models.tokenizer import (
    END,
    MAX_CONTEXT,
    PAD,
    TINY_VOCAB,
    ids_by_name,
    save_tokenizer,
    tiny_key,
    tiny_tokenizer,
)

_HIDDEN, _INNER, _LAYERS, _HEADS, _KV_HEADS, _HEAD = 64, 128, 2, 4, 2, 16
_SEED = 20250


def tiny_model(cache: Path | None = None, on_progress: Progress | None = None) -> Path:
    """The folder of the tiny model, built into the cache at the first call (a second or two).

    2 layers, hidden size 64, bfloat16, vocabulary of 3072 with Kimi's and Qwen3's markers; two tensor
    parallel ranks fit. The same bytes whenever numpy's version is the same.
    """

    def build(folder: Path, tell: Progress) -> None:
        tell("tiny model: writing")
        tokenizer = tiny_tokenizer()
        save_tokenizer(tokenizer, folder)
        _write_config(folder, ids_by_name(tokenizer))
        write_weights(folder / "model.safetensors")

    return materialize("tiny", tiny_key(Path(__file__), version("numpy")), build, cache, on_progress)


def _write_config(folder: Path, ids: dict[str, int]) -> None:
    tokens = {"bos_token_id": ids["[BOS]"], "eos_token_id": ids[END], "pad_token_id": ids[PAD]}
    for name, content in (("config.json", config_of(TINY_VOCAB, tokens)), ("generation_config.json", tokens)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def config_of(vocab: int, tokens: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tiny model's configuration for a vocabulary of this size."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "dtype": "bfloat16",
        "head_dim": _HEAD,
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "initializer_range": 0.02,
        "intermediate_size": _INNER,
        "max_position_embeddings": MAX_CONTEXT,
        "mlp_bias": False,
        "num_attention_heads": _HEADS,
        "num_hidden_layers": _LAYERS,
        "num_key_value_heads": _KV_HEADS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": vocab,
        **tokens,
    }


def write_weights(path: Path, vocab: int = TINY_VOCAB) -> None:
    """Write random weights for a vocabulary of this size."""
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(_SEED)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, _HIDDEN)}
    for layer in range(_LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (_HIDDEN,),
            f"{at}.self_attn.q_proj.weight": (_HEADS * _HEAD, _HIDDEN),
            f"{at}.self_attn.k_proj.weight": (_KV_HEADS * _HEAD, _HIDDEN),
            f"{at}.self_attn.v_proj.weight": (_KV_HEADS * _HEAD, _HIDDEN),
            f"{at}.self_attn.o_proj.weight": (_HIDDEN, _HEADS * _HEAD),
            f"{at}.post_attention_layernorm.weight": (_HIDDEN,),
            f"{at}.mlp.gate_proj.weight": (_INNER, _HIDDEN),
            f"{at}.mlp.up_proj.weight": (_INNER, _HIDDEN),
            f"{at}.mlp.down_proj.weight": (_HIDDEN, _INNER),
        }
    shapes |= {"model.norm.weight": (_HIDDEN,), "lm_head.weight": (vocab, _HIDDEN)}
    # Kept in float32, which numpy can write; the engine casts to the config's bfloat16 while loading.
    tensors = {
        name: np.ones(shape, dtype=np.float32)
        if name.endswith("norm.weight")
        else rng.standard_normal(shape, dtype=np.float32) * np.float32(0.1)
        for name, shape in shapes.items()
    }
    save_file(tensors, str(path), {"format": "pt"})
