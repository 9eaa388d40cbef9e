"""What makes a server ready: weights in place, a generation of the asked length, and the right settings.

Place in the flow: between the HTTP calls and whoever boots or attaches. Imports the stage's own modules.

A 200 on `/health` is not it. While SGLang warms up, `/health` says 503 and `/model_info`, `/server_info` and
`/v1/models` already say 200 (0.5.23); before that, every connection is refused. And once ready, `/health`
says 200 for good where SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0 is set, whatever becomes of the scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.server.failures import Mismatch, NoAnswer, NotReady, Unreachable
from harness.server.flags import differences, same_path
from harness.server.http import Answer, call

PROOF_TOKENS = 4
"""Length of the generation that a server must give before it counts as ready."""


def info(base_url: str, name: str, *, timeout: float = 10.0, api_key: str | None = None) -> dict[str, Any]:
    """`/server_info` or `/model_info`, under its old name (`/get_…`) where the new one is not there.

    Raises `Unreachable` when what answers has neither, so is no SGLang, or asks for a key.
    """
    answer = Answer(404, None)
    for path in (f"/{name}", f"/get_{name}"):
        answer = call(base_url, path, timeout=timeout, api_key=api_key)
        if answer.status == 200 and isinstance(answer.body, dict):
            return answer.body
        if answer.status in (401, 403):
            raise Unreachable(
                "the server refuses us",
                where=base_url + path,
                why=f"HTTP {answer.status}: it was started with --api-key, and the key is missing or wrong",
                remedy="give the server's API key",
            )
        if answer.status >= 500:
            raise NotReady(
                "the server does not tell about itself",
                where=base_url + path,
                why=f"HTTP {answer.status}",
                remedy="wait until it is ready; if it stays so, read the server's log",
            )
    raise Unreachable(
        "this is no SGLang server",
        where=base_url,
        why=f"it answers HTTP {answer.status} to /{name}, which every SGLang server serves as JSON",
        remedy="give the URL of the SGLang server itself, without a path such as /v1",
    )


def is_warm(base_url: str, *, timeout: float = 20.0, api_key: str | None = None) -> bool:
    """Whether SGLang says that its warm-up is over. `/health` generates a token, which takes about 1 s."""
    try:
        return call(base_url, "/health", timeout=timeout, api_key=api_key).status == 200
    except NoAnswer:
        # A stopped scheduler has it wait for the token; the port answers all the same.
        return False


def prove_generation(
    base_url: str, *, timeout: float, api_key: str | None = None, logprobs: bool = True
) -> None:
    """Have the server generate `PROOF_TOKENS` tokens and count them; ids, so that no tokenizer is needed.

    With `logprobs` it tells how probable it found them: weights that are not numbers give tokens too.

    Raises `NotReady` when the answer is no success, has another length or a probability that is no number;
    `Unreachable` when none comes.
    """
    request: dict[str, Any] = {
        "input_ids": [1, 2, 3],
        "sampling_params": {"max_new_tokens": PROOF_TOKENS, "ignore_eos": True, "temperature": 0.0},
    }
    asked = {"return_logprob": True} if logprobs else {}
    answer = call(base_url, "/generate", request | asked, timeout=timeout, api_key=api_key)
    if asked and answer.status == 400:
        # Some ways to generate (beam search, some speculative workers) have none to tell.
        answer = call(base_url, "/generate", request, timeout=timeout, api_key=api_key)
    if problem := problem_of(answer):
        raise NotReady(
            "the server does not generate what it is asked",
            where=base_url + "/generate",
            why=problem,
            remedy="read the server's log; a model whose weights are missing or broken does this",
        )


def problem_of(answer: Answer) -> str | None:
    """What is wrong with an answer to the proof's request; None where nothing is."""
    if answer.status != 200:
        return f"HTTP {answer.status}: {str(answer.body)[:200]}"
    body = answer.body if isinstance(answer.body, dict) else {}
    meta = _mapping(body.get("meta_info"))
    finish = _mapping(meta.get("finish_reason"))
    if "NaN" in str(finish.get("matched", "")):
        return f"{_NO_NUMBERS} (the generation ended by {finish['matched']!r})"
    ids, count = body.get("output_ids"), meta.get("completion_tokens")
    if count != PROOF_TOKENS or (ids is not None and (not isinstance(ids, list) or len(ids) != PROOF_TOKENS)):
        return f"asked for {PROOF_TOKENS} tokens, got {count}"
    if finish.get("type") != "length":
        return f"the generation ended by {finish.get('type')!r} ({finish.get('message') or 'no message'})"
    # A server older than that, or one that can't tell, sends none.
    told = meta.get("output_token_logprobs")
    for entry in told if isinstance(told, list) else ():
        value = entry[0] if isinstance(entry, list) and entry else entry
        # NaN has no JSON: SGLang sends null for it.
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return f"{_NO_NUMBERS} (a token's log probability is {value!r})"
    return None


_NO_NUMBERS = "the weights are not numbers: what it computes is NaN"


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def confirm(
    base_url: str, model: str, flags: Sequence[str], reported: Mapping[str, Any], version: str | None = None
) -> None:
    """Hold what the server reports to what was asked for: model, version, parsers, decisive flags.

    Raises `Mismatch` naming every difference.
    """
    found = differences(flags, reported)
    path = str(reported.get("model_path"))
    # SGLang copies a model from an object store to a local folder and reports that one.
    if "://" not in model and not same_path(model, path):
        found.insert(0, f"asked for the model {model!r}, the server reports {path!r}")
    if version and reported.get("version") not in (None, version):
        found.append(f"SGLang {version} was started, the server reports {reported['version']}")
    if found:
        raise Mismatch(
            "the server is not the one that was asked for",
            where=base_url + "/server_info",
            why="; ".join(found),
            remedy="correct the flags; if they are right, another server answers on this port",
        )
