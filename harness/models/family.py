"""A tokenizer of each family's own markers, over the tiny vocabulary, for tests and the matrix.

Place in the flow: beside the tiny tokenizer. Imports `contracts` and `harness.models.tokenizer`; no torch.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

from contracts.formats import Format
from contracts.tokens import Codec, FastCodec
from harness.models.tokenizer import tiny_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@lru_cache(maxsize=128)
def codec_for(fmt: Format, *, marker_tokens: bool = True) -> Codec:
    """The tiny vocabulary as a family's own: its end tokens and its markers are tokens of it.

    With `marker_tokens=False` only the end tokens are: markers that the tiny vocabulary lacks come in
    ordinary tokens, as with a tokenizer that was never taught them.
    """
    tokenizer = family_tokenizer(fmt, marker_tokens=marker_tokens)
    return FastCodec(tokenizer, hashlib.sha256(tokenizer.to_str().encode()).hexdigest())


def family_tokenizer(fmt: Format, *, marker_tokens: bool = True) -> Tokenizer:
    """Return the tokenizer of `codec_for`."""
    from tokenizers import AddedToken

    tokenizer = tiny_tokenizer()
    known = set(tokenizer.get_vocab(with_added_tokens=True))
    ends = [text for text in fmt.end_tokens if text not in known]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ends])
    # One character is an ordinary token in every vocabulary.
    markup = [text for text in fmt.markers if text not in known and len(text) > 1] if marker_tokens else []
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in markup])
    return tokenizer
