"""The demo's and the tests' tokenizers: a real byte-level BPE vocabulary plus the families' markers.

Place in the flow: under the models. Imports `harness.paths`, `harness.models.store` and tokenizers; no
torch, so that the base install can use `tokenizer_only`.

Every byte sequence can be encoded: the vocabulary holds all 256 bytes, which SmolLM2's own does not.
As in Kimi's and Qwen's own tokenizers, think and tool markers are added tokens that are *not* special
(`skip_special_tokens` keeps them), role and end tokens are special.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from harness.models.store import Progress, fingerprint, materialize
from harness.paths import fixtures_dir

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|im_end|>"
KIMI_SPECIAL = ("[BOS]", "[EOS]", END, "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>")
KIMI_MARKUP = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<think>",
    "</think>",
)
QWEN_SPECIAL = ("<|im_start|>", "<|endoftext|>")
QWEN_MARKUP = ("<tool_call>", "</tool_call>")
PAD = "[PAD]"

TINY_VOCAB = 3072
"""Entries of the tiny vocabulary, markers included: a multiple of 64, so that no engine pads it."""

MAX_CONTEXT = 8192


def base_vocabulary(merges: Sequence[str], tokens: Sequence[str] = ()) -> list[str]:
    """`tokens` in their order, then the bytes they lack, then what the merges make and they lack."""
    from tokenizers.pre_tokenizers import ByteLevel

    entries = dict.fromkeys(tokens)
    entries.update(dict.fromkeys(sorted(ByteLevel.alphabet())))
    entries.update(dict.fromkeys(merge.replace(" ", "") for merge in merges))
    return list(entries)


def build_tokenizer(
    vocabulary: Sequence[str], merges: Sequence[str], special: Sequence[str], markup: Sequence[str]
) -> Tokenizer:
    """A byte-level BPE tokenizer; markers that `vocabulary` lacks get the next ids, special ones first."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    ids = {entry: index for index, entry in enumerate(vocabulary)}
    for marker in (*special, *markup):
        ids.setdefault(marker, len(ids))
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(BPE(vocab=ids, merges=pairs, fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(m, special=True, normalized=False) for m in special])
    tokenizer.add_tokens([AddedToken(m, special=False, normalized=False) for m in markup])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` into `folder`."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        # Named, so that SGLang loads the tokenizer once instead of falling back from class to class.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": "[BOS]",
        # As Kimi has it: the tokenizer's end is [EOS], the model config's is <|im_end|>.
        "eos_token": "[EOS]",
        "pad_token": PAD,
        "unk_token": None,
        "model_max_length": MAX_CONTEXT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_bytes(template_path().read_bytes())


def ids_by_name(tokenizer: Tokenizer) -> dict[str, int]:
    """Token id by entry, markers included."""
    return dict(tokenizer.get_vocab(with_added_tokens=True))


def template_path() -> Path:
    """The chat template of the Kimi K2.5 form."""
    return fixtures_dir() / "templates" / "kimi_k25.jinja"


def merges_path() -> Path:
    """The first merges of SmolLM2's vocabulary, one a line after a blank one."""
    return fixtures_dir() / "tokenizer" / "smollm2-merges.txt"


def tiny_tokenizer() -> Tokenizer:
    """SmolLM2's first merges over all bytes, with Kimi's and Qwen3's markers: `TINY_VOCAB` entries."""
    special = (*KIMI_SPECIAL, *QWEN_SPECIAL, PAD)
    markup = (*KIMI_MARKUP, *QWEN_MARKUP)
    _, _, listed = merges_path().read_text(encoding="utf-8").partition("\n\n")
    merges = listed.splitlines()
    room = TINY_VOCAB - len(special) - len(markup)
    base = base_vocabulary(merges)[:room]
    kept = set(base)
    merges = [merge for merge in merges if merge.replace(" ", "") in kept]
    return build_tokenizer(base, merges, special, markup)


def tiny_key(*more: str | bytes | Path) -> str:
    """The fingerprint of everything that the tiny tokenizer is made of, and of `more`."""
    return fingerprint(Path(__file__), merges_path(), template_path(), version("tokenizers"), *more)


def tokenizer_only(cache: Path | None = None, on_progress: Progress | None = None) -> Path:
    """A folder with the tiny model's tokenizer and template alone; needs neither torch nor SGLang."""

    def build(folder: Path, _tell: Progress) -> None:
        save_tokenizer(tiny_tokenizer(), folder)

    return materialize("tiny-tokenizer", tiny_key(), build, cache, on_progress)
