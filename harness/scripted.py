"""Scripted generation: forces any token sequence through a real SGLang server.

Place in the flow: before the client, for servers that the harness itself boots with
`--enable-custom-logit-processor`; a processor is pickled code, so nobody else's server should take one.
Imports the standard library only; dill (the extra `cpu`) inside `processor_text`.

Both go at the top level of a `/v1/chat/completions` request as `custom_logit_processor` and
`custom_params`; for `/generate`, `custom_params` goes into `sampling_params`. Always compare what was
emitted with the script: speculative decoding is reported to bypass custom processors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

IDS_KEY = "shardgate_script"
END_KEY = "shardgate_end"
_BASE_KEY = "shardgate_base"


def custom_params(ids: Sequence[int], end_id: int | None = None) -> dict[str, Any]:
    """The request's `custom_params` that force `ids`, one after the other.

    What follows the script, should the request ask for more tokens than it has, is `end_id` forced, or the
    model's own choice when that is None.
    """
    params: dict[str, Any] = {IDS_KEY: list(ids)}
    if end_id is not None:
        params[END_KEY] = end_id
    return params


def check_script(ids: Sequence[int], vocab_size: int) -> None:
    """Refuses a script that SGLang could not survive: an id outside the vocabulary kills the server.

    `vocab_size` is the model's, as its config or the server says. Raises `ValueError`.
    """
    if not ids:
        raise ValueError("the script is empty: it needs at least one token id, the end token for instance")
    for index, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, int):
            raise ValueError(f"script token {index} is {token!r}: a token id is an int")
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"script token {index} is {token}, outside the model's vocabulary of {vocab_size}: "
                "encode the script with this model's tokenizer"
            )


@cache
def processor_text() -> str:
    """The processor as SGLang's `custom_logit_processor` wants it: JSON with a dill pickle in hexadecimal.

    The class travels by value, so the server needs nothing of this package. Raises `ImportError` when dill
    is missing (the extra `cpu` brings it).
    """
    import dill

    return json.dumps({"callable": dill.dumps(_processor_class(), recurse=True).hex()})


def _processor_class() -> type:
    # Defined in here, because dill pickles by value only what it can't find by an importable name.
    class ForceScript:
        """Sets all logits but the script's next one to the least number, row by row."""

        def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]] | None = None) -> Any:
            # Never raises: an exception in a processor kills the server.
            for row, params in enumerate(custom_param_list or []):
                try:
                    req = params["__req__"]
                    # How many tokens are out. `output_ids` lags one behind under the overlap scheduler;
                    # the count of decode steps does not, but starts anew when a retracted request is
                    # prefilled again. What is sampled after all but the last chunk of a prefill is
                    # thrown away, so it does not matter there.
                    steps = getattr(req, "decode_batch_idx", None)
                    if not steps:
                        params[_BASE_KEY] = len(req.output_ids)
                    at = len(req.output_ids) if steps is None else params.get(_BASE_KEY, 0) + steps
                    script = params[IDS_KEY]
                    token = script[at] if at < len(script) else params.get(END_KEY)
                    if token is not None and 0 <= token < logits.shape[-1]:
                        logits[row] = float("-inf")
                        logits[row, token] = 0.0
                except Exception:
                    continue
            return logits

    ForceScript.__module__ = "__main__"
    ForceScript.__call__.__module__ = "__main__"
    return ForceScript
