"""What the trainers' own loading code makes of exported files, as one JSON value on standard output.

Place in the flow: run by `tests/unit/test_trainers.py` with the Python of `.venv-trainers`; imports the
trainers' packages and none of ours. Arguments: the folder of exports, the tokenizer's folder.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")


def specforge_ids(path: Path) -> list[Any]:
    """SpecForge's `prompts_path`."""
    from specforge.data.prompt_builder import prepare_prompt_tasks

    tasks = prepare_prompt_tasks(
        path,
        None,
        chat_template=None,
        max_length=100_000,
        is_preformatted=False,
        train_only_last_turn=False,
        cache_dir=None,
        cache_key=None,
        num_proc=None,
    )
    return [[task["payload"]["input_ids"], task["payload"]["loss_mask"]] for task in tasks]


def specforge_conversations(path: Path, tokenizer: Any) -> list[Any]:
    """SpecForge's `train_data_path`, with a template of its registry that has the tokenizer's own markers."""
    from datasets import load_dataset
    from specforge.data.preprocessing import build_eagle3_dataset
    from specforge.data.template import TEMPLATE_REGISTRY, ChatTemplate

    template = ChatTemplate(
        assistant_header="<|im_assistant|>assistant<|im_middle|>",
        user_header="<|im_user|>user<|im_middle|>",
        system_prompt="",
        end_of_turn_token="<|im_end|>",
        parser_type="thinking",
    )
    TEMPLATE_REGISTRY.register("shardgate-test", template, override=True)
    dataset = load_dataset("json", data_files=str(path), split="train")
    made = build_eagle3_dataset(
        dataset, tokenizer, chat_template="shardgate-test", max_length=100_000, num_proc=1
    )
    return [[row["input_ids"].reshape(-1).tolist(), row["loss_mask"].reshape(-1).tolist()] for row in made]


def speculators_jsonl(path: Path, tokenizer: Any) -> list[Any]:
    """speculators' `prepare-data`, on rows that carry their mask."""
    from speculators.data_generation.preprocessing import (
        build_speculator_training_dataset,
        load_raw_dataset,
    )

    raw, _ = load_raw_dataset(str(path))
    made = build_speculator_training_dataset(raw, tokenizer, max_length=100_000, num_proc=1)
    return [[row["input_ids"].tolist(), row["loss_mask"].tolist()] for row in made]


def speculators_arrow(path: Path) -> list[Any]:
    """speculators' training data set."""
    from speculators.train.data import ArrowDataset

    made = ArrowDataset(100_000, path, on_missing="skip")
    assert list(made.data["seq_len"]) == [len(row["input_ids"]) for row in made.data]
    assert str(made.data[0]["input_ids"].dtype) == "torch.int64"
    return [[row["input_ids"].tolist(), row["loss_mask"].tolist()] for row in made.data]


def through_datasets(path: Path, kind: str) -> list[Any]:
    """What trainers that read through `datasets` see of a file."""
    from datasets import load_dataset

    return [dict(row) for row in load_dataset(kind, data_files=str(path), split="train")]


def main(exports: Path, tokenizer_folder: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    told = {
        "specforge-ids": specforge_ids(exports / "specforge-ids" / "train.jsonl"),
        "specforge": specforge_conversations(exports / "specforge" / "train.jsonl", tokenizer),
        "speculators": speculators_jsonl(exports / "speculators" / "train.jsonl", tokenizer),
        "speculators-arrow": speculators_arrow(exports / "speculators-arrow"),
        "torchspec": through_datasets(exports / "torchspec" / "train.jsonl", "json"),
        "automodel": through_datasets(exports / "automodel" / "train-00000.parquet", "parquet"),
        "model-optimizer": through_datasets(exports / "model-optimizer" / "train.jsonl", "json"),
    }
    sys.stdout.write("\n" + json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
