"""Raw tokens and rebuilt tokens side by side: where a reconstruction leaves what the model generated.

Place in the flow: after the judge, for people. Imports records and tokens of `contracts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from contracts.records import Judgement, SegmentKind
from contracts.tokens import Codec, UndecodableToken

WHOLE = 4096
"""Tokens up to which the two sequences are aligned; a longer differing stretch is shown as one exchange."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """One line of the alignment: a raw token, a rebuilt one, or both where they are the same.

    `index` is the token's place in the response, None for a rebuilt token that the model did not generate.
    `losses` are those that the judge named at this token.
    """

    index: int | None
    segment: SegmentKind | None
    raw_id: int | None
    raw: str
    rebuilt_id: int | None
    rebuilt: str
    losses: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Return whether the token was rebuilt."""
        return self.raw_id is not None and self.raw_id == self.rebuilt_id


def align(response_ids: Sequence[int], judgement: Judgement, codec: Codec) -> tuple[Aligned, ...]:
    """Align a response's ids with those that its rebuilt text encodes to.

    Args:
        response_ids: int[T], the engine's ids, as they were judged.
        judgement: what the judge made of them.
        codec: the tokenizer that they were judged with.
    """
    ids = list(response_ids)
    rebuilt = codec.encode(judgement.rebuilt_text or "")
    kinds = [kind for kind, count in judgement.segments for _ in range(count)]
    names: dict[int, list[str]] = {}
    for loss in judgement.losses:
        names.setdefault(loss.token_index, []).append(loss.name)

    def line(at: int | None, other: int | None) -> Aligned:
        raw_id = None if at is None else ids[at]
        rebuilt_id = None if other is None else rebuilt[other]
        return Aligned(
            index=at,
            segment=kinds[at] if at is not None and at < len(kinds) else None,
            raw_id=raw_id,
            raw=_shown(raw_id, codec),
            rebuilt_id=rebuilt_id,
            rebuilt=_shown(rebuilt_id, codec),
            losses=tuple(names.get(at, ())) if at is not None else (),
        )

    lines: list[Aligned] = []
    for a, b, c, d, same in _blocks(ids, rebuilt):
        if same:
            lines += [line(a + n, c + n) for n in range(b - a)]
        else:
            lines += [line(at, None) for at in range(a, b)]
            lines += [line(None, other) for other in range(c, d)]
    return tuple(lines)


def _blocks(left: list[int], right: list[int]) -> list[tuple[int, int, int, int, bool]]:
    """Return (start, end, start, end, same) over both sequences, common ends cut off before aligning."""
    head = next((n for n, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), None)
    head = min(len(left), len(right)) if head is None else head
    tail = 0
    while tail < min(len(left), len(right)) - head and left[-1 - tail] == right[-1 - tail]:
        tail += 1
    a, b, c, d = head, len(left) - tail, head, len(right) - tail
    out = [(0, head, 0, head, True)]
    if max(b - a, d - c) > WHOLE:
        out.append((a, b, c, d, False))
    else:
        matcher = SequenceMatcher(None, left[a:b], right[c:d], autojunk=False)
        for tag, i, j, k, m in matcher.get_opcodes():
            out.append((a + i, a + j, c + k, c + m, tag == "equal"))
    out.append((b, len(left), d, len(right), True))
    return [block for block in out if block[0] < block[1] or block[2] < block[3]]


def _shown(token_id: int | None, codec: Codec) -> str:
    if token_id is None:
        return ""
    try:
        return codec.decode_bytes([token_id]).decode("utf-8", "backslashreplace")
    except UndecodableToken:
        return "(no token of this vocabulary)"
