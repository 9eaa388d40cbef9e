"""The reference pages of the docs, written from the registries: what they list is listed once.

Place in the flow: beside the reports; `make docs` runs it. May import `contracts`, `harness.outcomes`,
`harness.paths`, fixtures.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from contracts.formats import FORMATS
from contracts.losses import LOSSES
from contracts.records import VERDICT_ORDER, Profile
from harness.outcomes import MatrixReport, matrix_of
from harness.paths import fixtures_dir

_GENERATED = "<!-- Written by `make docs` from the registries; edit those. -->"


def known_losses() -> str:
    """Return `docs/known-losses.md`: each loss with verdict, meaning and remedy, each format's grammar."""
    lines = [
        "# Known losses",
        "",
        _GENERATED,
        "",
        "Every verdict but `exact` names at least one of these. `PARSER` and `SWITCH` stand for the names",
        "that the model's format has; `shardgate probe` puts them in.",
        "",
    ]
    for verdict in VERDICT_ORDER:
        specs = [spec for spec in LOSSES.values() if spec.verdict is verdict]
        if specs:
            rows = ((f"`{spec.name}`", spec.meaning, _placeholders(spec.remedy)) for spec in specs)
            lines += [f"## `{verdict}`", "", *_table(("loss", "what it means", "what to do"), rows), ""]
    lines += ["## Formats, and where each is `exact`", ""]
    for form in FORMATS.values():
        parsers = ", ".join(f"`{name}`" for name in form.reasoning_parsers)
        tools = ", ".join(f"`{name}`" for name in form.tool_parsers) or "none known"
        lines += [
            f"### `{form.name}`",
            "",
            f"Models: {', '.join(form.models)}. Reasoning parsers: {parsers}; tool-call parsers: {tools}.",
            "",
            f"Safe grammar: {form.safe_grammar}",
            "",
        ]
    lines += _matrix()
    lines += ["Each loss as a token stream: [counterexamples](counterexamples.md).", ""]
    return "\n".join([*lines, *_three_boots(), *_routers()]).rstrip() + "\n"


def matrix() -> str:
    """Return `docs/matrix.md`: what each pair of parsers loses, with the smallest example of each loss."""
    from harness.report.matrix import losses_markdown, table_markdown

    report = recorded_matrix()
    lines = [
        "# Fidelity matrix",
        "",
        _GENERATED,
        "",
        "What `shardgate matrix` measured; `make matrix` measures it anew. Streams inside a family's safe",
        "grammar must all be exact; outside it every loss has a name. The examples are the smallest that",
        "were met; markers are shown as the family writes them.",
        "",
        *table_markdown(report),
        "",
        *losses_markdown(report),
    ]
    return "\n".join(lines).rstrip() + "\n"


def recorded_matrix() -> MatrixReport:
    """Return the newest matrix that `fixtures/matrix/` keeps."""
    newest = max((fixtures_dir() / "matrix").glob("sglang-*.json"))
    return matrix_of(json.loads(newest.read_text(encoding="utf-8")))


def _matrix() -> list[str]:
    from harness.report.matrix import table_markdown

    report = recorded_matrix()
    return [
        f"## The parsers of SGLang {report.engine_version}",
        "",
        "Each pair of parsers, measured by `shardgate matrix`: streams of its safe grammar that came",
        "out exact, whole and streamed, and disturbed ones whose streamed fields equal the whole answer's.",
        "What was lost, with the smallest example of each loss: [matrix.md](matrix.md).",
        "",
        *table_markdown(report),
        "",
    ]


def _three_boots() -> list[str]:
    """Return what `fixtures/three-boots.toml` says of one boot in place of three, as two tables."""
    pairs = tomllib.loads((fixtures_dir() / "three-boots.toml").read_text(encoding="utf-8"))["pair"]

    def side(found: list[str]) -> str:
        return f"{found[1]} ({found[0]})"

    named = [(pair, one) for pair in pairs for one in pair.get("difference", ())]
    return [
        "## One boot in place of three",
        "",
        "On a server with both parsers the switches of a request stand for a boot without them: the same",
        "bodies to servers booted with both parsers, a reasoning parser only, and none",
        "(`tests/server/test_three_boots.py`, SGLang 0.5.23; `fixtures/three-boots.toml`). `plain` is what",
        "an application sends that sets no switch. The same in every field, finish reason and ids:",
        "",
        *_table(
            ("asked for (of a boot with)", "and asked for (of a boot with)"),
            ((side(pair["left"]), side(pair["right"])) for pair in pairs if "difference" not in pair),
        ),
        "",
        "Not the same, and why:",
        "",
        *_table(
            ("difference", "between", "in", "what happens", "what to do"),
            (
                (
                    f"`{one['name']}`",
                    f"{side(pair['left'])} and {side(pair['right'])}",
                    ", ".join((*one.get("parts", ()), *one.get("whole_only", ()))),
                    one["what"],
                    one["then"],
                )
                for pair, one in named
            ),
        ),
        "",
    ]


