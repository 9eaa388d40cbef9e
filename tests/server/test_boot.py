"""A real SGLang on this machine's CPU, two tensor-parallel ranks: boot, judge, kill, and nothing is left.

One boot serves the whole file; the last test kills it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.server import BootProgress, CannotBoot, Phase, SGLangServer
from harness.server.guard import group_members
from tests.bodies import server as bodies

pytestmark = pytest.mark.server

FLAGS = ("--tp-size", "2", "--reasoning-parser", "kimi_k2", "--enable-custom-logit-processor")


class Booted:
    """The server with what its boot told."""

    def __init__(self, server: SGLangServer, told: list[BootProgress]) -> None:
        self.server = server
        self.told = told


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    from harness.models import tiny_model

    told: list[BootProgress] = []
    log = tmp_path_factory.mktemp("server") / "server.log"
    with SGLangServer(
        tiny_model(), flags=FLAGS, device="cpu", log_path=log, on_progress=told.append
    ) as server:
        yield Booted(server, told)


def test_it_generates_what_it_is_asked(booted: Booted) -> None:
    first = bodies.generates_exactly(booted.server, 12)
    assert bodies.generates_exactly(booted.server, 12) == first


def test_two_ranks_really_run(booted: Booted) -> None:
    names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in group_members(booted.server.pid)]
    assert sum(b"scheduler_TP" in name for name in names) == 2


def test_it_reports_what_was_asked(booted: Booted) -> None:
    bodies.reports_what_was_asked(booted.server, "kimi_k2", None)
    facts = booted.server.facts()
    assert facts.flags["tp_size"] == 2
    assert facts.flags["attention_backend"] == "torch_native"
    assert facts.vocab_size == 3072
    assert facts.tokenizer_sha256 and facts.chat_template_sha256


def test_other_wishes_are_a_mismatch(booted: Booted) -> None:
    bodies.refuses_another(booted.server)


def test_it_can_be_attached(booted: Booted) -> None:
    bodies.can_be_attached(booted.server)


def test_progress_came_from_the_log(booted: Booted) -> None:
    bodies.progressed([now.phase for now in booted.told])
    last = booted.told[-1]
    assert last.shards_done == last.shards_total > 0
    assert booted.server.boot_seconds >= booted.told[-2].elapsed


def test_it_listens_on_loopback_only(booted: Booted) -> None:
    assert booted.server.base_url.startswith("http://127.0.0.1:")
    assert "127.0.0.1" in booted.server.log_text().split("Uvicorn running on")[1].splitlines()[0]


def test_its_port_is_refused_to_a_second_one_at_once(booted: Booted) -> None:
    second = SGLangServer(booted.server.model_path, port=booted.server.port, device="cpu")
    with pytest.raises(CannotBoot, match=f"port {booted.server.port} can't be used"):
        second.start()
    assert not second.alive()


def test_a_killed_scheduler_is_a_named_death(booted: Booted) -> None:
    """Last in the file: it ends the server."""
    assert Phase.READY in {now.phase for now in booted.told}
    bodies.dies_by_name(booted.server, b"scheduler_TP1")
