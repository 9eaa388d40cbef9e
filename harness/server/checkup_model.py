"""What the doctor finds out about a model: its files, whether SGLang knows it and can split it, the hub.

Place in the flow: below the doctor. Imports the standard library and the stage's own modules; nothing of the
model is executed, and SGLang's registry is read as source text.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.server.checkpoint import (
    checkpoint_bytes,
    expanded,
    faults,
    hub_cache,
    load_json,
    local_folder,
    tensor_names,
    weight_files,
)
from harness.server.checkup import Check, gigabytes
from harness.server.checkup_config import broken_tokenizer, config_checks, nested
from harness.server.families import template_in, template_text
from harness.server.flags import has, text_of
from harness.server.refusals import looks_local
from harness.server.templates import template_fault

_TOKENIZERS = ("tokenizer.json", "tiktoken.model", "tokenizer.model", "vocab.json", "tekken.json")
_HUB_SECONDS = 4.0
_LAYER = re.compile(r"\b(?:layers|h|blocks)\.(\d+)\.")


def model_checks(model_path: str, flags: Sequence[str], environment: Mapping[str, str]) -> Iterator[Check]:
    """Everything about the model that can be seen before a boot."""
    folder = local_folder(model_path, text_of(flags, "revision"))
    if folder is None:
        if looks_local(model_path):
            what = f"there is no model at {model_path!r}"
            yield Check(
                "model", "error", what, "no such folder", "give a model's folder, or a hub name (org/model)"
            )
        else:
            yield hub(model_path, environment)
        return
    config = load_json(folder / "config.json")
    if not config and not (folder / "params.json").is_file():
        there = (folder / "config.json").is_file()
        yield Check(
            "model",
            "error",
            f"{folder} has no config.json that can be read",
            "it is no JSON object: cut, or a Git LFS pointer" if there else "the file is not there",
            "fetch config.json again",
        )
        return
    yield _checkpoint(folder, model_path)
    yield from config_checks(folder, config)
    yield from _layers(folder, config)
    yield _architecture(config, flags)
    yield from _tokenizer(folder, flags)
    yield from _split(config, flags)
    yield from _settings(config, flags)
    draft = text_of(flags, "speculative_draft_model_path")
    if draft and (place := local_folder(draft)) is not None:
        yield from _draft(place, draft, config)
    elif draft:
        yield Check(
            "draft", "unknown" if not looks_local(draft) else "error", f"{draft} is not on this machine"
        )


def _checkpoint(folder: Path, model_path: str) -> Check:
    found = faults(folder)
    if found:
        kinds = {fault.kind for fault in found}
        remedy = (
            "in the clone run `git lfs install && git lfs pull`, or use `hf download`"
            if kinds == {"pointer"}
            else "fetch it again: `hf download ORG/MODEL --local-dir DIR` goes on where it stopped"
        )
        told = "; ".join(map(str, found[:5])) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
        return Check(
            "checkpoint",
            "error",
            told,
            f"in {folder}: the boot would end while the weights are loaded",
            remedy,
        )
    files = weight_files(folder)
    size = gigabytes(checkpoint_bytes(model_path) or sum(path.stat().st_size for path in files))
    return Check(
        "checkpoint", "ok", f"{len(files)} weight file{'s' if len(files) > 1 else ''}, {size}, complete"
    )


def _layers(folder: Path, config: Mapping[str, Any]) -> Iterator[Check]:
    """Whether the checkpoint has every layer; SGLang 0.5.23 boots without, and serves what memory held."""
    wanted = nested(config).get("num_hidden_layers")
    there = [int(match[1]) + 1 for match in map(_LAYER.search, tensor_names(folder)) if match]
    if isinstance(wanted, int) and there and max(there) < wanted:
        yield Check(
            "layers",
            "error",
            f"config.json says {wanted} layers, the checkpoint has {max(there)}",
            "SGLang boots all the same, and generates from weights that were never loaded",
            "fetch config.json and weights of the same revision",
        )


def known_architectures() -> frozenset[str]:
    """The architectures that the installed SGLang registers, read from its source; empty without SGLang."""
    spec = importlib.util.find_spec("sglang")
    found: set[str] = set()
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for path in (Path(root) / "srt" / "models").glob("*.py"):
            text = path.read_text("utf-8", "replace")
            start = text.find("\nEntryClass")
            while start >= 0:
                found |= _names(text[start + 1 :])
                start = text.find("\nEntryClass", start + 1)
    return frozenset(found)


def _names(text: str) -> set[str]:
    """The names on the right of `EntryClass = X` or `EntryClass = [X, Y]`, at the beginning of the text."""
    lines = text.split("\n")
    for end in range(1, min(len(lines), 40) + 1):
        try:
            tree = ast.parse("\n".join(lines[:end]))
        except SyntaxError:
            continue
        return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"EntryClass"}
    return set()


def _architecture(config: Mapping[str, Any], flags: Sequence[str]) -> Check:
    listed = config.get("architectures")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    if not names and listed is not None:
        return Check(
            "architecture",
            "error",
            "config.json's `architectures` is no list of names",
            "SGLang takes the model's implementation from it",
            "fetch config.json again",
        )
    if not names:
        return Check("architecture", "unknown", "config.json names no architecture")
    known = known_architectures()
    told = ", ".join(names)
    if not known:
        return Check("architecture", "unknown", f"{told}: SGLang is not installed here")
    if set(names) & known:
        return Check("architecture", "ok", f"{told}: SGLang has it")
    if _in_transformers(names, str(config.get("model_type"))) or config.get("auto_map"):
        return Check(
            "architecture",
            "warning",
            f"{told}: SGLang has no implementation of its own",
            "it falls back to transformers' or the model's own code: slower, and not every flag works",
            "look for an SGLang version that has it",
        )
    return Check(
        "architecture",
        "error",
        f"{told}: neither SGLang nor transformers has it",
        "the boot would end with `Cannot find model module`",
        "use an SGLang version that supports this model; check `architectures` in its config.json",
    )


def _in_transformers(names: Sequence[str], model_type: str) -> bool:
    spec = importlib.util.find_spec("transformers") if re.fullmatch(r"[\w-]+", model_type) else None
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for path in (Path(root) / "models" / model_type.replace("-", "_")).glob("modeling_*.py"):
            text = path.read_text("utf-8", "replace")
            if any(f"class {name}(" in text for name in names):
                return True
    return False


def _tokenizer(folder: Path, flags: Sequence[str]) -> Iterator[Check]:
    given = text_of(flags, "tokenizer_path")
    place = (local_folder(given) if given else folder) or folder
    there = [name for name in _TOKENIZERS if (place / name).is_file()]
    remedy = "fetch the tokenizer's files of the same revision, or give --tokenizer-path"
    if not there:
        yield Check("tokenizer", "error", f"{place} has none of {', '.join(_TOKENIZERS)}", "", remedy)
    elif there[0] == "tokenizer.json" and (wrong := broken_tokenizer(place / "tokenizer.json")):
        why = "it is cut, or no tokenizer"
        yield Check("tokenizer", "error", f"tokenizer.json can't be read: {wrong}", why, remedy)
    else:
        yield Check("tokenizer", "ok", there[0])
    if template := text_of(flags, "chat_template"):
        # A name without a path may be one of SGLang's own templates.
        if os.sep in template and not expanded(template).is_file():
            yield Check("chat-template", "error", f"{template} is not there", "", "correct --chat-template")
        else:
            text = None if template.endswith(".json") else template_text(expanded(template))
            yield _template(text, template)
        return
    settings = load_json(place / "tokenizer_config.json")
    text = template_text(place / "chat_template.jinja") or template_in(settings)
    files = [name for name in ("chat_template.jinja", "chat_template.json") if (place / name).is_file()]
    if files or settings.get("chat_template"):
        yield _template(text, files[0] if files else "in tokenizer_config.json")
    else:
        yield Check(
            "chat-template",
            "warning",
            "the model brings no chat template",
            "chat requests would be rendered by a template of SGLang's, or fail; /generate works",
            "give --chat-template FILE, unless the model's own code renders its prompts",
        )


def _template(text: str | None, name: str) -> Check:
    if text is not None and (fault := template_fault(text)):
        return Check(
            "chat-template",
            "error",
            f"{name} does not compile: {fault}",
            "the boot would succeed, and every chat request fail; /generate works",
            "fetch the chat template again, or give --chat-template FILE",
        )
    return Check("chat-template", "ok", name)


def _number(flags: Sequence[str], name: str) -> int:
    text = text_of(flags, name) or "1"
    return int(text) if text.isdigit() and text.isascii() and int(text[:20]) > 0 else 1


def _split(config: Mapping[str, Any], flags: Sequence[str]) -> Iterator[Check]:
    heads = nested(config).get("num_attention_heads")
    ranks = _number(flags, "tp_size")
    if has(flags, "enable_dp_attention"):
        ranks = max(1, ranks // _number(flags, "dp_size"))
    if ranks == 1 or not isinstance(heads, int):
        return
    if heads % ranks:
        fitting = [n for n in (1, 2, 4, 8, 16, 32) if heads % n == 0]
        yield Check(
            "split",
            "error",
            f"{heads} attention heads over {ranks} tensor-parallel ranks",
            "each rank takes the same number of heads",
            f"choose --tp-size from {', '.join(map(str, fitting))}",
        )
    else:
        yield Check("split", "ok", f"{heads} attention heads over {ranks} ranks")


def _settings(config: Mapping[str, Any], flags: Sequence[str]) -> Iterator[Check]:
    inner = nested(config)
    asked, longest = text_of(flags, "context_length"), inner.get("max_position_embeddings")
    if (
        asked
        and asked.isascii()
        and asked.isdigit()
        and isinstance(longest, int)
        and int(asked[:20]) > longest
    ):
        scaled = bool(inner.get("rope_scaling") or inner.get("rope_parameters"))
        yield Check(
            "context-length",
            "warning" if scaled else "error",
            f"--context-length {asked}, the config says {longest}",
            "SGLang refuses more than the model was made for"
            + (" (scaled positions may allow it)" if scaled else ""),
            "lower --context-length",
        )
    quantised = config.get("quantization_config") or inner.get("quantization_config")
    method = quantised.get("quant_method") if isinstance(quantised, dict) else None
    flag = text_of(flags, "quantization")
    if flag in ("awq", "gptq", "awq_marlin", "gptq_marlin") and not method:
        yield Check(
            "quantization",
            "error",
            f"--quantization {flag}, and the checkpoint is not quantised",
            "these methods need a checkpoint that was quantised by them",
            "leave the flag out",
        )


def _draft(folder: Path, draft: str, config: Mapping[str, Any]) -> Iterator[Check]:
    if found := faults(folder):
        told = "; ".join(map(str, found[:3]))
        yield Check("draft", "error", f"{draft}: {told}", "", "fetch the draft model again")
        return
    own = nested(load_json(folder / "config.json"))
    wide, narrow = nested(config).get("hidden_size"), own.get("hidden_size")
    target = own.get("target_hidden_size", narrow)
    if isinstance(wide, int) and isinstance(target, int) and wide != target:
        yield Check(
            "draft",
            "error",
            f"{draft} has hidden size {target}, the target {wide}",
            "an EAGLE draft reads the target's hidden states",
            "give a draft trained for exactly this model",
        )
    else:
        yield Check("draft", "ok", f"{draft}, {gigabytes(checkpoint_bytes(draft))}")


def hub(model: str, environment: Mapping[str, str]) -> Check:
    """Whether the hub would hand out a model that is not on this machine. Asks for one file's head."""
    off = environment.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    if off or environment.get("TRANSFORMERS_OFFLINE", "").lower() in ("1", "true"):
        return Check(
            "hub",
            "error",
            f"{model} is not cached in {hub_cache()}",
            "and HF_HUB_OFFLINE forbids to ask the hub",
            f"fetch it where the hub is reachable (`hf download {model}`), or unset HF_HUB_OFFLINE",
        )
    endpoint = environment.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    token = environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN") or _stored_token()
    request = urllib.request.Request(f"{endpoint}/{model}/resolve/main/config.json", method="HEAD")
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=_HUB_SECONDS):
            return Check("hub", "ok", f"{endpoint} hands out {model}: it will be downloaded at the boot")
    except urllib.error.HTTPError as error:
        with error:
            return _refused(model, endpoint, error.code, bool(token))
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Check(
            "hub",
            "error",
            f"{model} is not on this machine, and {endpoint} can't be reached: {reason}",
            "the boot would end, or try for minutes",
            "check network, proxy (HTTPS_PROXY) and HF_ENDPOINT; or fetch the model elsewhere",
        )


def _stored_token() -> str:
    try:
        return (hub_cache().parent / "token").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _refused(model: str, endpoint: str, status: int, logged_in: bool) -> Check:
    what = f"{endpoint} answers HTTP {status} for {model}"
    if status in (401, 403):
        why = "the model is gated or private" if status == 403 or logged_in else "nobody is logged in"
        remedy = "accept its terms on its page, then `hf auth login` or HF_TOKEN; check the spelling"
        return Check("hub", "error", what, why, remedy)
    if status == 404:
        return Check("hub", "error", what, "there is no such model or no config.json", "check the spelling")
    if status == 429:
        return Check("hub", "warning", what, "it limits requests", "wait, or log in: `hf auth login`")
    return Check("hub", "warning", what, "it may be a passing fault", "try again")
