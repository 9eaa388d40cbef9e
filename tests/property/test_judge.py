"""Sound, Complete, Named: the judge over SGLang's own parsers, offline, for every mapped format."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.formats import FORMATS, Format
from contracts.losses import LOSSES, worst
from contracts.records import Judgement, ThinkingMode, Verdict
from contracts.tokens import Codec, load_codec
from harness import judge
from harness.models import tokenizer_only
from harness.strategies import Stream, disturbed_streams, safe_streams
from tests.conftest import need

need("sglang")  # the offline judge runs SGLang's own parsers

CODEC: Codec = load_codec(tokenizer_only())
SETUPS = [
    pytest.param(fmt, tools, id=f"{fmt.name}-{'tools' if tools else 'reasoning'}")
    for fmt in FORMATS.values()
    for tools in ((True, False) if fmt.tools else (False,))
]


def judge_stream(stream: Stream, fmt: Format, *, tools: bool, chunks: list[int] | None = None) -> Judgement:
    return judge(
        stream.ids,
        tokenizer=CODEC,
        reasoning_parser=fmt.reasoning_parser,
        tool_parser=fmt.tool_parser if tools else None,
        tools=stream.tools,
        finish_reason=stream.finish_reason,
        thinking_mode=stream.thinking_mode,
        chunks=chunks,
    )


def check_named(judgement: Judgement, stream: Stream) -> None:
    """Every verdict but `exact` names its losses, each with a place inside the stream and a remedy."""
    assert judgement.verdict is worst(judgement.losses)
    exact = judgement.verdict is Verdict.EXACT
    assert exact == (not judgement.losses)
    for loss in judgement.losses:
        assert LOSSES[loss.name].remedy
        assert 0 <= loss.token_index <= max(0, len(stream.ids) - 1)
        assert 0 <= loss.byte_offset <= len(CODEC.decode_bytes(stream.ids))
    if exact:
        assert judgement.claims.captured and judgement.claims.rebuilt and judgement.claims.tokens
    if not (judgement.claims.rebuilt and judgement.claims.tokens):
        assert judgement.divergence is not None and not exact
    assert sum(count for _, count in judgement.segments) == len(stream.ids)


@pytest.mark.parametrize(("fmt", "tools"), SETUPS)
@given(data=st.data())
def test_complete_inside_the_safe_grammar(fmt: Format, tools: bool, data: st.DataObject) -> None:
    stream = data.draw(safe_streams(fmt, CODEC, tools=tools))
    judgement = judge_stream(stream, fmt, tools=tools)
    assert judgement.verdict is Verdict.EXACT, (judgement.losses, judgement.divergence)
    check_named(judgement, stream)


@pytest.mark.parametrize(("fmt", "tools"), SETUPS)
@given(data=st.data())
def test_named_outside_it(fmt: Format, tools: bool, data: st.DataObject) -> None:
    stream = data.draw(disturbed_streams(fmt, CODEC, tools=tools))
    check_named(judge_stream(stream, fmt, tools=tools), stream)


@pytest.mark.parametrize(("fmt", "tools"), SETUPS)
@given(data=st.data())
def test_named_when_streamed_in_any_chunks(fmt: Format, tools: bool, data: st.DataObject) -> None:
    stream = data.draw(disturbed_streams(fmt, CODEC, tools=tools))
    chunks = data.draw(st.lists(st.integers(1, 9), max_size=40))
    judgement = judge_stream(stream, fmt, tools=tools, chunks=chunks)
    check_named(judgement, stream)


def soundness(streams: list[Stream], ask: Callable[[Stream], Judgement]) -> None:
    """Two different streams with identical fields and request context are never both exact."""
    seen: dict[tuple[object, ...], set[tuple[int, ...]]] = defaultdict(set)
    for stream in streams:
        judgement = ask(stream)
        if judgement.verdict is Verdict.EXACT:
            assert CODEC.encode(judgement.rebuilt_text or "") == list(stream.ids)
            key = (
                judgement.reasoning_content,
                judgement.content,
                str(judgement.tool_calls),
                judgement.finish_reason,
                stream.thinking_mode,
                stream.tools is None,
            )
            seen[key].add(stream.ids)
    assert all(len(ids) == 1 for ids in seen.values())


@pytest.mark.parametrize(("fmt", "tools"), SETUPS)
@settings(max_examples=50)
@given(data=st.data())
def test_sound_over_colliding_streams(fmt: Format, tools: bool, data: st.DataObject) -> None:
    """Streams over a tiny alphabet of markers and two words collide in their fields all the time."""
    words = [tuple(CODEC.encode(text)) for text in ("a", "\n", *fmt.markers, fmt.end_tokens[0])]
    bodies = st.lists(st.sampled_from(words), max_size=6).map(lambda parts: sum(parts, ()))
    end = tuple(CODEC.encode(fmt.end_tokens[0]))
    made = st.builds(
        lambda body, mode: Stream((*body, *end), mode, "stop", None),
        bodies,
        st.sampled_from((ThinkingMode.THINKING, ThinkingMode.INSTANT)),
    )
    streams = data.draw(st.lists(made, min_size=20, max_size=40))
    soundness(streams, lambda stream: judge_stream(stream, fmt, tools=tools))


@pytest.mark.parametrize(("fmt", "tools"), SETUPS)
@settings(max_examples=30)
@given(data=st.data())
def test_sound_over_respelled_streams(fmt: Format, tools: bool, data: st.DataObject) -> None:
    """The same bytes in another split give the same fields: at most the canonical one is exact."""
    stream = data.draw(safe_streams(fmt, CODEC, tools=tools))
    split = tuple(token for t in stream.ids for token in _resplit(t, data))
    other = Stream(split, stream.thinking_mode, stream.finish_reason, stream.tools)
    soundness([stream, other], lambda one: judge_stream(one, fmt, tools=tools))
    if split != stream.ids:
        assert judge_stream(other, fmt, tools=tools).verdict is not Verdict.EXACT


def _resplit(token: int, data: st.DataObject) -> list[int]:
    text = CODEC.decode_bytes([token])
    try:
        chars = text.decode()
    except UnicodeDecodeError:
        return [token]
    if len(chars) < 2 or CODEC.token_id(chars) is not None or not data.draw(st.booleans()):
        return [token]
    return [t for char in chars for t in CODEC.encode(char)]
