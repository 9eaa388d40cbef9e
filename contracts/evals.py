"""An eval set's prompts as hashes, and the same hashes of a shard's rows, so that shared prompts are found.

Place in the flow: beside the shard, under the rule `eval-overlap`. Imports `contracts.given`; polars in
functions.

Two prompts are the same when their user messages are, white space and case aside, whatever system message or
template is around them; or when their token ids are (`prompt_sha256`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.given import EvalSet, GivenError, digest_of, read_given

if TYPE_CHECKING:
    import polars as pl

SEED = 0xE7A1
USERS = ("user", "human")
KEYS = ("messages", "conversations", "prompt", "question", "prompt_sha256")


def load_eval_set(paths: Path | str | Sequence[Path | str]) -> EvalSet:
    """Read an eval set: parquet files with `messages` or `prompt_sha256` (shards), JSON lines, or text.

    Of a `.txt` file each line is a prompt. A line of JSON is a text, or an object with `messages` (or
    `conversations`), `prompt` (a text, or messages), `question`, or `prompt_sha256` (hex).

    Raises:
        GivenError: a file is missing, unreadable, or has none of these.
    """
    import numpy as np

    files = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    texts: list[str] = []
    digests: list[bytes] = []
    blocks = []
    for path in files:
        block = read_given(path, "the eval set")
        blocks.append(block)
        rows = _parquet(path) if block[:4] == b"PAR1" else _lines(block, path)
        for where, row in rows:
            text, digest = _prompt_of(row)
            if text is None and digest is None:
                raise GivenError(
                    "the eval set has an entry without a prompt",
                    where=f"{path}, {where}",
                    why=f"it has none of {', '.join(KEYS)} in a form that is known",
                    remedy="give JSON lines with `messages`, `prompt` or `prompt_sha256`, or a shard",
                )
            texts += [] if text is None else [text]
            digests += [] if digest is None else [digest]
    if not texts and not digests:
        raise GivenError(
            "the eval set is empty", where=str(files[0]) if files else "", remedy="check the path"
        )
    import polars as pl

    named = pl.DataFrame({"text": pl.Series(texts, dtype=pl.String)}).select(_normal(pl.col("text")))
    return EvalSet(
        prompts=np.unique(named["text"].hash(SEED).to_numpy()),
        digests=np.unique(pl.Series(digests, dtype=pl.Binary).hash(SEED).to_numpy()),
        sha256=digest_of(blocks),
        count=max(len(texts), len(digests)),
    )


def overlaps(frame: pl.DataFrame, evals: EvalSet) -> pl.Series:
    """Return per row (rows,) whether its prompt is one of the eval set's."""
    import numpy as np
    import polars as pl

    role, content = (pl.element().struct.field(name) for name in ("role", "content"))
    users = pl.col("messages").list.eval(content.filter(role == "user"))
    told = frame.select(
        chain=_normal(users.list.join("\n")),
        first=_normal(users.list.first()),
        digest=pl.col("prompt_sha256"),
    )
    # Of a conversation the first question counts too: an eval prompt stays one when something follows it.
    hit = np.zeros(len(frame), dtype=bool)
    for name, known in (("chain", evals.prompts), ("first", evals.prompts), ("digest", evals.digests)):
        if len(known):
            hit |= np.isin(told[name].hash(SEED).to_numpy(), known) & told[name].is_not_null().to_numpy()
    return pl.Series("overlap", hit)


def _normal(text: pl.Expr) -> pl.Expr:
    return text.str.replace_all(r"\s+", " ").str.strip_chars().str.to_lowercase()


def _parquet(path: Path) -> Iterable[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as parquet:
            columns = [name for name in KEYS if name in parquet.schema_arrow.names]
            if "messages" in columns and "response_token_ids" in parquet.schema_arrow.names:
                columns = [name for name in columns if name in ("messages", "prompt_sha256")]
            number = 0
            for batch in parquet.iter_batches(columns=columns or None, batch_size=4096):
                for row in batch.to_pylist():
                    yield f"row {number}", row
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise GivenError(
            "the eval set can't be read",
            where=str(path),
            why=str(error).splitlines()[0],
            remedy="copy it again",
        ) from error


def _lines(block: bytes, path: Path) -> Iterable[tuple[str, Any]]:
    for number, line in enumerate(block.split(b"\n"), 1):
        if not line.strip():
            continue
        if path.suffix == ".txt":
            yield f"line {number}", line.decode("utf-8", "replace")
            continue
        try:
            yield f"line {number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            raise GivenError(
                "the eval set is no JSON lines",
                where=f"{path}, line {number}",
                why=str(error),
                remedy="give one JSON value a line, a parquet file, or a .txt file of prompts",
            ) from error


def _prompt_of(row: Any) -> tuple[str | None, bytes | None]:
    """Return an entry's user messages as one text and its prompt's digest, None what it does not have."""
    if isinstance(row, str):
        return row, None
    if not isinstance(row, Mapping):
        return None, None
    digest = row.get("prompt_sha256")
    if isinstance(digest, str):
        try:
            digest = bytes.fromhex(digest)
        except ValueError:
            digest = None
    text = next((found for key in KEYS[:4] if (found := _text_of(row.get(key))) is not None), None)
    return text, digest if isinstance(digest, bytes) and len(digest) == 32 else None


def _text_of(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    said = []
    for message in value:
        if not isinstance(message, Mapping):
            return None
        role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
        if role in USERS:
            said.append(_joined(content))
    return "\n".join(said) if said else None


def _joined(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content or "")
