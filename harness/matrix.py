"""The fidelity matrix: for each pair of parsers of the installed SGLang, what is exact and what is lost.

Place in the flow: above the offline judge and the strategies. Imports `contracts` and the harness's own
modules; SGLang and hypothesis when it runs. The streams are drawn by hypothesis without randomness, so that
two runs over one SGLang give one result; the work is spread over processes, one family each.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

from contracts.errors import ShardgateError
from contracts.formats import FORMATS, Format, format_for
from contracts.losses import LOSSES
from contracts.records import Judgement, Verdict
from contracts.tokens import Codec
from contracts.unmapped import UNMAPPED_REASONING, UNMAPPED_TOOLS
from harness.outcomes import MatrixLoss, MatrixReport, MatrixRow
from harness.strategies import Stream

EXAMPLES = 100
"""Streams drawn inside the safe grammar, and as many outside it, for each pair of parsers."""

SHRINK_CALLS = 40
"""Judgements that making one example smaller may take; what hypothesis draws first is small already."""

FROM_STREAM = ("stream-differs",)
Pair = tuple[str | None, str | None]


def pairs_of(fmt: Format) -> tuple[Pair, ...]:
    """Return the pairs of parser names to measure: each name once with the family's usual partner, and each
    reasoning parser alone."""
    reasoning: list[str | None] = [*fmt.reasoning_parsers] or [None]
    tools: list[str | None] = [*fmt.tool_parsers]
    found: dict[Pair, None] = {}
    for parser in reasoning:
        if parser is not None:
            found[parser, None] = None
        for tool in tools[:1]:
            found[parser, tool] = None
    for tool in tools:
        found[reasoning[0], tool] = None
    # Names alone may belong to another family first: Qwen3-Coder's reasoning parser is Qwen3's.
    return tuple(pair for pair in found if format_for(*pair) == fmt)


def run_matrix(
    *,
    families: Sequence[str] | None = None,
    examples: int = EXAMPLES,
    processes: int | None = None,
    on_event: Callable[[str, dict[str, Any]], None] = lambda phase, facts: None,
) -> MatrixReport:
    """Measure every pair of the families (default: all) with the installed SGLang.

    Args:
        examples: streams inside the safe grammar, and outside it, for each pair.
        processes: how many run at once; by default one for each processor.

    Raises:
        ShardgateError: a family is not known, or SGLang is not installed.
    """
    from harness.parsers import registered_parsers

    started = time.monotonic()
    chosen = [_known(name) for name in families] if families else list(FORMATS.values())
    reasoning, tools = registered_parsers()
    missing = [
        name
        for fmt in chosen
        for name in (*fmt.reasoning_parsers, *fmt.tool_parsers)
        if name not in (*reasoning, *tools)
    ]
    work = [(fmt.name, pair) for fmt in chosen for pair in pairs_of(fmt) if not set(pair) & set(missing)]
    found: dict[tuple[str, Pair], MatrixRow] = {}
    workers = max(1, min(processes or len(os.sched_getaffinity(0)), len(work)))
    on_event("matrix", {"message": "importing SGLang", "done": 0, "total": len(work)})
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        jobs = {pool.submit(measure_pair, name, pair, examples): (name, pair) for name, pair in work}
        for job in as_completed(jobs):
            found[jobs[job]] = job.result()
            name, pair = jobs[job]
            told = f"{name}: {' + '.join(part for part in pair if part)}"
            on_event("matrix", {"message": told, "done": len(found), "total": len(work)})
    return MatrixReport(
        engine_version=version("sglang"),
        examples=examples,
        rows=tuple(found[key] for key in work),
        unmapped_reasoning=_unmapped(reasoning, "reasoning_parsers", UNMAPPED_REASONING),
        unmapped_tools=_unmapped(tools, "tool_parsers", UNMAPPED_TOOLS),
        seconds=round(time.monotonic() - started, 1),
    )


def _unmapped(names: Sequence[str], kind: str, reasons: Mapping[str, str]) -> dict[str, str]:
    mapped = {name for fmt in FORMATS.values() for name in getattr(fmt, kind)}
    return {name: reasons.get(name, "new in this SGLang") for name in names if name not in mapped}


def _known(name: str) -> Format:
    if name not in FORMATS:
        raise ShardgateError(
            f"there is no family {name!r}",
            why=f"mapped are: {', '.join(FORMATS)}",
            remedy="give one of these, or add the family (docs/adding-a-format.md)",
        )
    return FORMATS[name]


@dataclass(slots=True)
class _Seen:
    """Counts and smallest examples of one pair, gathered while hypothesis draws."""

    safe: int = 0
    exact: int = 0
    exact_streamed: int = 0
    disturbed: int = 0
    stream_equal: int = 0
    broken: Stream | None = None
    counts: dict[tuple[str, bool], int] = field(default_factory=dict)
    smallest: dict[tuple[str, bool], tuple[Stream, tuple[int, ...] | None]] = field(default_factory=dict)


def measure_pair(family: str, pair: Pair, examples: int) -> MatrixRow:
    """Measure one pair of parsers over streams of a family."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    from harness.models import codec_for
    from harness.strategies import disturbed_streams, safe_streams

    _draw_without_local_constants()
    fmt, seen = FORMATS[family], _Seen()
    codec, tools = codec_for(fmt), pair[1] is not None
    chunkings = st.lists(st.integers(1, 9), min_size=1, max_size=24).map(tuple)
    plan = settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )

    @plan
    @given(safe_streams(fmt, codec, tools=tools), chunkings)
    def inside(stream: Stream, chunks: tuple[int, ...]) -> None:
        seen.safe += 1
        whole = _judged(stream, pair, codec, None)
        seen.exact += whole.verdict is Verdict.EXACT
        seen.exact_streamed += _judged(stream, pair, codec, chunks).verdict is Verdict.EXACT
        if whole.verdict is not Verdict.EXACT and (
            seen.broken is None or len(stream.ids) < len(seen.broken.ids)
        ):
            seen.broken = stream

    @plan
    @given(disturbed_streams(fmt, codec, tools=tools), chunkings)
    def outside(stream: Stream, chunks: tuple[int, ...]) -> None:
        seen.disturbed += 1
        whole = {loss.name for loss in _judged(stream, pair, codec, None).losses}
        streamed = {loss.name for loss in _judged(stream, pair, codec, chunks).losses}
        seen.stream_equal += not streamed & {*FROM_STREAM, "parser-failed"}
        for name in whole | streamed:
            _note(seen, (name, name not in whole), stream, None if name in whole else chunks)

    inside()
    outside()
    return _row(fmt, pair, seen, codec)


