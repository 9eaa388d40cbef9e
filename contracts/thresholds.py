"""The numbers and allowed values that the rules use.

Place in the flow: under the rules; the contract's fingerprint covers them. Imports `contracts.records` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from contracts.records import Profile, Severity


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The numbers and allowed values that the rules use; the contract's fingerprint covers them."""

    severities: Mapping[Profile, Mapping[str, Severity | None]] = field(default_factory=dict)
    min_loss_tokens: int = 1
    finish_reasons: tuple[str, ...] = ("stop", "length", "tool_calls", "abort")
    bos_tokens: tuple[str, ...] = ("[BOS]", "<|begin_of_text|>", "<s>", "<bos>", "<|begin▁of▁sentence|>")
    pad_tokens: tuple[str, ...] = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "<|finetune_right_pad_id|>")
    media_tokens: tuple[str, ...] = (
        "<|media_pad|>",
        "<|media_begin|>",
        "<|image_pad|>",
        "<|video_pad|>",
        "<|vision_start|>",
        "<image_soft_token>",
        "<|image|>",
        "<image>",
    )
