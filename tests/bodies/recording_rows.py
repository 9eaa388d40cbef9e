"""Small rows and failures for the tests of journal, store and writer.

Place in the flow: none; imported by tests only.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from contracts.shard import Row, arrow_schema, message_struct, seal
from harness.recording.rows import Failure, sample_id


def row(item: str, turn: int = 0, **changes: Any) -> Row:
    """Return a small row that fits the schema; what it says about a response does not matter here."""
    made: Row = {field.name: None for field in arrow_schema()}
    texts = [field.name for field in arrow_schema() if not field.nullable and "string" in str(field.type)]
    made |= dict.fromkeys(texts, "x")
    made |= dict.fromkeys(("source_row_index", "sample_index", "prompt_tokens", "completion_tokens"), 0)
    made |= {
        "sample_id": sample_id(item, turn),
        "turn_index": turn,
        "messages": [
            message_struct({"role": "user", "content": "Grüße 你好"}),
            message_struct({"role": "assistant", "content": ""}),
        ],
        "prompt_token_ids": [1, 2],
        "response_token_ids": [3],
        "output_logprobs": [-0.1, -2.5e-7],
        "claims": dict.fromkeys(("captured", "text", "rebuilt", "tokens")),
        "losses": ["order-lost"],
        "created_at": datetime(2026, 11, 30, 7, 0, 0, 123456, tzinfo=UTC),
    }
    return seal(made | changes)


def failure(item: str, turn: int = 0, reason: str = "timeout") -> Failure:
    return Failure(item, turn, reason, "said", "p", 4, 0, 5, "2026-11-30T07:00:00+00:00")
