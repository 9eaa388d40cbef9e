"""Segments over tokens: told in runs, they are what each token's first byte says by itself.

Place in the flow: none; `contracts.truth` by itself, over any segments: gaps, overlaps, empty tokens.
"""

from __future__ import annotations

from itertools import accumulate, groupby, pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from contracts.records import SegmentKind
from contracts.truth import Truth

KINDS = st.sampled_from(list(SegmentKind))
SEGMENTS = st.lists(st.tuples(KINDS, st.integers(0, 12), st.integers(0, 12)), max_size=5)


@st.composite
def contiguous(draw: st.DrawFn) -> list[tuple[SegmentKind, int, int]]:
    cuts = [0, *sorted(draw(st.lists(st.integers(0, 12), max_size=4))), 12]
    return [(draw(KINDS), begin, end) for begin, end in pairwise(cuts)]


@given(lengths=st.lists(st.integers(0, 3), max_size=12), segments=st.one_of(SEGMENTS, contiguous()))
@example(lengths=[2, 2, 0, 1], segments=[(SegmentKind.REASONING, 0, 3), (SegmentKind.CONTENT, 3, 5)])
def test_runs_are_what_each_token_says(
    lengths: list[int], segments: list[tuple[SegmentKind, int, int]]
) -> None:
    offsets = [0, *accumulate(lengths)]
    truth = Truth(raw=b"x" * offsets[-1], offsets=offsets, segments=segments)
    alone = [truth.kind_at(start) for start in offsets[:-1]]
    assert truth.runs() == tuple((kind, len(list(group))) for kind, group in groupby(alone))
