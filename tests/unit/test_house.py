"""The house rules: imports go one way, modules are short, the command line is light, tools run clean.

Place in the flow: none; reads the source tree.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("contracts", "harness")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_LINES = 400
HEAVY = ("torch", "sglang", "pandas", "transformers", "polars", "pandera")


def _imports(path: Path, *, top_level: bool) -> Iterator[tuple[str, int]]:
    """Yield the absolute names that a module imports, with their lines; relative ones resolved."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in _nodes(tree) if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join((*base, *((node.module or "").split(".") if node.module else ())))
            yield name, node.lineno
            yield from ((f"{name}.{item.name}", node.lineno) for item in node.names)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs at import: everything but function bodies and `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _nodes(node)


def _offences(names: tuple[str, ...], paths: list[Path], *, top_level: bool) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in paths
        for name, line in _imports(path, top_level=top_level)
        if name.split(".")[0] in names
    ]


def _under(package: str) -> list[Path]:
    return [path for path in MODULES if path.is_relative_to(ROOT / package)]


def test_contracts_never_import_the_harness_nor_an_engine() -> None:
    assert _offences(("harness", "torch", "sglang"), _under("contracts"), top_level=False) == []


def test_stages_do_not_import_what_chains_or_shows_them() -> None:
    shells = ("harness.cli", "harness.commands", "harness.report", "harness.pipeline", "harness.plugin")
    outer = [ROOT / "harness" / name for name in ("cli.py", "__main__.py", "pipeline.py", "plugin.py")]
    inner = [
        path
        for path in _under("harness")
        if path not in outer and path.parent.name not in ("commands", "report", "templates", "pipeline")
    ]
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in inner
        for name, line in _imports(path, top_level=False)
        if f"{name}.".startswith(tuple(f"{shell}." for shell in shells))
    ]
    assert wrong == []


def test_reports_show_results_and_run_nothing() -> None:
    allowed = ("harness.outcomes", "harness.report", "harness.paths", "harness.masks", "harness.standing")
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in _under("harness/report")
        for name, line in _imports(path, top_level=False)
        if name.startswith("harness.") and not name.startswith(allowed)
    ]
    assert wrong == []


def test_the_command_line_imports_nothing_heavy_at_the_top() -> None:
    shell = [ROOT / "harness" / "cli.py", *_under("harness/commands"), ROOT / "harness" / "plugin.py"]
    light = (*HEAVY, "rich", "jinja2", "aiohttp", "pyarrow", "numpy")
    assert _offences(light, shell, top_level=True) == []


def test_imports_are_found_by_the_check_itself() -> None:
    """A check that can't see an offence would pass on anything."""
    module = ROOT / "contracts" / "records.py"
    assert "dataclasses" in {name for name, _ in _imports(module, top_level=True)}
    lazy = ROOT / "harness" / "commands" / "demo.py"
    assert "harness.pipeline" in {name for name, _ in _imports(lazy, top_level=False)}
    assert "harness.pipeline" not in {name for name, _ in _imports(lazy, top_level=True)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_are_short_and_say_their_place(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    doc = ast.get_docstring(ast.parse(text))
    assert doc, "no module docstring"
    assert "import" in doc.lower(), "the docstring does not say what the module may import"


def test_test_modules_are_short_too() -> None:
    long = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if len(path.read_text(encoding="utf-8").splitlines()) > MAX_LINES
    ]
    assert long == []


def test_no_two_test_modules_share_a_name() -> None:
    """pytest imports test modules by base name: two of one name end the run before its first test."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {heavy!r}:
            raise AssertionError(f'{{name}} was imported')
sys.meta_path.insert(0, Blocker())
from harness.cli import main
main({argv!r})
"""


def _commands() -> list[str]:
    from harness.cli import cli

    return sorted(cli.commands)


@pytest.mark.parametrize("command", [None, *_commands()])
def test_help_needs_no_heavy_package(command: str | None) -> None:
    argv = [command, "--help"] if command else ["--help"]
    code = BLOCKED.format(heavy=HEAVY, argv=argv)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: shardgate")


@pytest.mark.parametrize("module", ["contracts", "harness", "harness.plugin", "contracts.formats"])
def test_what_others_import_costs_nothing_heavy(module: str) -> None:
    code = BLOCKED.format(heavy=HEAVY, argv=["--version"]).replace(
        "from harness.cli", f"import {module}\nfrom harness.cli"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_blocker_blocks() -> None:
    code = BLOCKED.format(heavy=("click",), argv=["--help"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert "click was imported" in done.stderr


@pytest.mark.parametrize("arguments", [("check", "."), ("format", "--check", ".")], ids=["check", "format"])
def test_ruff_is_content(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_is_content() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy"], capture_output=True, text=True, timeout=540, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr


MACHINE_PATH = re.compile(
    r"(?<![\w.:/])/(?:home/\w+|Users/\w+|root|work|opt|tmp/\w+|mnt/\w+|data/\w+)(?=/)|\bfile:///(?!tmp\b)"
)


def _tracked() -> list[Path]:
    """Return the tracked files; outside of a git clone (an unpacked archive), every source file."""
    listing = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=False)
    if listing.returncode == 0 and listing.stdout:
        return [ROOT / name for name in listing.stdout.split("\0") if name]
    return [*MODULES, *(ROOT / "tests").rglob("*.py"), *ROOT.glob("*.*"), *(ROOT / "docs").rglob("*.md")]


def test_no_path_of_one_machine_is_tracked() -> None:
    found = []
    for path in _tracked():
        if not path.is_file() or path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), 1)
            if MACHINE_PATH.search(line)
        ]
    assert found == []


def test_a_machine_path_would_be_seen() -> None:
    assert MACHINE_PATH.search("open('/home/ann/x')") and MACHINE_PATH.search("at /root/.cache/y")
    assert not MACHINE_PATH.search("POST /v1/chat/completions and https://host/work/x, ./data/raw/file")
