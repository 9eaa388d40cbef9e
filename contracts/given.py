"""What an audit is given besides shards and tokenizer: eval set, draft vocabulary, stored rates, template.

Place in the flow: under the rules, beside the thresholds. Imports errors and shard of `contracts`; what is
heavy inside functions. Everything here is plain data that a spawned worker can be handed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.errors import ShardgateError
from contracts.shard import replace_file

if TYPE_CHECKING:
    import numpy as np

RATES_VERSION = 1


class GivenError(ShardgateError):
    """A file that the audit was given besides the shards can't be used."""


@dataclass(frozen=True, slots=True)
class Rates:
    """How many of a set's rows broke each rule of the rows or have each verdict; `sha256` of its file."""

    rows: int
    counts: Mapping[str, int]
    sha256: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class EvalSet:
    """The prompts of an eval set as hashes: sorted arrays (n,) of uint64; see `contracts.evals`."""

    prompts: np.ndarray
    digests: np.ndarray
    sha256: str
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class DraftVocabulary:
    """The target's token ids that a draft model can say, sorted (n,) int64; see `contracts.drafts`."""

    ids: np.ndarray
    sha256: str
    where: str


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template's source, and the tokenizer's special tokens, which templates name (`bos_token` …)."""

    source: str
    tokens: tuple[tuple[str, str], ...] = ()

    @property
    def sha256(self) -> str:
        """Return the template's fingerprint, as the column `chat_template_sha256` has it."""
        return hashlib.sha256(self.source.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Given:
    """What was given; a rule that needs a part which is None stays unchecked.

    `untemplated` says why there is no template, where somebody looked for one.
    """

    eval_set: EvalSet | None = None
    draft_vocabulary: DraftVocabulary | None = None
    stored_rates: Rates | None = None
    template: Template | None = None
    untemplated: str = ""

    def digests(self) -> dict[str, str]:
        """Return name → SHA-256 (hex) of each part that was given; the contract's fingerprint covers them."""
        parts = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "untemplated"}
        return {name: part.sha256 for name, part in parts.items() if part is not None}


def load_template(folder: Path | str) -> Template | None:
    """Return the chat template of a model's folder, None where it has none."""
    folder = Path(folder)
    if not folder.is_dir():
        return None
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}
    config = config if isinstance(config, dict) else {}
    own = folder / "chat_template.jinja"
    source = own.read_text(encoding="utf-8") if own.is_file() else config.get("chat_template")
    if not isinstance(source, str):
        return None
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        said = config.get(name)
        said = said.get("content") if isinstance(said, dict) else said
        if isinstance(said, str):
            tokens[name] = said
    return Template(source, tuple(sorted(tokens.items())))


def write_rates(path: Path | str, rates: Rates) -> Path:
    """Write a set's rates as JSON, for a later audit to be held against; beside, fsynced, renamed."""
    path = Path(path)
    value = {
        "shardgate_rates": RATES_VERSION,
        "rows": rates.rows,
        "counts": dict(sorted(rates.counts.items())),
    }
    text = json.dumps(value, indent=2) + "\n"
    replace_file(path, lambda handle: handle.write(text.encode()))
    return path


def load_rates(path: Path | str) -> Rates:
    """Read the rates that `write_rates` wrote.

    Raises:
        GivenError: the file is missing or holds no rates.
    """
    block = read_given(path, "the stored rates")
    try:
        value = json.loads(block)
    except ValueError:
        value = None
    fits = (
        isinstance(value, dict)
        and value.get("shardgate_rates") == RATES_VERSION
        and _is_count(value.get("rows"))
        and isinstance(value.get("counts"), dict)
        and all(_is_count(count) and count <= value["rows"] for count in value["counts"].values())
    )
    if not fits:
        raise GivenError(
            "the file holds no rates",
            where=str(path),
            why=f'it is no JSON object with "shardgate_rates": {RATES_VERSION}, "rows" and "counts"',
            remedy="pass a file that an audit of the other set wrote",
        )
    return Rates(value["rows"], value["counts"], hashlib.sha256(block).hexdigest())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read_given(path: Path | str, what: str) -> bytes:
    """Return a file's bytes.

    Raises:
        GivenError: the file can't be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise GivenError(
            f"{what} can't be read",
            where=str(path),
            why=error.strerror or str(error),
            remedy="check the path",
        ) from error


def digest_of(blocks: Sequence[bytes]) -> str:
    """Return the SHA-256 (hex) over some files' own digests, in order."""
    return hashlib.sha256(b"".join(hashlib.sha256(block).digest() for block in blocks)).hexdigest()
