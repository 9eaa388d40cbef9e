"""The stages chained: the probe of a running server, and the whole job on this machine.

Place in the flow: above every stage, under the commands; the one module that knows them all. Heavy stages
are imported when they run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from contracts.errors import ShardgateError
from contracts.formats import Format, format_of_markers
from contracts.given import Given, load_template
from contracts.records import Capture, Judgement, Mode, Profile, ServerFacts, Transport
from contracts.tokens import Codec, load_codec
from harness.capture import derive_fields, judge_capture, served_format
from harness.client import Client
from harness.golden import GoldenPrompt, load_golden
from harness.measure import Measured, OnEvent, Plan, measure, sampled
from harness.outcomes import DemoReport, ProbeReport, ShardLine
from harness.recommend import recommend

if TYPE_CHECKING:
    from contracts.run import AuditResult
    from harness.server import BootProgress, SGLangServer

REQUEST_TIMEOUT = 300.0
"""Seconds that one request may take, its wait for others included; a server that needs longer hangs."""

CHECK_TEXT = "Hello, world! 你好 <think>1 + 1 = 2</think>\n"
"""Encoded by both sides to see that a given tokenizer is the server's."""

RECORDED = "recorded"
"""The demo's shard as it should be recorded: over `/generate`."""

WITHOUT_PARSER = "without-parser"
"""The demo's second run folder: the seed's case, a server booted without parsers."""


class WrongTokenizer(ShardgateError):
    """The tokenizer that was given encodes otherwise than the server does."""


def probe(
    base_url: str,
    *,
    tokenizer: Path | None = None,
    on_event: OnEvent,
    trust_remote_code: bool = False,
    direct: str | None = None,
    api_key: str | None = None,
) -> ProbeReport:
    """Judge a running server: sampled golden prompts, three modes, one recommendation.

    With `direct`, `base_url` is a gateway in front of that server: the prompts are asked of the server
    itself, and what gets lost on the way through the gateway is told beside. `api_key` is sent, never kept.

    Raises:
        ShardgateError: nobody listens, it is no SGLang, it dies or hangs on the way, its format is unknown,
            or the given tokenizer is not the server's.
    """
    from harness.gateway import compare
    from harness.server import attach
    from harness.server.mismatch import mismatches

    on_event("attach", {"message": direct or base_url})
    server = attach(direct or base_url, api_key=api_key)
    if server.facts.engine_version is None:
        raise ShardgateError(
            what="this is a gateway, not the server itself",
            where=server.base_url,
            why="its /server_info does not tell SGLang's version, so neither parsers nor flags can be known",
            remedy="give the server's own URL beside it: shardgate probe GATEWAY --direct SERVER",
        )
    gateway = None
    if direct is not None:
        gateway = compare(
            server.base_url, base_url, api_key=api_key, timeout=REQUEST_TIMEOUT, on_event=on_event
        )
    codec, notes = _codec_for(server.base_url, tokenizer, trust_remote_code, api_key)
    doubts = mismatches(server.facts, codec.token_id)
    # Under parsers of another family the vocabulary tells whose output it is.
    fmt = (format_of_markers(codec.token_id) if doubts else None) or served_format(server.facts, codec)
    if fmt is None:
        raise ShardgateError(
            what="the model's format is not known to shardgate",
            where=base_url,
            why=f"neither its parsers ({server.facts.reasoning_parser}, {server.facts.tool_parser}) nor the "
            "markers of its vocabulary belong to a mapped format",
            remedy="add the family (docs/adding-a-format.md)",
        )
    label = urlsplit(server.base_url).netloc
    for doubt in doubts:
        on_event("attach", {"message": f"{doubt.what}: {doubt.remedy}"})
    plan = Plan(label=label)
    goldens = sampled(load_golden())
    found = _measure(server.base_url, server.facts, goldens, plan, codec, fmt, on_event, api_key=api_key)
    outcomes = tuple(one.outcome for one in found)
    told = tuple(f"the server `{label}`: {doubt.what}; {doubt.why}. {doubt.remedy}." for doubt in doubts)
    advice = recommend(server.facts, outcomes, fmt.name, mismatches=told)
    return ProbeReport(server.facts, outcomes, advice, notes, gateway)


