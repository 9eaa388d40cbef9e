"""The loss registry: every named way in which parsed fields fail to determine the tokens.

Place in the flow: data of the judge. Imports `contracts.records` only. Help, docs, report and JSON derive
from this table; it is the one place where a loss is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from contracts.records import VERDICT_ORDER, Loss, Verdict


@dataclass(frozen=True, slots=True)
class LossSpec:
    """One loss: its name, the verdict that it brings, what it means and what to do about it."""

    name: str
    verdict: Verdict
    meaning: str
    remedy: str


_C, _L, _N, _T, _U = (
    Verdict.CONTRADICTED,
    Verdict.LOSSY,
    Verdict.NORMALIZED,
    Verdict.TEXT_EXACT,
    Verdict.UNPROVEN,
)
_IDS = "train on the captured token ids, not on the fields"
_REGENERATE = "generate these rows again; what the engine reported is not what the model sampled"

_SPECS = (
    # captured
    LossSpec(
        "ids-missing",
        _U,
        "the response carries no token ids of the engine",
        "ask for them (`return_token_ids`, or record through `/generate`); older servers need an upgrade",
    ),
    LossSpec(
        "invented-token",
        _C,
        "the engine replaced a NaN or out-of-range sample by a stop token",
        f"{_REGENERATE}; look for NaN in the server log",
    ),
    LossSpec(
        "token-out-of-range",
        _C,
        "a token id lies outside the tokenizer's vocabulary",
        f"{_REGENERATE}; check that the tokenizer is the model's own",
    ),
    LossSpec(
        "token-after-end",
        _C,
        "tokens follow the first end token",
        "cut the row at its first end token, or boot without `--ignore-eos` and the like",
    ),
    LossSpec(
        "script-not-followed",
        _C,
        "the emitted token ids differ from the scripted ones",
        "boot with `--enable-custom-logit-processor --disable-overlap-schedule`, without speculation",
    ),
    LossSpec(
        "finish-contradicted",
        _C,
        "the finish reason says something the token ids do not",
        "do not filter by finish reason; read the end of the token ids instead",
    ),
    LossSpec(
        "text-differs",
        _C,
        "the text as served is not what the token ids decode to",
        "compare the tokenizer with the server's; ask with `skip_special_tokens=false`",
    ),
    # reasoning
    LossSpec(
        "reasoning-in-content",
        _C,
        "the model's reasoning arrived inside `content`",
        "boot the server with `--reasoning-parser {reasoning_parser}`",
    ),
    LossSpec(
        "content-in-reasoning",
        _C,
        "the model's answer arrived inside `reasoning_content`",
        "send the template switch `{template_switch}` that the prompt was rendered with, and do not "
        "constrain the output of a thinking model by a grammar",
    ),
    LossSpec(
        "reasoning-altered",
        _L,
        "the reasoning differs from what the model generated, by more than white space",
        _IDS,
    ),
    LossSpec(
        "reasoning-stripped",
        _N,
        "white space around the reasoning was stripped",
        f"upgrade SGLang (0.5.13.post1 stopped it), or {_IDS}",
    ),
    LossSpec(
        "opener-undetermined", _L, "the fields do not tell whether an opening think marker was there", _IDS
    ),
    LossSpec("closer-undetermined", _L, "the fields do not tell whether the thinking was closed", _IDS),
    # markers
    LossSpec(
        "marker-leaked",
        _C,
        "a marker of the format, generated as one, arrived as plain text of a field",
        "boot with `--reasoning-parser {reasoning_parser} --tool-call-parser {tool_parser}` and declare "
        "the tools in the request; keep such rows out of text training",
    ),
    LossSpec(
        "call-in-reasoning",
        _C,
        "a tool call stands inside the reasoning that the model never closed before it",
        _IDS,
    ),
    # content
    LossSpec("content-altered", _L, "the content differs from what the model generated", _IDS),
    LossSpec("content-stripped", _N, "white space around the content was stripped", _IDS),
    LossSpec("text-after-call-dropped", _L, "text after the tool calls was dropped", _IDS),
    LossSpec("text-between-calls-dropped", _L, "text between tool calls was dropped", _IDS),
    # calls
    LossSpec(
        "call-dropped",
        _C,
        "a tool call that the model made is missing from `tool_calls`",
        f"repair the request's tools or the call id's form; {_IDS}",
    ),
    LossSpec("call-invented", _C, "`tool_calls` has a call that the model did not make", _IDS),
    LossSpec("call-name-rewritten", _C, "a call's function name is not the one that the model wrote", _IDS),
    LossSpec("arguments-altered", _L, "a call's arguments mean something other than the model wrote", _IDS),
    LossSpec("arguments-respelled", _N, "a call's arguments are the same JSON in another spelling", _IDS),
    LossSpec("call-id-rewritten", _N, "a call's id was regenerated by the server", _IDS),
    LossSpec("call-whitespace", _N, "white space around the tool-call markers was dropped", _IDS),
    LossSpec(
        "call-respelled",
        _N,
        "the wrapping of a call is not the family's own spelling (white space, key order)",
        _IDS,
    ),
    LossSpec("call-malformed", _L, "a tool-call section that is not well formed was cut or joined", _IDS),
    LossSpec("section-lost", _L, "a tool-call section without a call in it is gone", _IDS),
    LossSpec("order-lost", _L, "the fields do not tell the order in which the parts came", _IDS),
    # end and tokens
    LossSpec("end-undetermined", _L, "the fields do not tell which end token, if any, came", _IDS),
    LossSpec(
        "stop-string-trimmed",
        _L,
        "the server cut the response at a stop string; the tokens go on past the cut",
        "ask without stop strings, or train on the captured token ids",
    ),
    LossSpec("incomplete-utf8", _L, "bytes that are not valid UTF-8 became replacement characters", _IDS),
    LossSpec(
        "noncanonical-split",
        _T,
        "the sampler split the same bytes into other tokens than the tokenizer does",
        "nothing: harmless where the shard stores the token ids",
    ),
    LossSpec(
        "marker-spelled",
        _T,
        "a marker's text was generated in ordinary tokens, and encodes to the marker's own token",
        "nothing: harmless where the shard stores the token ids",
    ),
    LossSpec(
        "tokenizer-normalizes",
        _T,
        "the tokenizer normalises the text before it encodes it (Unicode NFC, say)",
        "nothing: harmless where the shard stores the token ids",
    ),
    # mended without ids
    LossSpec(
        "opener-assumed",
        _U,
        "thinking was split off the content on the assumption that the opener had been in the prompt",
        "generate these rows again, from a server with `--reasoning-parser {reasoning_parser}`",
    ),
    LossSpec(
        "tags-assumed-doubled",
        _U,
        "a think marker was taken away on the assumption that a template had written it a second time",
        "generate these rows again; render with one template, and only once",
    ),
    # transport and parser
    LossSpec(
        "stream-differs",
        _L,
        "the streamed fields differ from the non-streamed ones for the same tokens",
        "record without streaming, or through `/generate`",
    ),
    LossSpec(
        "parser-failed",
        _C,
        "the server's parser raised an error on this output",
        "record through `/generate`, where no parser runs; report the case to SGLang",
    ),
)

ASSUMED = ("opener-assumed", "tags-assumed-doubled")
"""The losses that `shardgate repair` names where it mended a row on request, without proof."""

LOSSES: Mapping[str, LossSpec] = MappingProxyType({spec.name: spec for spec in _SPECS})


def worst(losses: Iterable[Loss]) -> Verdict:
    """Return the worst verdict that the named losses bring; `exact` when there are none."""
    found = {LOSSES[loss.name].verdict for loss in losses}
    return next((verdict for verdict in VERDICT_ORDER if verdict in found), Verdict.EXACT)