def _routers() -> list[str]:
    """Return what `fixtures/gateways.toml` says that released gateways lose, one table each."""
    known = tomllib.loads((fixtures_dir() / "gateways.toml").read_text(encoding="utf-8"))
    told = {_field_name(one): one for one in known["request"]}
    told |= {one["paths"][0]: one for one in known["endpoint"]}
    lines = [
        "## Routers",
        "",
        "What a router between client and server loses (`shardgate probe URL --direct SERVER_URL`,",
        "[gateways.md](gateways.md)), measured before a real server (`tests/server/test_gateway.py`).",
        "",
    ]
    for one in known["measured"]:
        rows = []
        for finding in one["findings"]:
            spec = told[finding.partition(": ")[2]]
            needed = "yes" if spec.get("needed") else "no"
            rows.append((f"`{finding}`", needed, spec["consequence"], spec["remedy"]))
        heads = ("finding", "needed for recording", "what follows", "what to do")
        lines += [
            f"### {one['package']} {one['version']}, {one['mode']} mode, SGLang {one['engine']}",
            "",
            *_table(heads, rows),
            "",
        ]
    return lines


def _field_name(one: dict[str, str]) -> str:
    path = one.get("path", "chat")
    return one["field"] if path == "chat" else f"{path} {one['field']}"


def counterexamples() -> str:
    """Return `docs/counterexamples.md`: the cases and faults that `fixtures/counterexamples/` keeps."""
    folder = fixtures_dir() / "counterexamples"
    cases: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.toml")):
        for case in tomllib.loads(file.read_text(encoding="utf-8")).get("case", ()):
            cases.setdefault(case.get("format", "kimi_k2"), []).append(case)
    faults = tomllib.loads((folder / "faults.toml").read_text(encoding="utf-8"))["fault"]
    lines = [
        "# Counterexamples",
        "",
        _GENERATED,
        "",
        "Token streams that SGLang's parsers lose, or were reported to lose, each as small as it shows;",
        "they are kept in `fixtures/counterexamples/`. To replay them through the installed SGLang, as the",
        "suite does:",
        "",
        "```bash",
        "shardgate bank                       # exits 1 when a verdict or its losses changed",
        "shardgate bank 'NAME'                # only this case",
        "shardgate bank --accept 'NAME'       # write what it showed into its file",
        "shardgate bank --accept --all        # the same for every case that changed",
        "shardgate bank --folder MINE --json  # a bank of your own, in files of the same form",
        "```",
        "",
    ]
    for name in sorted(cases, key=lambda name: (name != "kimi_k2", name)):
        rows = (
            (
                case["name"].removeprefix(f"{name}: "),
                f"{case.get('version', '?')}{', streamed' if 'chunks' in case else ''}",
                case.get("verdict", "not recorded"),
                ", ".join(f"`{loss}`" for loss in case.get("losses", ())) or "none",
                case.get("report", ""),
            )
            for case in cases[name]
        )
        heads = ("what the model does", "SGLang", "verdict", "losses", "reported as")
        lines += [f"## `{name}`", "", *_table(heads, rows), ""]
    held = ((f["package"], f["what"], f["then"], f"`{f['held_by']}`") for f in faults)
    columns = ("package", "what happens", "what shardgate does", "held by")
    lines += ["## Faults of other packages", "", *_table(columns, held)]
    return "\n".join(lines) + "\n"


