"""A response generated on the server at hand, for a row's prompt and as the row was sampled.

Place in the flow: before the thresholds. Imports `harness.client`'s request record and this package's parts.

It is as long as the row at most: what is compared is then of one length, and costs no more than the row did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from contracts.records import Mode, Prompt, Transport
from harness.client import CaptureRequest, Client
from harness.recording.generate import BUSY
from harness.replay.ask import Limits, NotReplayed, Patience
from harness.replay.choose import params_of
from harness.wire_errors import ClientError, HttpStatusError, ServerGone, ServerTimeout

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids")

SLOWEST = 5.0
"""Tokens a second that a generation may be down to; prefill is faster."""


async def generate(
    client: Client, row: Mapping[str, Any], patience: Patience, limits: Limits
) -> Mapping[str, Any] | None:
    """Return a row of the server's own, with recorded logprobs; None where it gives none.

    Raises:
        ServerGone: the server is gone.
    """
    params = {
        name: value for name, value in params_of(row).items() if name in _SAMPLING and value is not None
    }
    length = len(row["response_token_ids"])
    prompt = Prompt(name=str(row["sample_id"]), messages=(), sampling={**params, "max_tokens": length})
    request = CaptureRequest(
        prompt,
        Mode.RAW,
        Transport.GENERATE,
        prompt_token_ids=tuple(row["prompt_token_ids"]),
        logprobs=row["output_logprobs"] is not None,
    )
    for attempt in range(1, patience.attempts + 1):
        try:
            limits.check(row["prompt_token_ids"])
            async with asyncio.timeout(patience.base + length / SLOWEST):
                made = await client.capture_one(request)
            if not made.response_token_ids or made.finish_reason == "abort":
                return None
            return {
                **row,
                "response_token_ids": list(made.response_token_ids),
                "output_logprobs": None if made.output_logprobs is None else list(made.output_logprobs),
            }
        except ServerGone:
            if attempt == patience.attempts:
                raise
        except HttpStatusError as error:
            if error.status in (401, 403):
                raise
            if error.status not in BUSY:
                return None
        except (TimeoutError, ServerTimeout):
            pass
        except (ClientError, NotReplayed):
            return None
        await asyncio.sleep(patience.pause * 2 ** (attempt - 1))
    return None
