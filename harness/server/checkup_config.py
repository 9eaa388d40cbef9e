"""What the doctor finds out about a model's small files: numbers that no model has, a tokenizer that is none.

Place in the flow: below the checks of a model. Imports the stage's own modules; `tokenizers` only inside a
function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.server.checkpoint import read_json
from harness.server.checkup import Check

_SIZES = ("vocab_size", "hidden_size", "num_attention_heads", "num_hidden_layers")
_HEAD_SIZES = (
    "head_dim",
    "qk_head_dim",
    "v_head_dim",
    "qk_nope_head_dim",
    "kv_channels",
    "attention_head_dim",
)
_FLOATS = ("auto", "half", "float16", "bfloat16", "float", "float32", "float64", "double")
_DTYPES = frozenset((*_FLOATS, "float8_e4m3fn", "float8_e5m2", "int8", "uint8"))
_MAX_TOKENIZER = 64_000_000
_INNER = ("text_config", "llm_config", "language_config", "thinker_config")
_AGAIN = "fetch {0} again, of the same revision as the weights"


def nested(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config; models that also see keep it in one of their own."""
    while (name := next((one for one in _INNER if isinstance(config.get(one), dict)), None)) is not None:
        config = config[name]
    return config


def config_checks(folder: Path, config: Mapping[str, Any]) -> Iterator[Check]:
    """Values in config.json that no model has, and a generation_config.json that can't be read."""
    inner = nested(config)
    wrong = _wrong_values(config)
    if inner is not config:
        wrong += [f"in the text model's part: {one}" for one in _wrong_values(inner)]
    if wrong:
        why = "SGLang builds the model from these values"
        yield Check("config", "error", "; ".join(wrong), why, _AGAIN.format("config.json"))
    generation = folder / "generation_config.json"
    if generation.exists() and (told := broken_json(generation)):
        what = f"generation_config.json can't be read: {told}"
        why = "SGLang reads the defaults of sampling from it"
        yield Check("config", "error", what, why, _AGAIN.format("generation_config.json"))


def _is_size(value: object) -> bool:
    # A few models have a list: a number per layer.
    if isinstance(value, list):
        return bool(value) and all(type(one) is int and one > 0 for one in value)
    return type(value) is int and value > 0


def _wrong_values(config: Mapping[str, Any]) -> list[str]:
    found = [
        f"{name} is {_shown(config[name])}, not a whole number above 0"
        for name in _SIZES
        if config.get(name) is not None and not _is_size(config[name])
    ]
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    own = any(config.get(name) for name in _HEAD_SIZES)
    if not own and type(hidden) is int and type(heads) is int and heads > 0 and hidden % heads:
        found.append(f"{heads} attention heads don't divide hidden_size {hidden}, and there is no head_dim")
    for name in ("torch_dtype", "dtype"):
        value = config.get(name)
        if value is None or isinstance(value, dict):
            continue
        if not isinstance(value, str) or value.removeprefix("torch.") not in _DTYPES:
            found.append(f"{name} is {_shown(value)}, which is no type of numbers")
    return found


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str | int | float | bool) else f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:39] + "…"


def broken_json(path: Path) -> str:
    """Why a file holds no JSON object; empty where it does."""
    try:
        loaded = read_json(path)
    except (OSError, ValueError) as error:
        return str(error)
    return "" if isinstance(loaded, dict) else "it is no JSON object"


def broken_tokenizer(path: Path) -> str:
    """Why tokenizer.json is no tokenizer; empty where it is one, or it is too long to load it here."""
    if told := broken_json(path):
        return told
    if path.stat().st_size > _MAX_TOKENIZER:
        return ""
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exceptions, and its panics are not even these
        return str(error)[:300]
    return ""
