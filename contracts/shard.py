"""The shard: its Arrow schema, how a capture becomes a row, and how rows become a parquet file.

Place in the flow: after the judge, before the contract. Imports `contracts.errors`, `contracts.records` and
`contracts.digests`; pyarrow inside the functions that need it.

One row is one generation event. Two columns are JSON text with a stated form: `sampling_params` holds the
request's own parameters and, beside them, `mode` (which parsers the request let run) and `stream`;
`matched_stop` holds an end token's id as a JSON number or a stop string as a JSON string.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.digests import content_sha256, names_sha256, prompt_sha256
from contracts.errors import ShardgateError
from contracts.records import Capture, Json, Judgement, Transport

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]

SCHEMA_VERSION = "1"
METADATA_PREFIX = "shardgate."
NONE = "none"
"""What a non-null provenance column says where the server ran without the part (a parser, say)."""
UNKNOWN = "unknown"
"""What a non-null provenance column says where the server did not tell; rules refuse it."""
NAMES_KEY = f"{METADATA_PREFIX}names_sha256"
"""Metadata key of the digest over what names the rows; a shard made of some of another's rows has none."""
ROWS_PER_GROUP = 2048

CONSTANT_COLUMNS = (
    "target_model",
    "target_revision",
    "tokenizer_sha256",
    "chat_template_sha256",
    "engine",
    "engine_version",
    "reasoning_parser",
    "tool_parser",
)
"""Dictionary columns that are one value per run; a shard's metadata repeats them."""

RUN_COLUMNS = ("weight_version", "lora", "quantization", "kv_cache_dtype", "speculative")
"""What the tokens' distribution depends on: constant too, but for the weights of an `rl` set."""


class ShardError(ShardgateError):
    """A shard could not be built or written."""


@lru_cache(maxsize=2)
def arrow_schema(strength: str = "token") -> pa.Schema:
    """Return the one schema that every shard has. Strength `text` allows null token ids."""
    import pyarrow as pa

    def items(kind: pa.DataType) -> pa.DataType:
        return pa.list_(pa.field("element", kind, nullable=False))

    def must(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, nullable=False)

    text, may = pa.string(), pa.field
    ids_null = strength == "text"
    word = pa.dictionary(pa.int32(), text)
    message = pa.struct(
        [
            must("role", text),
            must("content", text),
            may("reasoning_content", text),
            may("tool_calls", text),
            may("tool_call_id", text),
            may("name", text),
        ]
    )
    span = pa.struct([must("start", pa.int32()), must("length", pa.int32())])
    claims = pa.struct([may(name, pa.bool_()) for name in ("captured", "text", "rebuilt", "tokens")])
    return pa.schema(
        [
            must("sample_id", text),
            must("conversation_id", text),
            must("source_dataset", text),
            must("source_row_index", pa.int64()),
            must("turn_index", pa.int32()),
            must("sample_index", pa.int32()),
            may("parent_sample_id", text),
            must("messages", items(message)),
            may("tools", text),
            may("prompt_token_ids", items(pa.int32()), nullable=ids_null),
            may("response_token_ids", items(pa.int32()), nullable=ids_null),
            may("loss_mask", items(span)),
            may("output_logprobs", items(pa.float32())),
            may("response_text_raw", text),
            must("text_source", text),
            may("reasoning_content", text),
            may("content", text),
            may("tool_calls", text),
            must("finish_reason", text),
            may("matched_stop", text),
            must("prompt_tokens", pa.int32()),
            must("completion_tokens", pa.int32()),
            may("reasoning_tokens", pa.int32()),
            must("claims", claims),
            must("verdict", text),
            must("losses", items(text)),
            may("constraint", text),
            may("weight_version", text),
            may("lora", text),
            may("quantization", text),
            may("kv_cache_dtype", text),
            may("speculative", text),
            must("transport", text),
            must("endpoint", text),
            must("thinking_mode", text),
            must("template_kwargs", text),
            must("sampling_params", text),
            *(must(name, word) for name in CONSTANT_COLUMNS),
            may("request_id", text),
            must("created_at", pa.timestamp("us", tz="UTC")),
            must("prompt_sha256", pa.binary(32)),
            must("content_sha256", pa.binary(32)),
        ]
    )


def dump(value: Json) -> str:
    """Return compact JSON text, characters kept as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def encode_matched_stop(matched: int | str | None) -> str | None:
    """Return `matched_stop` as its column holds it: JSON, so that the id 42 and the string "42" differ."""
    return None if matched is None else dump(matched)


def decode_matched_stop(text: str | None) -> int | str | None:
    """Read the column `matched_stop`; text that is not JSON is taken as a stop string."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | str) and not isinstance(value, bool) else text


