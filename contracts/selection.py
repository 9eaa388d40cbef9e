"""Which rows of certified sets go where: filter, subsample, split; the answer is each row's part.

Place in the flow: the first pass of deriving. Imports certified_set, derive and errors of `contracts`; numpy,
pyarrow and polars inside functions.

Only the columns that the question needs are read, row group by row group; a few bytes a row are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from contracts.certified_set import CertifiedSet, permutation
from contracts.derive import DeriveError

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    import pyarrow as pa

LEFT_OUT = -1
_NAMES = ("sample_id",)
_GROUPS = ("prompt_sha256", "source_dataset", "conversation_id")
_AGGREGATES = {
    *("Agg", "AnonymousAgg", "AnonymousFunction", "Eval", "Explode", "Filter", "Gather", "Over", "Rolling"),
    *("Slice", "Sort", "SortBy", "SubPlan"),
}
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_TAKEN = ("shards", "certified", "quarantine")

By = Literal["conversation", "prompt"]


def parsed_filter(text: str) -> pl.Expr:
    """Return a SQL condition over the shard's columns as an expression; nothing in it is ever run as code.

    Raises:
        DeriveError: it is no condition, names an unknown column, or looks at more than one row.
    """
    import polars as pl

    from contracts.shard import arrow_schema

    empty = pl.DataFrame(pl.from_arrow(arrow_schema("text").empty_table()))
    try:
        expression = pl.sql_expr(text)
        kind = empty.select(expression.alias("kept")).schema["kept"]
    except (pl.exceptions.PolarsError, ValueError, TypeError, pl.exceptions.PanicException) as error:
        raise _no_filter(text, " ".join(str(error).split())[:300]) from error
    if kind != pl.Boolean:
        raise _no_filter(text, f"it gives {kind}, not true or false")
    if _many_rows(json.loads(expression.meta.serialize(format="json"))):
        raise _no_filter(text, "it looks at more than one row, and rows are read a part at a time")
    return expression


def _many_rows(node: Any) -> bool:
    """Tell whether an expression's JSON tree holds a node that takes in more than one row.

    `meta.is_row_separable` of polars 2.1.0 calls MAX(x) and ROW_NUMBER() OVER separable.
    """
    if isinstance(node, dict):
        return any(
            key in _AGGREGATES or (key != "String" and _many_rows(value)) for key, value in node.items()
        )
    if isinstance(node, list):
        return any(map(_many_rows, node))
    return bool(node == "Len")


def _no_filter(text: str, why: str) -> DeriveError:
    return DeriveError(
        "this is no condition on a row",
        where=text[:200],
        why=why,
        remedy="write SQL over the shard's columns, as \"finish_reason = 'stop' AND completion_tokens > 16\"",
    )


def parts_of(
    sources: Sequence[CertifiedSet],
    *,
    condition: str | None = None,
    rows: int | None = None,
    fraction: float | None = None,
    split: Mapping[str, float] | None = None,
    by: By = "conversation",
    seed: int = 0,
) -> list[np.ndarray[Any, Any]]:
    """Return, for each source, the part of each of its rows: int16, `LEFT_OUT` or a part's place in `split`.

    Without `split` there is one part, 0. First the condition, then the subsample, then the split.

    Raises:
        DeriveError: a condition or a share that can't be, a `sample_id` in two sources, an empty part.
    """
    import numpy as np

    names, shares = _checked_split(split)
    expression = None if condition is None else parsed_filter(condition)
    wanted = [*(_NAMES if len(sources) > 1 else ()), *(_GROUPS if split else ())]
    if expression is not None:
        wanted += expression.meta.root_names()
    columns = list(dict.fromkeys(wanted)) or list(_NAMES)
    kept: list[Any] = []
    tables: list[pa.Table] = []
    for source in sources:
        for table in source.read(source.groups, columns):
            kept.append(_kept(table, expression))
            tables.append(table.select([name for name in (*_NAMES, *_GROUPS) if name in table.column_names]))
    part = np.where(np.concatenate(kept), 0, LEFT_OUT).astype(np.int16)
    if len(sources) > 1:
        _refuse_doubles(tables, part)
    _subsample(part, rows, fraction, seed)
    if split:
        _split(part, names, shares, _components(tables, by), by, seed)
    if not (part >= 0).any():
        raise DeriveError("no row is left", why="the condition or the subsample keeps none")
    ends = np.cumsum([sum(group.rows for group in source.groups) for source in sources])
    return np.split(part, ends[:-1])


def _kept(table: pa.Table, expression: pl.Expr | None) -> np.ndarray[Any, Any]:
    """Return which rows fulfil the condition; a null does not."""
    import numpy as np
    import polars as pl

    if expression is None:
        return np.ones(table.num_rows, bool)
    frame = pl.DataFrame(pl.from_arrow(table.replace_schema_metadata(None)))
    try:
        found = frame.select(expression.alias("kept"))["kept"].fill_null(False).to_numpy()
    except pl.exceptions.PolarsError as error:
        raise _no_filter(str(expression), " ".join(str(error).split())[:300]) from error
    return np.broadcast_to(found, (table.num_rows,))  # a constant is one value for all rows


def _refuse_doubles(tables: Sequence[pa.Table], part: np.ndarray[Any, Any]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    names = pa.chunked_array([table["sample_id"].combine_chunks() for table in tables]).cast(
        pa.large_string()
    )
    names = names.filter(pa.array(part >= 0))
    if pc.count_distinct(names).as_py() == len(names):
        return
    counts = names.value_counts()
    first = counts.filter(pc.greater(counts.field("counts"), 1))[0].as_py()
    raise DeriveError(
        "a row is in more than one source",
        where=f"sample_id {first['values']}",
        why=f"it is there {first['counts']} times; a set's ids are unique",
        remedy="leave one of the sources out, or filter its rows away",
    )


def _subsample(part: np.ndarray[Any, Any], rows: int | None, fraction: float | None, seed: int) -> None:
    import numpy as np

    if rows is None and fraction is None:
        return
    left = np.flatnonzero(part >= 0)
    if rows is not None and fraction is not None:
        raise DeriveError("a number and a fraction were both asked for", remedy="give one of them")
    if fraction is not None and not 0 < fraction <= 1:
        raise DeriveError(f"a fraction of {fraction} can't be taken", remedy="give one above 0, at most 1")
    wanted = max(1, round(fraction * len(left))) if fraction is not None else rows
    assert wanted is not None
    if not 0 < wanted <= len(left):
        raise DeriveError(
            f"{wanted} rows can't be taken",
            why=f"there are {len(left)}",
            remedy="ask for less, and at least one",
        )
    chosen = np.array(permutation(len(left), seed, 1)[:wanted], np.int64)
    keep = np.zeros(len(part), bool)
    keep[left[chosen]] = True
    part[~keep] = LEFT_OUT


def _checked_split(split: Mapping[str, float] | None) -> tuple[list[str], list[float]]:
    if not split:
        return [], []
    for name, share in split.items():
        if not _PART.fullmatch(name) or name in _TAKEN:
            raise DeriveError(
                f"a part can't be named {name!r}", remedy="letters, digits, `-`, `_` and `.`; not `shards`"
            )
        if not 0 < share <= 1:
            raise DeriveError(f"the part {name} can't have the share {share}", remedy="above 0, at most 1")
    if abs(sum(split.values()) - 1) > 1e-6:
        raise DeriveError("the parts' shares do not sum to 1", where=", ".join(split), remedy="make them")
    return list(split), list(split.values())


def _components(tables: Sequence[pa.Table], by: By) -> Any:
    """Return a number for each row, equal for rows that must stay together.

    Rows of one prompt do; by conversation those of one conversation too, and so on along both.
    """
    import numpy as np
    import pyarrow as pa

    def codes(name: str) -> Any:
        column = pa.chunked_array([table[name].combine_chunks() for table in tables])
        return (
            column.combine_chunks()
            .dictionary_encode()
            .indices.to_numpy(zero_copy_only=False)
            .astype(np.int64)
        )

    prompt = codes("prompt_sha256")
    if by == "prompt":
        return prompt
    dataset, inside = codes("source_dataset"), codes("conversation_id")
    conversation = np.unique(dataset * (inside.max() + 1) + inside, return_inverse=True)[1]
    label = np.arange(prompt.max() + 1)
    while True:
        least = np.full(conversation.max() + 1, len(label))
        np.minimum.at(least, conversation, label[prompt])
        new = label.copy()
        np.minimum.at(new, prompt, least[conversation])
        if (new == label).all():
            return label[prompt]
        label = new


def _split(
    part: np.ndarray[Any, Any],
    names: Sequence[str],
    shares: Sequence[float],
    component: np.ndarray[Any, Any],
    by: By,
    seed: int,
) -> None:
    """Deal the components out, in the seed's order, until each part has its share of the rows."""
    import numpy as np

    left = np.flatnonzero(part >= 0)
    found, inverse, sizes = np.unique(component[left], return_inverse=True, return_counts=True)
    order = np.array(permutation(len(found), seed, 2), np.int64)
    before = np.cumsum(sizes[order]) - sizes[order] / 2  # where the middle of each component falls
    bounds = np.cumsum(shares)[:-1] * len(left)
    dealt = np.empty(len(found), np.int16)
    dealt[order] = np.searchsorted(bounds, before, side="right").astype(np.int16)
    part[left] = dealt[inverse]
    for number, name in enumerate(names):
        if not (part == number).any():
            other = "; --by prompt parts conversations" if by == "conversation" else ""
            raise DeriveError(
                f"the part {name} got no row",
                why=f"{len(left)} rows fall into {len(found)} groups that must stay together",
                remedy=f"give it a larger share, or split a larger set{other}",
            )
