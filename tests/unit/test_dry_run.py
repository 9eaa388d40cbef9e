"""`serve --dry-run`: lines that a shell runs, one JSON value, and every refusal of a boot."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import need
from tests.unit.test_wrong_use import shardgate

FILE = """
[keyed]
model = "org/model"
gpus = 1
flags = ["--api-key", "open sesame", "--served-model-name", "a b"]
env = { GREETING = "a 'b' $c", HF_TOKEN = "sesame" }

[there]
url = "http://127.0.0.1:9"

[pair]
servers = ["keyed", "there"]
router_flags = ["--policy", "round_robin"]
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def test_the_line_is_one_that_a_shell_runs(file: str) -> None:
    (line,) = shardgate("serve", "keyed", "--file", file, "--dry-run").stdout.splitlines()
    assert "sesame" not in line
    before, _, command = line.partition(" -m sglang.launch_server ")
    shown = before.rpartition(" ")[0] + " sh -c 'printf %s \"$GREETING\"'"
    assert subprocess.run(["sh", "-c", shown], capture_output=True, text=True).stdout == "a 'b' $c"
    words = shlex.split(command)
    assert words[words.index("--served-model-name") + 1] == "a b"
    assert words[words.index("--api-key") + 1] == "(not shown)"


def test_one_json_value_with_members_and_router(file: str) -> None:
    done = shardgate("serve", "pair", "--file", file, "--dry-run", "--json")
    told = json.loads(done.stdout)
    first, second = told["members"]
    assert first["command"].endswith(shlex.join(first["words"])) and first["environment"]["GREETING"]
    assert second == {"name": "there", "base_url": "http://127.0.0.1:9"}
    words = told["router"]["words"]
    place = words.index("--worker-urls")
    assert words[place + 1 : place + 3] == [first["base_url"], second["base_url"]]
    assert "--host" in words and words[-4:-2] == ["--policy", "round_robin"], "then the masked key"
    assert "sesame" not in done.stdout
    one = json.loads(shardgate("serve", "there", "--file", file, "--dry-run", "--json").stdout)
    assert one["members"] == [second] and one["router"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("kimi-k2.5", "--flags", "--port 3"), "--port among the flags"),
        (("kimi-k2.5", "--flags", "--tp-size x"), "whole number"),
        (("/etc/passwd",), "it is a file"),
        (("/no/such/model",), "no such folder"),
        (("tiny-router", "--flags", "--host ::"), "--host among the flags"),
    ],
)
def test_what_a_boot_refuses_a_dry_run_refuses(arguments: tuple[str, ...], words: str) -> None:
    done = shardgate("serve", "--dry-run", *arguments)
    assert done.returncode == 2 and words in done.stderr and done.stdout == ""


def test_a_parser_that_sglang_has_not_is_refused_unless_forced() -> None:
    need("sglang")
    asked = ("serve", "tiny-plain", "--dry-run", "--flags", "--reasoning-parser nosuch")
    done = shardgate(*asked)
    assert done.returncode == 2 and "no reasoning parser 'nosuch'" in done.stderr and done.stdout == ""
    assert shardgate(*asked, "--force").returncode == 0


def test_a_variable_that_no_shell_takes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[one]\nmodel = "a/b"\ngpus = 0\nenv = { "A B=" = "x" }\n', encoding="utf-8")
    done = shardgate("serve", "one", "--file", str(path), "--dry-run")
    assert done.returncode == 2 and "'env' must be" in done.stderr
