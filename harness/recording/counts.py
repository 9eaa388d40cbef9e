"""What a shard's rows look like, counted once when it is written: the run's report needs no second reading.

Place in the flow: under the store. Imports `contracts`; polars inside functions. A count is plain JSON of a
few kilobytes, kept in the manifest beside the shard's name; those of several shards are merged.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    *("completion_tokens", "prompt_tokens", "reasoning_content", "content", "finish_reason", "verdict"),
    *("losses", "created_at"),
)
"""The columns that are counted."""


def counts_of(table: pa.Table, file: str) -> dict[str, Any]:
    """Return what a shard's rows look like; `file` names it in the places of examples.

    `verdicts`, `losses` and `finish_reasons` by name; `lengths` as `contracts.stats` tells them; `minutes` as
    [minute since 1970, answers, response tokens], an answer counted when it came; `examples`: loss → rows.
    """
    import polars as pl

    from contracts.stats import Stats

    frame = pl.DataFrame(pl.from_arrow(table.select(COLUMNS)))
    stats = Stats()
    stats.add(file, 0, frame)
    told = stats.to_json()
    losses: Counter[str] = Counter(frame["losses"].explode().drop_nulls().to_list())
    minutes = (
        frame.group_by((pl.col("created_at").dt.epoch("s") // 60).alias("minute"))
        .agg(pl.len().alias("rows"), pl.col("completion_tokens").sum().alias("tokens"))
        .sort("minute")
    )
    return {
        "verdicts": told["verdicts_by_shard"][file],
        "losses": dict(losses.most_common()),
        "finish_reasons": told["finish_reasons"],
        "lengths": told["lengths"],
        "minutes": [list(one) for one in minutes.iter_rows()],
        "examples": {loss: [row for _, row in places] for loss, places in told["examples"].items()},
    }
