"""The tiny model with a family's own markers and end tokens, for scripted streams through a real server.

Place in the flow: beside the tiny model. Imports `contracts.formats`, numpy and safetensors; no torch.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from contracts.formats import Format
from harness.models.family import family_tokenizer
from harness.models.store import Progress, materialize
from harness.models.tiny import config_of, write_weights
from harness.models.tokenizer import MAX_CONTEXT, TINY_VOCAB, ids_by_name, tiny_key

ROOM = 64
"""Entries beyond the tiny vocabulary for a family's markers: a multiple of 64, so that no engine pads it."""


def family_model(fmt: Format, cache: Path | None = None, on_progress: Progress | None = None) -> Path:
    """Return the folder of the tiny model that speaks a family's markers, built into the cache once.

    Its chat template is the least that a family's requests need: the messages, and what the family's own
    template writes before the thinking.
    """
    tokenizer = family_tokenizer(fmt)
    template = _template(fmt)

    def build(folder: Path, tell: Progress) -> None:
        tell(f"tiny model of {fmt.name}: writing")
        ids = ids_by_name(tokenizer)
        assert max(ids.values()) < TINY_VOCAB + ROOM
        tokenizer.save(str(folder / "tokenizer.json"))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "bos_token": "[BOS]",
            "eos_token": fmt.end_tokens[0],
            "pad_token": "[PAD]",
            "unk_token": None,
            "model_max_length": MAX_CONTEXT,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        tokens = {
            "bos_token_id": ids["[BOS]"],
            "eos_token_id": [ids[text] for text in fmt.end_tokens],
            "pad_token_id": ids["[PAD]"],
        }
        for name, content in (
            ("config.json", config_of(TINY_VOCAB + ROOM, tokens)),
            ("generation_config.json", tokens),
        ):
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        write_weights(folder / "model.safetensors", TINY_VOCAB + ROOM)

    key = tiny_key(Path(__file__), version("numpy"), tokenizer.to_str(), template)
    return materialize(f"tiny-{fmt.name}", key, build, cache, on_progress)


def _template(fmt: Format) -> str:
    said = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    if not fmt.opener_prefilled:
        return said
    if not fmt.template_switch:
        return said + fmt.opener
    unset = "true" if fmt.thinks_by_default else "false"
    return (
        said + "{% if " + fmt.template_switch + " | default(" + unset + ") %}"
        f"{fmt.opener}{{% else %}}{fmt.opener}{fmt.closer}{{% endif %}}"
    )