def message_struct(message: Mapping[str, Json]) -> dict[str, str | None]:
    """Turn one OpenAI-style message into the shard's struct; a null content becomes "".

    Raises:
        ShardError: the content is not text (images and other media are unsupported).
    """
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        kinds = sorted({str(p.get("type")) for p in content if isinstance(p, Mapping)} - {"text"})
        if kinds or not all(isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content):
            raise ShardError(
                what=f"unsupported message content: {', '.join(kinds) or type(content).__name__}",
                why="engine placeholders for media break token ids and ranges",
                remedy="leave conversations with media out",
            )
        content = "".join(p["text"] for p in content)
    calls = message.get("tool_calls")
    return {
        "role": str(message.get("role", "")),
        "content": content or "",
        "reasoning_content": message.get("reasoning_content"),
        "tool_calls": calls if calls is None or isinstance(calls, str) else dump(calls),
        "tool_call_id": message.get("tool_call_id"),
        "name": message.get("name"),
    }


def row_from_capture(
    capture: Capture,
    judgement: Judgement,
    *,
    sample_id: str,
    source_dataset: str,
    source_row_index: int,
    sample_index: int | None = None,
    parent_sample_id: str | None = None,
    loss_mask: Sequence[tuple[int, int]] | None = None,
    constraint: Mapping[str, Json] | None = None,
) -> Row:
    """Build the shard's row of one judged capture (strength `token`).

    `loss_mask` lists (start, length) spans over prompt + response; None is the boundary mask. `constraint`
    tells what bent the sampling; a scripted capture is marked whatever it says. `sample_index` overrides
    the capture's, for repeats that must be told apart within one set.

    Raises:
        ShardError: the capture lacks the engine's ids or usage, or holds media.
    """
    prompt_ids, response_ids, usage = capture.prompt_token_ids, capture.response_token_ids, capture.usage
    if prompt_ids is None or response_ids is None or usage is None or capture.finish_reason is None:
        raise ShardError(
            what="the capture can't become a row of strength `token`",
            where=capture.prompt.name,
            why="the response lacks the engine's token ids, usage or finish reason",
            remedy="record through `/generate`, or ask chat for `return_token_ids`",
        )
    fields, server, prompt = capture.fields, capture.server, capture.prompt
    bent = dict(constraint or {})
    if capture.scripted_ids is not None:
        bent["scripted"] = True
    target = {
        "role": "assistant",
        "content": fields.content,
        "reasoning_content": fields.reasoning_content,
        "tool_calls": fields.tool_calls,
    }
    sampling = {**prompt.sampling, "mode": str(capture.mode), "stream": capture.stream}
    served = capture.raw_text is not None
    row: Row = {
        "sample_id": sample_id,
        "conversation_id": prompt.conversation_id or prompt.name,
        "source_dataset": source_dataset,
        "source_row_index": source_row_index,
        "turn_index": prompt.turn_index,
        "sample_index": capture.sample_index if sample_index is None else sample_index,
        "parent_sample_id": parent_sample_id,
        "messages": [message_struct(m) for m in (*prompt.messages, target)],
        "tools": dump(list(prompt.tools)) if prompt.tools else None,
        "prompt_token_ids": list(prompt_ids),
        "response_token_ids": list(response_ids),
        "loss_mask": None if loss_mask is None else [{"start": s, "length": n} for s, n in loss_mask],
        "output_logprobs": None if capture.output_logprobs is None else list(capture.output_logprobs),
        "response_text_raw": capture.raw_text if served else judgement.raw_text,
        "text_source": "served" if served else "derived",
        "reasoning_content": fields.reasoning_content,
        "content": fields.content,
        "tool_calls": fields.tool_calls,
        "finish_reason": capture.finish_reason,
        "matched_stop": encode_matched_stop(capture.matched_stop),
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "claims": {
            name: getattr(judgement.claims, name) for name in ("captured", "text", "rebuilt", "tokens")
        },
        "verdict": str(judgement.verdict),
        "losses": [loss.name for loss in judgement.losses],
        "constraint": dump(bent) if bent else None,
        "weight_version": server.weight_version,
        "lora": server.lora,
        "quantization": server.quantization,
        "kv_cache_dtype": server.kv_cache_dtype,
        "speculative": server.speculative,
        "transport": str(capture.transport),
        "endpoint": "/generate" if capture.transport is Transport.GENERATE else "/v1/chat/completions",
        "thinking_mode": str(prompt.thinking_mode),
        "template_kwargs": dump(dict(prompt.template_kwargs)),
        "sampling_params": dump(sampling),
        "target_model": server.model,
        "target_revision": server.revision or UNKNOWN,
        "tokenizer_sha256": server.tokenizer_sha256 or UNKNOWN,
        "chat_template_sha256": server.chat_template_sha256 or UNKNOWN,
        "engine": server.engine,
        "engine_version": server.engine_version or UNKNOWN,
        "reasoning_parser": server.reasoning_parser or NONE,
        "tool_parser": server.tool_parser or NONE,
        "request_id": capture.request_id,
        "created_at": capture.created_at,
    }
    return seal(row)


