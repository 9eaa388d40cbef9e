"""What follows from the outcomes: the flags to boot with, what to record with, which fields to trust.

Place in the flow: after the judge, before the report. May import `contracts` (records, losses, formats) and
`harness.outcomes`. Every sentence comes from a count; where nothing was measured it says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from contracts.formats import Format, format_named
from contracts.losses import LOSSES
from contracts.records import VERDICT_ORDER, Loss, Mode, SegmentKind, ServerFacts, Transport, Verdict
from harness.outcomes import FieldTrust, Outcome, Recommendation

REASONING_FLAG = "--reasoning-parser"
TOOL_FLAG = "--tool-call-parser"
RECORD_WITH = "generate"

_FIELDS = {
    Mode.RAW: ("content",),
    Mode.REASONING: ("reasoning_content", "content"),
    Mode.TOOLS: ("reasoning_content", "content", "tool_calls"),
}
_UNTRUSTED = (Verdict.CONTRADICTED, Verdict.UNPROVEN, Verdict.LOSSY)
# The losses under which the ids themselves are no truth to train on.
_IDS_IN_DOUBT = frozenset(
    {"ids-missing", "invented-token", "token-out-of-range", "token-after-end", "script-not-followed"}
)
_SEGMENT_FIELD = {
    SegmentKind.OPENER: "reasoning_content",
    SegmentKind.REASONING: "reasoning_content",
    SegmentKind.CLOSER: "reasoning_content",
    SegmentKind.CONTENT: "content",
    SegmentKind.TOOL_SECTION: "tool_calls",
}


@dataclass(frozen=True, slots=True)
class _Served:
    """One server's label, facts and judged outcomes."""

    label: str
    facts: ServerFacts | None
    outcomes: tuple[Outcome, ...]

    def in_mode(self, *modes: Mode) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.mode in modes)


def recommend(
    facts: tuple[ServerFacts, ...] | ServerFacts,
    outcomes: Iterable[Outcome],
    format_name: str | None,
    *,
    mismatches: Sequence[str] = (),
) -> Recommendation:
    """Derive the recommendation from what was measured.

    Args:
        facts: the server, or the servers, that the outcomes come from.
        outcomes: all outcomes; those with a fault are counted and not judged.
        format_name: as `contracts.formats.format_named` takes it; None where the format is not known.
        mismatches: what speaks against the parsers that the server was booted with; told first.
    """
    every = tuple(outcomes)
    known = facts if isinstance(facts, tuple) else (facts,)
    form = format_named(format_name) if format_name else None
    judged = tuple(outcome for outcome in every if outcome.fault is None)
    servers = _served(known, judged)
    called_out = (*mismatches, *(line for server in servers for line in _called_out(server, form)))
    flags = _flags(servers, form)
    return Recommendation(
        headline=_headline(called_out, judged, flags),
        flags=flags,
        record_with=RECORD_WITH,
        fields=_trust(servers),
        reasons=(
            *called_out[1:],
            *_with_parser(servers, form),
            _why_generate(judged),
            *_loss_lines(judged, form),
            *_fault_lines(every),
        ),
    )


def _served(facts: Sequence[ServerFacts], outcomes: Sequence[Outcome]) -> tuple[_Served, ...]:
    labels = dict.fromkeys(outcome.server for outcome in outcomes)
    return tuple(
        _Served(label, _facts_of(label, facts), tuple(o for o in outcomes if o.server == label))
        for label in labels
    )


def _facts_of(label: str, facts: Sequence[ServerFacts]) -> ServerFacts | None:
    if len(facts) == 1:
        return facts[0]
    for fact in facts:
        if urlsplit(fact.base_url).netloc == label:
            return fact
    bare = label.startswith("no ")
    return next((fact for fact in facts if (fact.reasoning_parser is None) is bare), None)


def _called_out(server: _Served, form: Format | None) -> tuple[str, ...]:
    """Return what is wrong with how the server was booted, as its outcomes show it; the worst first."""
    lines = []
    parsed = server.in_mode(Mode.REASONING, Mode.TOOLS)
    facts = server.facts
    hidden = _prompts_with(parsed, "reasoning-in-content")
    parser = facts.reasoning_parser if facts else None
    # With the right parser on, hidden reasoning is the parser's loss on that output, not a wrong boot.
    right = form.reasoning_parser if form else None
    if hidden and not (parser and (form is None or parser in form.reasoning_parsers)):
        booted = _booted(parser, REASONING_FLAG)
        lines.append(
            f"{_name(server)} was booted {booted}: in {_of(hidden, parsed)} the model's reasoning arrived "
            f"inside `content`. Boot it with {_flag(REASONING_FLAG, right)}."
        )
    asked = server.in_mode(Mode.TOOLS)
    markup = _prompts_with(asked, "marker-leaked", "call-dropped")
    if markup and not (facts and facts.tool_parser):
        booted = _booted(None, TOOL_FLAG)
        lines.append(
            f"{_name(server)} was booted {booted}: in {_of(markup, asked)} tool calls arrived as markup or "
            f"not at all. Boot it with {_flag(TOOL_FLAG, form.tool_parser if form else None)}."
        )
    return tuple(lines)


