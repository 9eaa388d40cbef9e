"""Sound, Complete, Named: the judge over SGLang's own parsers, offline, for every mapped format."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.formats import FORMATS, Format, format_for
from contracts.losses import LOSSES, worst
from contracts.records import Judgement, ThinkingMode, Verdict
from contracts.tokens import Codec
from harness import judge
from harness.models import codec_for
from harness.strategies import Stream, disturbed_streams, safe_streams
from tests.conftest import need

need("sglang")  # the offline judge runs SGLang's own parsers

SETUPS = [
    pytest.param(fmt, tools, id=f"{fmt.name}-{'tools' if tools else 'reasoning'}")
    for fmt in FORMATS.values()
    for tools in ((True, False) if fmt.tools and fmt.reasoning_parsers else (bool(fmt.tools),))
    # A reasoning parser that several families share stands, alone, for the first of them.
    if tools or format_for(fmt.reasoning_parser, None) is fmt
]


@dataclass(frozen=True)
class Setup:
    """How a stream of a format is judged: a tokenizer, and one of the parsers that the family goes by."""

    fmt: Format
    codec: Codec
    reasoning_parser: str | None
    tool_parser: str | None

    def judge(self, stream: Stream, chunks: list[int] | None = None) -> Judgement:
        return judge(
            stream.ids,
            tokenizer=self.codec,
            reasoning_parser=self.reasoning_parser,
            tool_parser=self.tool_parser,
            tools=stream.tools,
            finish_reason=stream.finish_reason,
            thinking_mode=stream.thinking_mode,
            chunks=chunks,
        )


def draw_setup(data: st.DataObject, fmt: Format, tools: bool) -> Setup:
    """Draw a setup: the family's markers are tokens, or come in ordinary ones; any of its parsers' names."""
    codec = codec_for(fmt, marker_tokens=data.draw(st.booleans(), label="marker tokens"))
    thinking = st.sampled_from(fmt.reasoning_parsers) if fmt.reasoning_parsers else st.none()
    calling = st.sampled_from(fmt.tool_parsers) if tools else st.none()
    return Setup(
        fmt, codec, data.draw(thinking, label="reasoning parser"), data.draw(calling, label="tool parser")
    )


def check_named(judgement: Judgement, stream: Stream, codec: Codec) -> None:
    """Every verdict but `exact` names its losses, each with a place inside the stream and a remedy."""
    assert judgement.verdict is worst(judgement.losses)
    exact = judgement.verdict is Verdict.EXACT
    assert exact == (not judgement.losses)
    for loss in judgement.losses:
        assert LOSSES[loss.name].remedy
        assert 0 <= loss.token_index <= max(0, len(stream.ids) - 1)
        assert 0 <= loss.byte_offset <= len(codec.decode_bytes(stream.ids))
    if exact:
        assert judgement.claims.captured and judgement.claims.rebuilt and judgement.claims.tokens
    if not (judgement.claims.rebuilt and judgement.claims.tokens):
        assert judgement.divergence is not None and not exact
    assert sum(count for _, count in judgement.segments) == len(stream.ids)


@pytest.mark.parametrize(("fmt", "tools"), SETUPS)
@given(data=st.data())
def test_complete_inside_the_safe_grammar(fmt: Format, tools: bool, data: st.DataObject) -> None:
    setup = draw_setup(data, fmt, tools)
    stream = data.draw(safe_streams(fmt, setup.codec, tools=tools))
    judgement = setup.judge(stream)
    assert judgement.verdict is Verdict.EXACT, (judgement.losses, judgement.divergence)
    check_named(judgement, stream, setup.codec)


@pytest.mark.parametrize(("fmt", "tools"), SETUPS)
@given(data=st.data())
def test_named_outside_it(fmt: Format, tools: bool, data: st.DataObject) -> None:
    setup = draw_setup(data, fmt, tools)
    stream = data.draw(disturbed_streams(fmt, setup.codec, tools=tools))
    check_named(setup.judge(stream), stream, setup.codec)


@pytest.mark.parametrize(("fmt", "tools"), SETUPS)
@given(data=st.data())
def test_named_when_streamed_in_any_chunks(fmt: Format, tools: bool, data: st.DataObject) -> None:
    setup = draw_setup(data, fmt, tools)
    stream = data.draw(disturbed_streams(fmt, setup.codec, tools=tools))
    chunks = data.draw(st.lists(st.integers(1, 9), max_size=40))
    check_named(setup.judge(stream, chunks), stream, setup.codec)


def soundness(streams: list[Stream], setup: Setup) -> None:
    """Two different streams with identical fields and request context are never both exact."""
    seen: dict[tuple[object, ...], set[tuple[int, ...]]] = defaultdict(set)
    for stream in streams:
        judgement = setup.judge(stream)
        if judgement.verdict is Verdict.EXACT:
            assert setup.codec.encode(judgement.rebuilt_text or "") == list(stream.ids)
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
    setup = draw_setup(data, fmt, tools)
    encode = setup.codec.encode
    words = [tuple(encode(text)) for text in ("a", "\n", *fmt.markers, fmt.end_tokens[0])]
    bodies = st.lists(st.sampled_from(words), max_size=6).map(lambda parts: sum(parts, ()))
    end = tuple(encode(fmt.end_tokens[0]))
    made = st.builds(
        lambda body, mode: Stream((*body, *end), mode, "stop", None),
        bodies,
        st.sampled_from((ThinkingMode.THINKING, ThinkingMode.INSTANT)),
    )
    soundness(data.draw(st.lists(made, min_size=20, max_size=40)), setup)


@pytest.mark.parametrize(("fmt", "tools"), SETUPS)
@settings(max_examples=30)
@given(data=st.data())
def test_sound_over_respelled_streams(fmt: Format, tools: bool, data: st.DataObject) -> None:
    """The same bytes in another split give the same fields: at most the canonical one is exact."""
    setup = draw_setup(data, fmt, tools)
    stream = data.draw(safe_streams(fmt, setup.codec, tools=tools))
    split = tuple(token for t in stream.ids for token in _resplit(t, setup.codec, data))
    other = Stream(split, stream.thinking_mode, stream.finish_reason, stream.tools)
    soundness([stream, other], setup)
    if split != stream.ids:
        assert setup.judge(other).verdict is not Verdict.EXACT


def _resplit(token: int, codec: Codec, data: st.DataObject) -> list[int]:
    text = codec.decode_bytes([token])
    try:
        chars = text.decode()
    except UnicodeDecodeError:
        return [token]
    if len(chars) < 2 or codec.token_id(chars) is not None or not data.draw(st.booleans()):
        return [token]
    return [t for char in chars for t in codec.encode(char)]
