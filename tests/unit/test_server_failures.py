"""Boot failures are told apart by the log's own words; each excerpt says where it was recorded."""

from __future__ import annotations

import pytest

from harness.server.failures import (
    SIGNS,
    BootFailed,
    ServerError,
    clean_lines,
    describe_exit,
    find_sign,
    from_log,
    telling_lines,
)

# Recorded from SGLang 0.5.23 on a CPU, shortened where `…` stands.
UNKNOWN_PARSER = """\
usage: sglang serve [-h] --model-path MODEL_PATH
                    [--tokenizer-path TOKENIZER_PATH]
                    [--reasoning-parser {auto,kimi_k2,qwen3}]
sglang serve: error: argument --reasoning-parser: invalid choice: 'nosuch' (choose from 'auto', 'kimi_k2')
"""
UNKNOWN_FLAG = "sglang serve: error: unrecognized arguments: --no-such-flag\n"
DAMAGED = """\
[2026-11-29 18:48:31] Ignore import error when loading sglang.srt.models.inkling: No module named 'cutlass'
[2026-11-29 18:48:31] Load weight begin. avail mem=21.26 GB
Multi-thread loading shards:   0% Completed | 0/5 […]\rMulti-thread loading shards:  20% Completed | 1/5
[2026-11-29 18:48:32] Scheduler hit an exception: Traceback (most recent call last):
  File "…/weight_utils.py", line 1354, in _load_file
    with safetensors.safe_open(st_file, framework="pt", device="cpu") as f:
safetensors._safetensors_rust.SafetensorError: Error while deserializing header: invalid header length

[2026-11-29 18:48:32] Received sigquit from a child process. It usually means the child failed.
"""
WRONG_PATH = """\
huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name': '/srv/none'. …

The above exception was the direct cause of the following exception:

OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/srv/none'. …
"""
NO_PACKAGE = """\
  File "…/sglang/srt/entrypoints/openai/audio_chunking.py", line 24, in <module>
    import soundfile as sf
ModuleNotFoundError: No module named 'soundfile'
"""
PORT = (
    "[2026-11-29 19:22:08] ERROR:    [Errno 98] error while attempting to bind on address "
    "('127.0.0.1', 31079): address already in use\n"
)
# Messages of torch, as its documentation and SGLang's issues show them.
GPU_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.00 GiB. GPU 0 has …\n"

CASES = {
    "unknown-choice": (UNKNOWN_PARSER, "nosuch"),
    "unknown-flag": (UNKNOWN_FLAG, "--no-such-flag"),
    "checkpoint-damaged": (DAMAGED, "invalid header length"),
    "model-not-found": (WRONG_PATH, "/srv/none"),
    "package-missing": (NO_PACKAGE, "soundfile"),
    "port-taken": (PORT, "31079"),
    "gpu-memory": (GPU_MEMORY, "14.00 GiB"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_log_names_the_failure(name: str) -> None:
    text, detail = CASES[name]
    error = from_log(BootFailed, "the server died", "log x", text, "unknown")
    found = find_sign(clean_lines(text))
    assert found is not None and found[0].name == name
    assert detail in error.why
    assert error.remedy == found[0].remedy
    assert any(detail in line for line in error.log_lines)


def test_only_a_taken_port_leaves_the_server_hanging() -> None:
    assert [sign.name for sign in SIGNS if sign.hangs] == ["port-taken"]
    assert find_sign(clean_lines(DAMAGED), only_hanging=True) is None
    assert find_sign(clean_lines(PORT), only_hanging=True) is not None


def test_a_healthy_log_shows_no_failure() -> None:
    healthy = DAMAGED.split("[2026-11-29 18:48:32]")[0]
    assert find_sign(clean_lines(healthy)) is None


def test_an_unknown_ending_is_told_with_the_logs_end() -> None:
    text = "\n".join(f"line {n}" for n in range(20))
    error = from_log(BootFailed, "the server died", "log x", text, "the log does not say why")
    assert error.why == "the log does not say why"
    assert error.log_lines == tuple(f"line {n}" for n in range(15, 20))


def test_usage_text_and_argument_dumps_are_left_out() -> None:
    lines = telling_lines(UNKNOWN_PARSER)
    assert lines == (UNKNOWN_PARSER.splitlines()[-1],)
    assert clean_lines("[t] server_args={'api_key': 'secret'}\nkept") == ["kept"]


def test_long_lines_are_cut() -> None:
    (line,) = telling_lines("ValueError: " + "x" * 5000)
    assert len(line) < 500 and line.endswith("…")


def test_the_message_has_what_where_why_and_what_to_do() -> None:
    error = ServerError("it broke", where="here", why="so", remedy="mend it", log_lines=["a", "b"])
    assert str(error).splitlines() == [
        "it broke",
        "  where: here",
        "  why: so",
        "  what to do: mend it",
        "  the log says:",
        "    a",
        "    b",
    ]
    assert str(ServerError("it broke")) == "it broke"


def test_every_sign_has_its_origin_and_its_own_name() -> None:
    assert all(sign.origin and sign.remedy for sign in SIGNS)
    assert len({sign.name for sign in SIGNS}) == len(SIGNS)


@pytest.mark.parametrize(
    ("code", "words"), [(2, "exit code 2"), (-9, "signal SIGKILL"), (-250, "signal 250")]
)
def test_exits_are_described(code: int, words: str) -> None:
    assert describe_exit(code) == words