def _name(server: _Served) -> str:
    return f"the server `{server.label}`"


def _booted(parser: str | None, flag: str) -> str:
    return f"with `{flag} {parser}`" if parser else f"without `{flag}`"


def _flag(flag: str, parser: str | None) -> str:
    return f"`{flag} {parser}`" if parser else f"`{flag}` and the parser that SGLang lists for this model"


def _prompts_with(outcomes: Sequence[Outcome], *names: str) -> set[str]:
    return {o.prompt for o in outcomes if any(loss.name in names for loss in o.losses)}


def _of(prompts: set[str], outcomes: Sequence[Outcome]) -> str:
    return f"{len(prompts)} of {len({outcome.prompt for outcome in outcomes})} prompts"


def _flags(servers: Sequence[_Served], form: Format | None) -> tuple[str, ...]:
    """Return the parser flags that the outcomes speak for; none that did harm where it was on."""
    if form is None:
        return ()
    flags: list[str] = []
    for flag, parser, mode, on in (
        (REASONING_FLAG, form.reasoning_parser, Mode.REASONING, lambda fact: fact.reasoning_parser),
        (TOOL_FLAG, form.tool_parser, Mode.TOOLS, lambda fact: fact.tool_parser),
    ):
        if (
            parser
            and any(server.in_mode(mode) for server in servers)
            and not _harms(servers, mode, parser, on)
        ):
            flags += [flag, parser]
    return tuple(flags)


def _harms(
    servers: Sequence[_Served], mode: Mode, parser: str, on: Callable[[ServerFacts], str | None]
) -> bool:
    """Tell whether the parser, where it was on, contradicted every response of its mode."""
    tried = [
        o for server in servers if server.facts and on(server.facts) == parser for o in server.in_mode(mode)
    ]
    return bool(tried) and all(outcome.verdict is Verdict.CONTRADICTED for outcome in tried)


def _headline(called_out: Sequence[str], judged: Sequence[Outcome], flags: Sequence[str]) -> str:
    if called_out:
        return called_out[0][:1].upper() + called_out[0][1:]
    if not judged:
        return "nothing was measured: no response could be judged"
    worst = Counter(outcome.verdict for outcome in judged)
    boot = f"Boot with `{' '.join(flags)}`, record" if flags else "Record"
    agree = f"{worst[Verdict.EXACT] + worst[Verdict.TEXT_EXACT]} of {len(judged)} responses"
    return (
        f"{boot} with `{RECORD_WITH}` and train on the token ids: the fields alone give back the text of "
        f"{agree}, {worst[Verdict.CONTRADICTED]} contradict it."
    )


def _with_parser(servers: Sequence[_Served], form: Format | None) -> tuple[str, ...]:
    """Return what the parsers cost where they were on: per mode, how many prompts each loss hit."""
    lines = []
    for server in servers:
        if server.facts is None:
            continue
        for mode, flag, parser in (
            (Mode.REASONING, REASONING_FLAG, server.facts.reasoning_parser),
            (Mode.TOOLS, TOOL_FLAG, server.facts.tool_parser),
        ):
            outcomes = server.in_mode(mode)
            if parser and outcomes:
                lines.append(f"`{flag} {parser}` ({_name(server)}): {_verdict_words(outcomes)}")
    return tuple(lines)


def _verdict_words(outcomes: Sequence[Outcome]) -> str:
    """Return e.g. `3 of 9 prompts lossy: text-after-call-dropped (2), order-lost; the others exact`."""
    total = len({outcome.prompt for outcome in outcomes})
    parts = []
    for verdict in VERDICT_ORDER:
        hit = [outcome for outcome in outcomes if outcome.verdict is verdict]
        if not hit or verdict in (Verdict.EXACT, Verdict.TEXT_EXACT):
            continue
        prompts = {outcome.prompt for outcome in hit}
        names = Counter(
            loss.name for outcome in hit for loss in _distinct(outcome.losses) if _brings(loss, verdict)
        )
        told = ", ".join(name if count == 1 else f"{name} ({count})" for name, count in names.most_common())
        parts.append(f"{len(prompts)} of {total} prompts {verdict}: {told or 'no loss named'}")
    if not parts:
        return f"nothing lost in {total} of {total} prompts"
    return "; ".join(parts)


def _distinct(losses: Sequence[Loss]) -> tuple[Loss, ...]:
    return tuple({loss.name: loss for loss in losses}.values())


def _brings(loss: Loss, verdict: Verdict) -> bool:
    spec = LOSSES.get(loss.name)
    return spec is not None and spec.verdict is verdict


def _why_generate(judged: Sequence[Outcome]) -> str:
    direct = [outcome for outcome in judged if outcome.transport is Transport.GENERATE]
    doubted = sum(any(loss.name in _IDS_IN_DOUBT for loss in outcome.losses) for outcome in direct)
    measured = (
        f"the engine's own ids in {len(direct) - doubted} of {len(direct)} responses"
        if direct
        else "not measured in this run"
    )
    return (
        "record with `/generate` and the prompt's `input_ids`: it hands out the engine's token ids and text, "
        f"and no parser stands in the way ({measured})"
    )


