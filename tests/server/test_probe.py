"""`shardgate probe` against real servers: with parsers, without, dying, hanging, and none at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from contracts.tokens import Codec
from harness.pipeline import WrongTokenizer, probe
from harness.server import SGLangServer, load_deployment
from harness.server.mismatch import mismatches
from harness.server_codec import ServerCodec
from tests.conftest import need

pytestmark = pytest.mark.server


def quiet(phase: str, facts: dict[str, Any]) -> None:
    pass


def shardgate(*arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def test_a_server_without_parsers_is_called_out(bare_server: SGLangServer) -> None:
    done = shardgate("probe", bare_server.base_url)
    assert done.returncode == 1
    assert "--reasoning-parser kimi_k2" in done.stdout
    assert "reasoning-in-content" in done.stdout
    assert "Traceback" not in done.stderr
    told = " ".join(done.stdout.partition("Recommendation")[2].split())
    headline = told.index("no reasoning parser is given, and the model thinks")
    assert headline < told.index("reasoning-in-content")


def test_parsers_of_another_family_are_the_first_finding(tmp_path: Path) -> None:
    """A Kimi template and vocabulary under Qwen's and GLM's parsers: told first, with the right flags."""
    need("sglang")
    wrong = replace(load_deployment("tiny"), reasoning_parser="qwen3", tool_parser="gpt-oss")
    with wrong.server(log_path=tmp_path / "server.log") as server:
        report = probe(server.base_url, on_event=quiet)
        seen = mismatches(
            replace(server.facts(), base_url="http://elsewhere:1"), ServerCodec(server.base_url).token_id
        )
    assert report.recommendation.headline.startswith("The server `")
    assert "'qwen3' is not made for this model" in report.recommendation.headline
    assert "--reasoning-parser kimi_k2" in report.recommendation.headline
    assert "'gpt-oss' is not made for this model" in report.recommendation.reasons[0]
    assert "--tool-call-parser kimi_k2" in report.recommendation.reasons[0]
    assert "qwen3" not in report.recommendation.flags, report.recommendation.flags
    # Where the model's files are elsewhere its vocabulary tells: gpt-oss's markers are no tokens of it.
    assert [("gpt-oss" in one.what, one.remedy) for one in seen] == [
        (True, "boot it with --tool-call-parser kimi_k2")
    ]


def test_json_has_the_whole_answer(tiny_server: SGLangServer, tiny_codec: Codec) -> None:
    from harness.models import tiny_model

    done = shardgate("probe", tiny_server.base_url, "--tokenizer", str(tiny_model()), "--json")
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert report["server"]["reasoning_parser"] == report["server"]["tool_parser"] == "kimi_k2"
    assert report["server"]["engine_version"]
    assert {result["mode"] for result in report["results"]} == {"raw", "reasoning", "tools"}
    for result in report["results"]:
        assert result["prompt"] and result["verdict"] and isinstance(result["losses"], list)
        assert result["scripted"] is False
        assert (result["verdict"] == "exact") == (not result["losses"])
    assert report["recommendation"]["flags"]


def test_the_servers_own_tokenizer_gives_the_same_answer(tiny_server: SGLangServer) -> None:
    report = probe(tiny_server.base_url, on_event=quiet)
    assert report.results and all(result.fault is None for result in report.results)
    assert any("/tokenize" in note for note in report.notes)
    assert all(result.expected for result in report.results)


def test_a_foreign_tokenizer_is_refused(tiny_server: SGLangServer, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    other = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(WrongTokenizer, match="not the server's"):
        probe(tiny_server.base_url, tokenizer=tmp_path, on_event=quiet)


def test_nobody_there() -> None:
    done = shardgate("probe", "http://127.0.0.1:9", timeout=60)
    assert done.returncode == 2
    assert "127.0.0.1:9" in done.stderr and "Traceback" not in done.stderr


def test_killed_in_the_middle(tmp_path: Path) -> None:
    """kill -9 while answers are under way: a clear error within seconds, and nothing left behind."""
    need("sglang")
    with load_deployment("tiny-plain").server(log_path=tmp_path / "server.log") as server:
        group = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        command = [sys.executable, "-m", "harness", "probe", server.base_url]
        probing = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert probing.stderr is not None
            seen = ""
            while "capture" not in seen:
                line = probing.stderr.readline()
                assert line, seen
                seen += line
            os.kill(server.pid, signal.SIGKILL)
            killed = time.monotonic()
            _, error = probing.communicate(timeout=60)
        finally:
            probing.kill()
        assert probing.returncode == 2
        assert server.base_url in error and "Traceback" not in error
        assert time.monotonic() - killed < 30
    _, alive = psutil.wait_procs(group, timeout=20)
    assert not alive
