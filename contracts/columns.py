"""A shard's columns as flat buffers: ids with their offsets, decoded bytes, and texts encoded in one batch.

Place in the flow: under the rules' fast paths. Imports `contracts.tokens`; numpy, pyarrow and fastokens in
functions. Everything here answers for a whole batch of rows; who needs one row asks the codec.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from contracts.tokens import Codec, FastCodec, UndecodableToken

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from contracts.rules.registry import Batch

Flat = tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]
"""Values of all rows, one after the other, and n + 1 offsets into them."""

ORACLE_STRIDE = 2048
"""Of so many texts in a batch one is encoded by the tokenizers library too, however fast the others were."""


@lru_cache(maxsize=4)
def vocabulary(codec: Codec) -> tuple[pa.Array, np.ndarray[Any, Any]] | None:
    """Return every token's bytes by id, and which ids have any; None where the codec's size is not known."""
    import numpy as np
    import pyarrow as pa

    size = codec.vocab_size
    if size is None:
        return None
    parts: list[bytes] = []
    known = np.ones(size, dtype=bool)
    for token_id in range(size):
        try:
            parts.append(codec.token_bytes([token_id])[0])
        except UndecodableToken:
            known[token_id] = False
            parts.append(b"")
    return pa.array(parts, pa.binary()), known


def flat_ids(column: pa.ChunkedArray | pa.Array) -> Flat:
    """Return a list<int32> column's ids and offsets, without a copy where it is one chunk; null is empty."""
    import numpy as np
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # more than one chunk's worth
        array = pa.concat_arrays(array.chunks)
    if array.null_count:
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return array.flatten().to_numpy(zero_copy_only=False), offsets
    cuts = array.offsets.to_numpy()
    values = array.values.to_numpy(zero_copy_only=False)[cuts[0] : cuts[-1]]
    return values, (cuts - cuts[0]).astype(np.int64)


def decoded(codec: Codec, ids: Flat) -> tuple[pa.Array, np.ndarray[Any, Any]] | None:
    """Return the bytes of each row's ids as one large_binary array, and the rows that can't be decoded.

    None where the vocabulary can't be laid out (see `vocabulary`).
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    table = vocabulary(codec)
    if table is None:
        return None
    tokens, known = table
    values, offsets = ids
    bad = np.zeros(len(offsets) - 1, dtype=bool)
    if len(values) and not 0 <= values.min() <= values.max() < len(known):
        inside = (values >= 0) & (values < len(known))
        values = np.where(inside, values, 0)
        bad |= rows_with(~inside, offsets)
    if not known.all():
        bad[np.searchsorted(offsets, places_of(values, np.flatnonzero(~known)), side="right") - 1] = True
    taken = pc.take(tokens, pa.array(values), boundscheck=False)
    ends = np.frombuffer(taken.buffers()[1], dtype=np.int32)
    cuts = pa.py_buffer(ends[offsets].astype(np.int64))
    data = taken.buffers()[2] or pa.py_buffer(b"")
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, [None, cuts, data]), bad


def ids_of(batch: Batch, column: str) -> Flat:
    """Return a list<int32> column of a batch (see `flat_ids`), made once."""
    key = f"ids {column}"
    if key not in batch.made:
        batch.made[key] = flat_ids(batch.table[column])
    return batch.made[key]  # type: ignore[no-any-return]


def bytes_of(batch: Batch, column: str, codec: Codec) -> tuple[pa.Array, np.ndarray[Any, Any]] | None:
    """Return what the ids of a batch's column decode to (see `decoded`), made once."""
    key = f"bytes {column}"
    if key not in batch.made:
        batch.made[key] = decoded(codec, ids_of(batch, column))
    return batch.made[key]  # type: ignore[no-any-return]


def places_of(
    values: np.ndarray[Any, Any], tokens: Collection[int] | np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return where one of the tokens stands among ids, in order.

    Markers have the ids at one end of a vocabulary: comparing with the smallest and the largest leaves few.
    """
    import numpy as np

    if not len(tokens):
        return np.zeros(0, dtype=np.int64)
    wanted = np.fromiter(tokens, np.int64)
    low, high = int(wanted.min()), int(wanted.max())
    near = np.flatnonzero(values >= low)
    near = near[values[near] <= high]
    found: np.ndarray[Any, Any] = near[np.isin(values[near], wanted)]
    return found


def rows_with(flags: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return per row whether any of its values is flagged."""
    import numpy as np

    out = np.zeros(len(offsets) - 1, dtype=bool)
    out[np.searchsorted(offsets, np.flatnonzero(flags), side="right") - 1] = True
    return out


def flat_encoder(codec: Codec) -> Callable[[Sequence[str]], Flat]:
    """Return the fastest way to encode a batch of texts whose ids are the codec's own."""
    import numpy as np

    fast = _fastokens(codec)

    def encode(texts: Sequence[str]) -> Flat:
        if fast is not None:
            ids, offsets = fast.encode_batch_flat(list(texts))
            flat = (
                np.frombuffer(ids, dtype=np.uint32).astype(np.int32),
                np.frombuffer(offsets, dtype=np.uint64).astype(np.int64),
            )
            if _agrees(codec, texts, flat):
                return flat
        lists = encode_batch(codec, texts)
        offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
        joined = [np.asarray(one, dtype=np.int32) for one in lists]
        return (np.concatenate(joined) if joined else np.zeros(0, dtype=np.int32)), offsets

    return encode


def encode_batch(codec: Codec, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts with the codec itself, as a batch where it is a `tokenizers.Tokenizer`."""
    if isinstance(codec, FastCodec):
        return codec.encode_batch(texts)
    return [codec.encode(text) for text in texts]


def _agrees(codec: Codec, texts: Sequence[str], flat: Flat) -> bool:
    """Hold a sample of the fast ids against the codec's; one that differs turns the whole batch down."""
    values, offsets = flat
    return all(
        codec.encode(texts[at]) == values[offsets[at] : offsets[at + 1]].tolist()
        for at in range(0, len(texts), ORACLE_STRIDE)
    )


@lru_cache(maxsize=4)
def _fastokens(codec: Codec) -> Any:
    """Return fastokens' tokenizer for a codec, None where it is not installed or does not take it."""
    if not isinstance(codec, FastCodec):
        return None
    try:
        import fastokens  # type: ignore[import-untyped]

        fast = fastokens.Tokenizer.from_json_str(codec.to_json())
        probes = ["", "a", "  two words\n", "naïve 东京 🙂", "x = {1: 'y'}\r\n\t", *codec.added()]
        return fast if all(fast.encode(text).ids == codec.encode(text) for text in probes) else None
    except Exception:  # optional, and refuses vocabularies that it can't read with errors of every kind
        return None