def _codec_for(
    base_url: str, tokenizer: Path | None, trust: bool, api_key: str | None
) -> tuple[Codec, tuple[str, ...]]:
    from harness.server_codec import ServerCodec

    served = ServerCodec(base_url, api_key=api_key)
    if tokenizer is None:
        return served, ("tokens were read through the server's own /tokenize and /detokenize",)
    codec = load_codec(tokenizer, trust_remote_code=trust)
    try:
        theirs = served.encode(CHECK_TEXT)
    except ShardgateError:
        return codec, ("the server has no /tokenize to compare the given tokenizer with",)
    if theirs != codec.encode(CHECK_TEXT):
        raise WrongTokenizer(
            what="the given tokenizer is not the server's",
            where=str(tokenizer),
            why="the same text encodes to other token ids on the server",
            remedy="give the tokenizer folder of the model that the server serves",
        )
    return codec, ()


def _measure(
    base_url: str,
    facts: ServerFacts,
    goldens: Sequence[GoldenPrompt],
    plan: Plan,
    codec: Codec,
    fmt: Format,
    on_event: OnEvent,
    concurrency: int = 8,
    api_key: str | None = None,
) -> list[Measured]:
    async def ask() -> list[Measured]:
        async with Client(
            base_url, facts=facts, timeout=REQUEST_TIMEOUT, concurrency=concurrency, api_key=api_key
        ) as client:
            return await measure(client, goldens, plan, codec=codec, fmt=fmt, on_event=on_event)

    return asyncio.run(ask())


def run_demo(target: Path, *, on_event: OnEvent) -> DemoReport:
    """Do the whole job on this machine into the run folder `target`; see `harness.runs` for what is in it.

    Raises:
        ShardgateError: SGLang is not installed, a boot fails, the folder is taken or can't be written.
    """
    from harness.models import demo_model
    from harness.report.data import plain
    from harness.report.html import write_html
    from harness.runs import RUN_FILE, run_folder, write_json
    from harness.server import load_deployment

    seconds: dict[str, float] = {}
    with _clock(seconds, "model"):
        model = demo_model(on_progress=lambda message: on_event("model", {"message": message}))
    codec = load_codec(model)
    goldens = load_golden()
    with run_folder(target) as folder:
        plans = (
            ("demo", Plan(label="parsers")),
            ("demo-plain", Plan(label="no parsers", modes=(Mode.REASONING,), generate=False, unparsed=True)),
        )
        with _clock(seconds, "boot and capture"):
            served = _side_by_side(
                [
                    (
                        load_deployment(name).server,
                        plan,
                        folder / f"server-{plan.label.replace(' ', '-')}.log",
                    )
                    for name, plan in plans
                ],
                lambda server, plan: _serve_and_measure(server, plan, goldens, codec, on_event),
                on_event,
            )
        servers, measured = [facts for facts, _ in served], [found for _, found in served]
        fmt = served_format(servers[0], codec)
        assert fmt is not None
        with _clock(seconds, "certify"):
            given = Given(template=load_template(model))
            shards, certificate = _certify(
                folder, target, measured[0], measured[1], codec, fmt, given, on_event
            )
        outcomes = tuple(one.outcome for found in measured for one in found)
        report = DemoReport(
            servers=tuple(servers),
            results=outcomes,
            shards=shards,
            recommendation=recommend(tuple(servers), outcomes, fmt.name),
            certificate=None if certificate is None else str(target / certificate),
            run_folder=str(target),
            seconds={name: round(value, 1) for name, value in seconds.items()},
        )
        write_html(folder / "report.html", report)
        write_json(folder / RUN_FILE, plain(report))
    return report


