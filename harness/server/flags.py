"""SGLang's flags as data: what was asked for, and whether a server reports the same.

Place in the flow: below readiness. Imports the standard library only: importing SGLang's own parser takes
seconds and needs torch. `tests/unit/test_server_flags.py` holds the names here to that parser.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ALIASES: dict[str, str] = {
    "model": "model_path",
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "attention_data_parallel_size": "attn_dp_size",
    "nccl_init_addr": "dist_init_addr",
    "speculative_draft_model": "speculative_draft_model_path",
    "enable_hicache": "enable_hierarchical_cache",
}
"""Flag name to the name under which `/server_info` reports it, where the two differ."""

DECISIVE: tuple[str, ...] = (
    "reasoning_parser",
    "tool_call_parser",
    "tp_size",
    "pp_size",
    "dp_size",
    "attn_dp_size",
    "nnodes",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "load_format",
    "revision",
    "served_model_name",
    "weight_version",
    "tokenizer_path",
    "chat_template",
    "context_length",
    "trust_remote_code",
    "attention_backend",
    "enable_dp_attention",
    "enable_custom_logit_processor",
    "disable_overlap_schedule",
    "enable_deterministic_inference",
    "skip_tokenizer_init",
    "random_seed",
    "stream_interval",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "lora_paths",
    "disaggregation_mode",
)
"""Settings that change what a token stream is or how it is handed out. A server that reports another value
than was asked for is refused; all other flags SGLang may adjust to the machine (memory, batch sizes)."""

_RESOLVED: dict[tuple[str, str], str] = {
    ("dtype", "half"): "float16",
    ("dtype", "float"): "float32",
    ("speculative_algorithm", "NEXTN"): "EAGLE",
    ("tool_call_parser", "qwen25"): "qwen",
    ("tool_call_parser", "glm45"): "glm",
}
"""Values that SGLang itself renames."""


def asked(flags: Sequence[str]) -> dict[str, str | bool | list[str]]:
    """Flags as a mapping of `/server_info` names: True for a bare flag, a list where several values follow.

    A later flag replaces an earlier one, as argparse has it.
    """
    found: dict[str, str | bool | list[str]] = {}
    index = 0
    while index < len(flags):
        token = flags[index]
        index += 1
        if not token.startswith("--"):
            continue
        name, equals, value = token[2:].partition("=")
        values = [value] if equals else []
        while not equals and index < len(flags) and not flags[index].startswith("--"):
            values.append(flags[index])
            index += 1
        key = name.replace("-", "_")
        key = ALIASES.get(key, key)
        found[key] = True if not values else values[0] if len(values) == 1 else values
    return found


def has(flags: Sequence[str], name: str) -> bool:
    """Whether the flags set this setting, under any of its spellings."""
    return name in asked(flags)


def text_of(flags: Sequence[str], name: str) -> str | None:
    """The single value that the flags give to a setting, None where they give none."""
    value = asked(flags).get(name)
    return value if isinstance(value, str) else None


def _same(key: str, wanted: str | bool | list[str], reported: Any) -> bool:
    if isinstance(wanted, bool):
        return reported is wanted
    if isinstance(wanted, list) or isinstance(reported, list | dict):
        return True  # structured values are reported in another shape than they are given
    if wanted == "auto":
        return True
    if str(reported) == _RESOLVED.get((key, wanted)):
        return True
    if isinstance(reported, int | float) and not isinstance(reported, bool):
        try:
            return float(wanted) == float(reported)
        except ValueError:
            return False
    return same_path(wanted, str(reported)) if os.sep in wanted else wanted == str(reported)


def same_path(left: str, right: str) -> bool:
    """Whether two model paths or hub names are the same one."""
    if left == right:
        return True
    return Path(left).expanduser().exists() and Path(left).expanduser().resolve() == Path(right).resolve()


def differences(flags: Sequence[str], reported: Mapping[str, Any]) -> list[str]:
    """The decisive settings that the server reports otherwise, one sentence each; unreported ones pass."""
    wishes = asked(flags)
    if wishes.get("enable_dp_attention") is True and "attn_dp_size" in reported:
        # SGLang (0.5.23) turns `--dp-size N --enable-dp-attention` into `--attn-dp-size N` and reports that.
        if "dp_size" in wishes:
            wishes["attn_dp_size"] = wishes.pop("dp_size")
        if str(reported.get("attn_dp_size")) == wishes.get("attn_dp_size"):
            del wishes["enable_dp_attention"]
    return [
        f"asked for {key} = {wanted!r}, the server reports {reported[key]!r}"
        for key, wanted in wishes.items()
        if key in DECISIVE and key in reported and not _same(key, wanted, reported[key])
    ]
