"""The rule that declared tools stand in the prompt, so that the model was told of them. It needs no template.

Place in the flow: rules. Imports columns, registry, requests and structural of `contracts`; numpy and polars
while a check runs. Templates render tools in many ways, but none without their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from contracts.columns import bytes_of
from contracts.rules.registry import Batch, Context, Hit, Row, RuleSpec, row_check
from contracts.rules.requests import request_of
from contracts.rules.structural import parse
from contracts.tokens import UndecodableToken

if TYPE_CHECKING:
    import polars as pl


@lru_cache(maxsize=4096)
def names_of(tools: str) -> tuple[str, ...]:
    """Return the names of declared tools that no template has to escape, each once."""
    value: Any = parse(tools)
    names = []
    for tool in value if isinstance(value, list) else ():
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if (
            isinstance(name, str)
            and name.isascii()
            and name.replace("-", "_").replace(".", "_").isidentifier()
        ):
            names.append(name)
    return tuple(dict.fromkeys(names))


def _untold(batch: Batch, ctx: Context) -> pl.Series:
    """Return the rows in whose decoded prompt some declared tool's name is not found."""
    import numpy as np
    import polars as pl

    codec, frame = ctx.codec, batch.frame
    out = np.zeros(frame.height, dtype=bool)
    declared = frame["tools"].is_not_null()
    if codec is None or ctx.format is None or not declared.any():
        return pl.Series(out)
    made = bytes_of(batch, "prompt_token_ids", codec)
    if made is None:
        return declared
    kinds = frame.select("tools").filter(declared).unique(maintain_order=True)
    names = pl.Series("name", [list(names_of(text)) for text in kinds["tools"].to_list()], pl.List(pl.String))
    rows = frame.select("tools").with_row_index("row").filter(declared)
    pairs = rows.join(kinds.with_columns(names), on="tools", how="left").select("row", "name")
    pairs = pairs.explode("name").drop_nulls("name")
    prompts = pl.Series("prompt", pl.from_arrow(made[0])).cast(pl.String, strict=False)
    found = pairs.with_columns(prompts.gather(pairs["row"]).alias("prompt")).select(
        "row", found=pl.col("prompt").str.contains(pl.col("name"), literal=True).fill_null(False)
    )
    out[found.filter(~pl.col("found"))["row"].to_numpy()] = True
    return pl.Series(out | made[1])


@row_check(
    RuleSpec(
        "tools-untold",
        "a declared tool is not named in the prompt: the model was not told of it",
        "store the tools that the request declared; take prompt ids and tools from the same request",
        column="tools",
        report="sglang#39583, verl#3960",
        strengths=("token",),
        needs_tokenizer=True,
    ),
    suspects=_untold,
)
def tools_told(row: Row, ctx: Context) -> Iterator[Hit]:
    """Look for each declared tool's name in the prompt; servers leave some out by the tool choice."""
    if row["tools"] is None or not row["prompt_token_ids"] or ctx.codec is None or ctx.format is None:
        return
    choice = request_of(row["sampling_params"]).get("tool_choice")
    function = choice.get("function") if isinstance(choice, Mapping) else None
    wanted = function.get("name") if isinstance(function, Mapping) else None
    if choice == "none":
        return
    try:
        text = ctx.codec.decode_bytes(row["prompt_token_ids"]).decode("utf-8", "replace")
    except UndecodableToken:
        return
    lost = [name for name in names_of(row["tools"]) if name not in text and wanted in (None, name)]
    if lost:
        yield "tools-untold", None, f"not in the prompt: {', '.join(lost)[:160]}"