@contextmanager
def _clock(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.monotonic() - start


Answer = tuple[ServerFacts, list[Measured]]


def _side_by_side(
    plans: Sequence[tuple[Callable[..., SGLangServer], Plan, Path]],
    work: Callable[[SGLangServer, Plan], Answer],
    on_event: OnEvent,
) -> list[Answer]:
    """Boot the servers beside each other, one thread each, and measure each as soon as it is ready.

    Whatever ends one of them, Ctrl-C included, ends all: no server outlives the call.
    """
    servers = [
        make(log_path=log, on_progress=partial(_booting, on_event, plan.label)) for make, plan, log in plans
    ]
    with ThreadPoolExecutor(len(servers)) as pool:
        try:
            futures = [
                pool.submit(work, server, plan) for server, (_, plan, _) in zip(servers, plans, strict=True)
            ]
            wait(futures, return_when=FIRST_EXCEPTION)
            failed = [future for future in futures if future.done() and future.exception() is not None]
            return [future.result() for future in failed or futures]
        finally:
            for server in servers:
                server.stop()


def _booting(on_event: OnEvent, label: str, progress: BootProgress) -> None:
    facts = {"message": f"{label}: {progress.phase}", "elapsed": progress.elapsed}
    on_event("boot", facts | progress.facts())


def _serve_and_measure(
    server: SGLangServer, plan: Plan, goldens: Sequence[GoldenPrompt], codec: Codec, on_event: OnEvent
) -> Answer:
    with server:
        facts = server.facts()
        fmt = served_format(facts, codec)
        if fmt is None:
            raise ShardgateError(what="the demo model's markers are not those of a mapped format")
        try:
            found = _measure(server.base_url, facts, goldens, plan, codec, fmt, on_event, concurrency=48)
        except ShardgateError:
            server.check()
            raise
    return facts, found


Judged = tuple[Capture, Judgement]


def _certify(
    folder: Path,
    target: Path,
    parsed: Sequence[Measured],
    unparsed: Sequence[Measured],
    codec: Codec,
    fmt: Format,
    given: Given,
    on_event: OnEvent,
) -> tuple[tuple[ShardLine, ...], str | None]:
    """Write three shards (recorded, as an application sees it, the seed's case); certify what holds."""
    from contracts.run import audit
    from harness.report.audit_html import render_audit
    from harness.report.files import write_report
    from harness.runs import AUDIT_PAGE, write_rows

    second = folder / WITHOUT_PARSER
    seen: Counter[tuple[int, ...]] = Counter()
    plan = (
        (folder / "shards" / f"{RECORDED}-00000.parquet", _numbered(_recorded(parsed, codec, fmt), seen)),
        (folder / "shards" / "chat-00000.parquet", _numbered(_as_application(parsed), seen)),
        (second / "shards" / "chat-00000.parquet", _numbered(_pairs(unparsed), Counter())),
    )
    for number, (path, rows) in enumerate(plan):
        on_event("shards", {"message": path.name, "done": number, "total": len(plan)})
        write_rows(path, rows, fmt=fmt, source="golden prompts")
    lines: list[ShardLine] = []
    certificate = None
    for base in (folder, second):
        on_event("contract", {"message": f"{base.name}: rules over every row"})
        result = audit([base / "shards"], profile=Profile.TEST, codec=codec, given=given, certify=base)
        lines += _lines(result, folder)
        if base == folder:
            # The folder has another name until it is whole.
            page = render_audit(result).replace(str(folder), str(target))
            write_report(folder / AUDIT_PAGE, page, "HTML")
            certificate = Path(result.certificate).name if result.certificate else None
    return tuple(lines), certificate


def _recorded(measured: Iterable[Measured], codec: Codec, fmt: Format) -> list[Judged]:
    out = []
    for one in measured:
        if one.capture is None or one.capture.transport is not Transport.GENERATE:
            continue
        capture, extra = derive_fields(one.capture, codec=codec, fmt=fmt)
        out.append((capture, judge_capture(capture, codec=codec, fmt=fmt, extra=extra)))
    return out


def _as_application(measured: Iterable[Measured]) -> list[Judged]:
    """Return the chat captures as an application asks for them: with tools where the prompt has some."""
    from harness.capture import parsed_mode

    return _pairs(
        one
        for one in measured
        if one.capture is not None
        and one.capture.transport is Transport.CHAT
        and one.capture.mode is parsed_mode(one.capture)
    )


def _pairs(measured: Iterable[Measured]) -> list[Judged]:
    return [(one.capture, one.judgement) for one in measured if one.capture and one.judgement]


def _numbered(judged: Iterable[Judged], seen: Counter[tuple[int, ...]]) -> list[Judged]:
    """Tell the generations of one prompt in one set apart by their sample index; `seen` counts them."""
    out = []
    for capture, judgement in judged:
        key = capture.prompt_token_ids or ()
        out.append((replace(capture, sample_index=seen[key]), judgement))
        seen[key] += 1
    return out


def _lines(result: AuditResult, folder: Path) -> list[ShardLine]:
    return [
        ShardLine(
            shard=str(Path(shard.shard).relative_to(folder)),
            rows=shard.rows,
            certified=shard.certified,
            quarantined=shard.quarantined,
            contract=result.contract,
            rules_fired=shard.rules_fired,
        )
        for shard in result.shards
    ]