def _field_of(loss: Loss) -> frozenset[str]:
    """Return the fields that a loss touches: those that its name speaks of, else its segment's."""
    words = set(loss.name.split("-"))
    touched = set()
    if words & {"reasoning", "opener", "closer"}:
        touched.add("reasoning_content")
    if words & {"content", "text"}:
        touched.add("content")
    if words & {"call", "arguments", "section"} and "text" not in words:
        touched.add("tool_calls")
    if not touched and loss.segment in _SEGMENT_FIELD:
        touched.add(_SEGMENT_FIELD[loss.segment])
    return frozenset(touched)


def _trust(servers: Sequence[_Served]) -> tuple[FieldTrust, ...]:
    lines = []
    for server in servers:
        where = f" ({server.label})" if len(servers) > 1 else ""
        if server.outcomes:
            lines.append(_ids_trust(server.outcomes, where))
        for mode, fields in _FIELDS.items():
            outcomes = server.in_mode(mode)
            if outcomes:
                lines += [_field_trust(outcomes, mode, field, where, server.facts) for field in fields]
    return tuple(lines)


def _ids_trust(outcomes: Sequence[Outcome], where: str) -> FieldTrust:
    names = Counter(loss.name for o in outcomes for loss in _distinct(o.losses) if loss.name in _IDS_IN_DOUBT)
    doubted = sum(any(loss.name in _IDS_IN_DOUBT for loss in o.losses) for o in outcomes)
    why = f"the engine's own ids in {len(outcomes) - doubted} of {len(outcomes)} responses"
    if names:
        why += f"; {', '.join(f'{name} ({count})' for name, count in names.most_common())}"
    return FieldTrust(f"response_token_ids{where}", not doubted, why)


def _field_trust(
    outcomes: Sequence[Outcome], mode: Mode, field: str, where: str, facts: ServerFacts | None
) -> FieldTrust:
    broken: Counter[str] = Counter()
    prompts = set()
    for outcome in outcomes:
        for loss in _distinct(outcome.losses):
            spec = LOSSES.get(loss.name)
            if spec is None or (
                spec.verdict in _UNTRUSTED and (field in _field_of(loss) or mode is Mode.RAW)
            ):
                broken[loss.name] += 1
                prompts.add(outcome.prompt)
        if outcome.verdict in _UNTRUSTED and not outcome.losses:
            # A verdict without a named loss is a fault of ours; it must not end in trust.
            broken[str(outcome.verdict)] += 1
            prompts.add(outcome.prompt)
    total = len({outcome.prompt for outcome in outcomes})
    unfilled = {
        "reasoning_content": REASONING_FLAG if facts and not facts.reasoning_parser else None,
        "tool_calls": TOOL_FLAG if facts and not facts.tool_parser else None,
    }.get(field)
    if not broken and unfilled:
        return FieldTrust(f"{mode}: {field}{where}", False, f"never filled: booted without `{unfilled}`")
    if not broken:
        return FieldTrust(f"{mode}: {field}{where}", True, f"nothing lost in {total} of {total} prompts")
    told = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in broken.most_common())
    return FieldTrust(f"{mode}: {field}{where}", False, f"{len(prompts)} of {total} prompts: {told}")


def _loss_lines(judged: Sequence[Outcome], form: Format | None) -> tuple[str, ...]:
    """Return one line per contradiction that was met: how often, what it means, what to do.

    The other losses are counted with their parser; docs/known-losses.md tells their meaning and remedy.
    """
    counts = Counter(loss.name for outcome in judged for loss in _distinct(outcome.losses))
    specs = sorted(
        (LOSSES[name] for name in counts if name in LOSSES and LOSSES[name].verdict is Verdict.CONTRADICTED),
        key=lambda spec: (-counts[spec.name], spec.name),
    )
    return tuple(
        f"{spec.name} ({spec.verdict}, {counts[spec.name]} of {len(judged)} responses): {spec.meaning}; "
        f"{fill(spec.remedy, form)}"
        for spec in specs
    )


def fill(remedy: str, form: Format | None) -> str:
    """Return a remedy with the format's parser names and template switch in it."""
    names = {
        "{reasoning_parser}": form.reasoning_parser if form else "PARSER",
        "{tool_parser}": (form.tool_parser if form else None) or "PARSER",
        "{template_switch}": form.template_switch if form else "SWITCH",
    }
    for name, value in names.items():
        remedy = remedy.replace(name, value)
    return remedy


def _fault_lines(every: Sequence[Outcome]) -> tuple[str, ...]:
    faults = Counter(outcome.fault for outcome in every if outcome.fault is not None)
    return tuple(
        f"{count} of {len(every)} prompts got no answer to judge: {fault}" for fault, count in faults.items()
    )
