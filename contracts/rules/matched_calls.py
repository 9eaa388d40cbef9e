"""Which rows' calls need a look: in the others each is of the wire's form, declared, and answered once.

Place in the flow: under the tool rules. Imports `contracts.rules.handed` and `contracts.rules.tools`; numpy,
polars and pyarrow inside functions. What is let through here the one-row check finds nothing in.

A turn's calls stand in every later row of its conversation, so texts are read once for each distinct one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contracts.rules.handed import Calls, objects, read

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from contracts.rules.registry import Batch


def odd_calls(batch: Batch) -> pl.Series:
    """Return the rows whose calls the one-row check must see."""
    import numpy as np
    import polars as pl
    import pyarrow as pa

    messages = batch.table["messages"].combine_chunks()
    if isinstance(messages, pa.ChunkedArray):
        messages = pa.concat_arrays(messages.chunks)
    lengths = messages.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    each = messages.flatten()
    odd = np.zeros(len(lengths), dtype=bool)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    odd[rows[each.is_null().to_numpy(zero_copy_only=False)]] = True
    role, texts, answers = (pl.Series(pl.from_arrow(each.field(n))) for n in _FIELDS)
    is_tool = (role == "tool").fill_null(False).to_numpy()
    calling = texts.is_not_null().to_numpy() & ~is_tool
    if not calling.any() and not is_tool.any():
        return pl.Series(odd)
    at = np.flatnonzero(calling)
    calls, kinds = _distinct(texts.gather(at))
    bad = (calls.counts < 0) | _not_objects(calls)
    odd[rows[at[bad[kinds]]]] = True
    # From here on one entry a call: its message and its place among the distinct texts' calls.
    counts = np.maximum(calls.counts, 0)
    starts = np.cumsum(counts) - counts
    of_message = np.repeat(at, counts[kinds])
    nth = np.arange(len(of_message)) - np.repeat(np.cumsum(counts[kinds]) - counts[kinds], counts[kinds])
    call = np.repeat(starts[kinds], counts[kinds]) + nth
    codes = pl.concat([calls.ids.gather(call), answers.filter(pl.Series(is_tool))]).rank("dense")
    odd[rows[np.flatnonzero(is_tool)[answers.filter(pl.Series(is_tool)).is_null().to_numpy()]]] = True
    numbers = codes.fill_null(0).to_numpy().astype(np.int64)
    size = int(numbers.max(initial=0)) + 1
    ids, answered = numbers[: len(call)], numbers[len(call) :]
    odd[rows[of_message[(calls.ids.str.len_bytes() == 0).to_numpy()[call]]]] = True
    odd[_twice(rows[of_message] * size + ids) // size] = True
    odd[_undeclared(rows[of_message], calls.names.gather(call), batch.frame["tools"])] = True
    # Each call before the last message opens an id, and each result closes one of the message before it.
    last = np.zeros(len(each), dtype=bool)
    last[np.cumsum(lengths)[lengths > 0] - 1] = True
    opened = of_message[~last[of_message]] * size + ids[~last[of_message]]
    owner = np.maximum.accumulate(np.where(is_tool, -1, np.arange(len(each))))[is_tool]
    first = (np.cumsum(lengths) - lengths)[rows[is_tool]]
    odd[rows[is_tool][owner < first]] = True
    closed = np.where(owner < first, np.flatnonzero(is_tool), owner) * size + answered
    odd[rows[_twice(closed) // size]] = True
    odd[rows[np.setxor1d(opened, closed) // size]] = True
    return pl.Series(odd)


_FIELDS = ("role", "tool_calls", "tool_call_id")


def _distinct(texts: pl.Series) -> tuple[Calls, np.ndarray[Any, Any]]:
    """Return the calls of the distinct texts, and which of these each text is."""
    import polars as pl

    kinds = texts.unique(maintain_order=True)
    numbers = kinds.to_frame("text").with_row_index("kind")
    joined = pl.DataFrame({"text": texts}).join(numbers, on="text", how="left", maintain_order="left")
    return read(kinds), joined["kind"].to_numpy().astype("int64")


def _not_objects(calls: Calls) -> np.ndarray[Any, Any]:
    """Return which texts have a call whose arguments are no JSON object."""
    import numpy as np

    out = np.zeros(len(calls.counts), dtype=bool)
    out[calls.owner[~objects(calls.arguments)]] = True
    return out


def _twice(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the values that are there more than once."""
    import numpy as np

    found, counts = np.unique(values, return_counts=True)
    twice: np.ndarray[Any, Any] = found[counts > 1]
    return twice


def _undeclared(rows: np.ndarray[Any, Any], names: pl.Series, tools: pl.Series) -> np.ndarray[Any, Any]:
    """Return the rows that call a tool that their own tools do not declare; distinct pairs are asked once."""
    import polars as pl

    from contracts.rules.tools import declared

    frame = pl.DataFrame({"tools": tools.gather(rows), "name": names, "row": rows})
    kinds = frame.select("tools", "name").unique()
    known = {text: declared(text) or set() for text in kinds["tools"].unique().to_list()}
    wrong = [name not in known[text] for text, name in kinds.iter_rows()]
    bad = kinds.filter(pl.Series(wrong, dtype=pl.Boolean))
    found = frame.join(bad, on=["tools", "name"], how="semi", nulls_equal=True)
    return found["row"].to_numpy()