def rules() -> str:
    """Return `docs/rules.md`: each rule with its severities by profile, its meaning and its remedy."""
    from contracts.rules import RULES

    heads = ("rule", "kind", *(str(profile) for profile in Profile), "what it means", "what to do")
    rows = (
        (
            f"`{spec.id}`",
            f"{spec.kind}, {spec.scope}",
            *(str(spec.severity(profile) or "off") for profile in Profile),
            spec.meaning,
            _placeholders(spec.remedy),
        )
        for spec in sorted(RULES.values(), key=lambda spec: (spec.kind, spec.id))
    )
    lines = [
        "# Rules",
        "",
        _GENERATED,
        "",
        "A fidelity rule asks whether the row is what the model generated, a quality rule whether one wants",
        "such rows. A finding of the severity `error` keeps its row (over a file: the file's rows)",
        "out; the profile sets the severities.",
        "",
        *_table(heads, rows),
    ]
    return "\n".join(lines) + "\n"


def boot_failures() -> str:
    """Return `docs/boot-failures.md`: each sign of a failed boot, what it means, what to do, where seen."""
    folder = fixtures_dir() / "boot-failures"
    signs = tomllib.loads((folder / "signs.toml").read_text(encoding="utf-8"))["sign"]
    cases = tomllib.loads((folder / "cases.toml").read_text(encoding="utf-8"))["case"]
    rows = (
        (
            f"`{sign['name']}`",
            sign["why"].replace("{0}", "…"),
            sign["remedy"],
            "; ".join(_origin(case) for case in cases if case["sign"] == sign["name"]),
        )
        for sign in signs
    )
    lines = [
        "# Boot failures",
        "",
        "<!-- Written by `make docs` from fixtures/boot-failures/; edit those. -->",
        "",
        "When a server dies, or says that it will never be ready, its log is searched for these signs,",
        "from top to bottom; the first that fits gives the error its reason, its remedy and its name",
        "(`error.sign`). `…` stands for the log's own words. The patterns are in",
        "`fixtures/boot-failures/signs.toml`, a recorded excerpt for each in `cases.toml`;",
        "`tests/unit/test_server_failures.py` holds one to the other.",
        "",
        "What leaves no line in the log is told by other evidence:",
        "",
        "- a death: exit code or signal; the kernel's count of processes that it killed for memory in this",
        "  control group (`memory.events`), compared with the count at the start;",
        "- GPUs in use: who holds their memory (pid, user, name), from `nvidia-smi`;",
        "- a boot that stands still: neither a log line nor bytes read for `stall_timeout` seconds (600, on",
        "  a CPU 180); `BootStalled` names the phase and each process with its state. Processor time is no",
        "  sign of life: ranks that wait for each other in NCCL burn it. Nor are lines that the harness's",
        "  own questions cause in the log;",
        "- neither ready nor dead when `timeout` is up: `BootTimeout` with the phase it got to;",
        "- ready and then dead: `ServerDied`, explained by what was logged since it was ready, and at once:",
        "  SGLang's main process stays for a minute after one of its processes died, and answers.",
        "",
        *_table(("sign", "what it means", "what to do", "seen in"), rows),
    ]
    return "\n".join(lines) + "\n"


def _origin(case: dict[str, str]) -> str:
    """Return where a recorded excerpt comes from, in a few words."""
    if seen := case.get("seen"):
        return f"SGLang {case['version']}, made to fail: {seen}"
    parts = [f"`{case['source']}`"] if case.get("source") else []
    parts += [case["issue"]] if case.get("issue") else []
    return f"{', '.join(parts)} (SGLang {case['version']})"


def _placeholders(text: str) -> str:
    for name in ("reasoning_parser", "tool_parser"):
        text = text.replace(f"{{{name}}}", "PARSER")
    return text.replace("{template_switch}", "SWITCH")


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    heads = tuple(heads)
    body = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *body)]


def corruptions() -> str:
    """Return `docs/corruptions.md`: each corruption and the rules that fire on it, as recorded."""
    from harness.report import corruptions as page

    return page.corruptions(_table, _GENERATED)


PAGES = {
    "boot-failures.md": boot_failures,
    "corruptions.md": corruptions,
    "counterexamples.md": counterexamples,
    "known-losses.md": known_losses,
    "matrix.md": matrix,
    "rules.md": rules,
}


def main() -> None:
    """Write the pages into the folder named on the command line."""
    for name, page in PAGES.items():
        (Path(sys.argv[1]) / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