def _draw_without_local_constants() -> None:
    """Keep hypothesis from mixing constants of the loaded local modules into what it draws.

    With them each edited line, of shardgate's or of its user's, would give another matrix.
    """
    from hypothesis.internal.conjecture import providers
    from hypothesis.internal.constants_ast import Constants

    providers.CONSTANTS_CACHE.cache.clear()
    providers._get_local_constants = Constants


def _note(seen: _Seen, key: tuple[str, bool], stream: Stream, chunks: tuple[int, ...] | None) -> None:
    seen.counts[key] = seen.counts.get(key, 0) + 1
    known = seen.smallest.get(key)
    if known is None or len(stream.ids) < len(known[0].ids):
        seen.smallest[key] = (stream, chunks)


def _judged(stream: Stream, pair: Pair, codec: Codec, chunks: Sequence[int] | None) -> Judgement:
    from harness.offline import judge

    return judge(
        stream.ids,
        tokenizer=codec,
        reasoning_parser=pair[0],
        tool_parser=pair[1],
        tools=stream.tools,
        finish_reason=stream.finish_reason,
        thinking_mode=stream.thinking_mode,
        chunks=chunks,
    )


def _row(fmt: Format, pair: Pair, seen: _Seen, codec: Codec) -> MatrixRow:
    losses = []
    for (name, streamed), count in sorted(seen.counts.items()):
        stream, chunks = seen.smallest[name, streamed]
        small = _smaller(stream, chunks, pair, codec, name)
        losses.append(
            MatrixLoss(
                name=name,
                verdict=LOSSES[name].verdict,
                count=count,
                streamed=streamed,
                thinking_mode=str(small.thinking_mode),
                text=codec.decode_bytes(small.ids).decode("utf-8", "replace"),
                ids=small.ids,
            )
        )
    broken = seen.broken
    return MatrixRow(
        family=fmt.name,
        reasoning_parser=pair[0],
        tool_parser=pair[1],
        safe=seen.safe,
        exact=seen.exact,
        exact_streamed=seen.exact_streamed,
        disturbed=seen.disturbed,
        stream_equal=seen.stream_equal,
        losses=tuple(losses),
        broken=None if broken is None else codec.decode_bytes(broken.ids).decode("utf-8", "replace"),
    )


def _smaller(stream: Stream, chunks: tuple[int, ...] | None, pair: Pair, codec: Codec, loss: str) -> Stream:
    """Take runs of tokens out, halves first, as long as the loss stays and the budget lasts."""
    calls, size = 0, max(1, len(stream.ids) // 2)
    while calls < SHRINK_CALLS:
        at, took = 0, False
        while at < len(stream.ids) and calls < SHRINK_CALLS:
            shorter = replace(stream, ids=stream.ids[:at] + stream.ids[at + size :])
            calls += 1
            if shorter.ids and loss in {found.name for found in _judged(shorter, pair, codec, chunks).losses}:
                stream, took = shorter, True
            else:
                at += size
        if size == 1 and not took:
            break
        size = max(1, size // 2)
    return stream
