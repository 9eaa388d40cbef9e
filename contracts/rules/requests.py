"""What the requests of a batch asked for: `sampling_params` read once for each distinct text.

Place in the flow: under the rules about requests. Imports structural's JSON reader and the registry; numpy
and polars inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from contracts.records import Json
from contracts.rules.structural import parse

if TYPE_CHECKING:
    import numpy as np

    from contracts.rules.registry import Batch

Request = Mapping[str, Json]


@lru_cache(maxsize=4096)
def request_of(text: str | None) -> Request:
    """Return a row's sampling parameters, with those of the client's `extra_body`; {} where unreadable."""
    value: Any = parse(text) if text is not None else None
    if not isinstance(value, Mapping):
        return {}
    more = value.get("extra_body")
    return {**more, **value} if isinstance(more, Mapping) else value


def requests_of(batch: Batch) -> tuple[np.ndarray[Any, Any], list[Request]]:
    """Return which request each row has (rows,), and the distinct requests; made once a batch."""
    import polars as pl

    if "requests" not in batch.made:
        told = batch.frame.select("sampling_params")
        kinds = told.unique(maintain_order=True).with_row_index("kind")
        codes = told.join(kinds, on="sampling_params", how="left", nulls_equal=True, maintain_order="left")
        requests = [request_of(text) for text in kinds["sampling_params"].to_list()]
        batch.made["requests"] = codes["kind"].cast(pl.Int64).to_numpy(), requests
    return batch.made["requests"]  # type: ignore[no-any-return]


def rows_asking(batch: Batch, wanted: Callable[[Request], bool]) -> np.ndarray[Any, Any]:
    """Return the rows (rows,) whose request is wanted; each distinct one is asked once."""
    import numpy as np

    codes, requests = requests_of(batch)
    asked = np.array([wanted(request) for request in requests] or [False], dtype=bool)
    return asked[codes]  # type: ignore[no-any-return]


def texts_of(value: Json) -> list[str]:
    """Return a parameter that is a text or a list of texts as the list of those that are not empty."""
    if isinstance(value, str):
        return [value] if value else []
    return [text for text in value if isinstance(text, str) and text] if isinstance(value, list) else []


def ids_of_request(request: Request, name: str) -> list[int]:
    """Return a parameter that lists token ids."""
    value = request.get(name)
    return (
        [i for i in value if isinstance(i, int) and not isinstance(i, bool)]
        if isinstance(value, list)
        else []
    )