def seal(row: Row) -> Row:
    """Return the row with `prompt_sha256` and `content_sha256` set from its other columns."""
    digest = prompt_sha256(row)
    sealed = {**row, "prompt_sha256": digest}
    return {**sealed, "content_sha256": content_sha256(sealed)}


def shard_metadata(
    rows: Sequence[Row],
    *,
    format_name: str,
    strength: str = "token",
    constants: Mapping[str, str | None] | None = None,
) -> dict[str, str]:
    """Return a shard's own file metadata: schema version, format, strength, and the constants of its rows.

    `constants` are told by who has seen the rows and holds them no more.
    """
    alike = dict(constants or {})
    for name in (*CONSTANT_COLUMNS, *RUN_COLUMNS):
        values = {row[name] for row in rows}
        if len(values) == 1:
            alike[name] = values.pop()
    return {
        f"{METADATA_PREFIX}schema_version": SCHEMA_VERSION,
        f"{METADATA_PREFIX}format": format_name,
        f"{METADATA_PREFIX}strength": strength,
        f"{METADATA_PREFIX}constants": json.dumps(alike, sort_keys=True),
        NAMES_KEY: names_sha256(rows),
    }


def table_of(rows: Sequence[Row], strength: str) -> pa.Table:
    """Return rows as a table in the shard's schema.

    Raises:
        ShardError: a value does not fit it, or is null where none may be, inside a list or a struct too.
    """
    import pyarrow as pa

    schema = arrow_schema(strength)
    try:
        table = pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError, ValueError) as error:
        raise ShardError(what="a value does not fit the shard's schema", why=str(error)) from error
    for field in schema:
        for chunk in table[field.name].chunks:
            name = _null_in(chunk, field)
            if name is not None:
                row = next(n for n, one in enumerate(table[field.name]) if _lacks(one.as_py(), field))
                raise ShardError(what=f"row {row} lacks `{name}`", why="it may not be null")
    return table


def _null_in(values: pa.Array, field: pa.Field) -> str | None:
    """Return the name of what is null in a column, or inside it, and may not be."""
    import pyarrow as pa

    if not field.nullable and values.null_count:
        return str(field.name)
    inside: list[tuple[pa.Array, pa.Field]] = []
    if pa.types.is_list(field.type):
        inside = [(values.flatten(), field.type.value_field)]
    elif pa.types.is_struct(field.type):
        inside = list(zip(values.flatten(), field.type, strict=True))
    found = next((name for array, one in inside if (name := _null_in(array, one)) is not None), None)
    return None if found is None else f"{field.name}.{found}"


def _lacks(value: Any, field: pa.Field) -> bool:
    import pyarrow as pa

    if value is None:
        return not field.nullable
    if pa.types.is_list(field.type):
        return any(_lacks(one, field.type.value_field) for one in value)
    return pa.types.is_struct(field.type) and any(_lacks(value[one.name], one) for one in field.type)


def write_shard(path: Path | str, rows: Iterable[Row], *, format_name: str, strength: str = "token") -> Path:
    """Write rows as one parquet shard: beside, fsynced, renamed. Returns its path.

    Raises:
        ShardError: there are no rows, or a value does not fit the schema.
    """
    rows = list(rows)
    path = Path(path)
    if not rows:
        raise ShardError(what="a shard needs rows", where=str(path), remedy="write no file for an empty set")
    try:
        table = table_of(rows, strength)
    except ShardError as error:
        raise ShardError(error.what, str(path), error.why, error.remedy) from error
    metadata = shard_metadata(rows, format_name=format_name, strength=strength)
    write_table(path, table.replace_schema_metadata(metadata))
    return path


def write_table(path: Path, table: pa.Table) -> None:
    """Write an Arrow table the way every shard is written: zstd level 1, beside, fsynced, renamed."""
    import pyarrow.parquet as pq

    def write(handle: Any) -> None:
        pq.write_table(table, handle, compression="zstd", compression_level=1, row_group_size=ROWS_PER_GROUP)

    replace_file(path, write)


def replace_file(path: Path, write: Any) -> None:
    """Have `write(handle)` fill a file beside `path`, fsync it, rename it into place, fsync the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as handle:
            write(handle)
            handle.flush()
            os.fsync(handle.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
