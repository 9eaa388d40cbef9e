"""Boot progress from a log as SGLang writes it, progress bars and several ranks included."""

from __future__ import annotations

from pathlib import Path

from harness.server.progress import LogFollower, Phase

# Recorded from SGLang 0.5.23 (CPU, --tp-size 2), shortened; the bar's states are joined by carriage returns.
STEPS: tuple[tuple[str, Phase, tuple[int, int]], ...] = (
    ("[2026-11-29 18:45:24 TP0] Init parallel begin.\n", Phase.RANKS, (0, 0)),
    ("[2026-11-29 18:45:30 TP1] Load weight begin. avail mem=21.26 GB\n", Phase.WEIGHTS, (0, 0)),
    ("Multi-thread loading shards:   0% Completed | 0/5 [00:00<?, ?it/s]", Phase.WEIGHTS, (0, 5)),
    ("\rMulti-thread loading shards:  40% Completed | 2/5 [00:00<00:00, 1.1it/s]", Phase.WEIGHTS, (2, 5)),
    ("[2026-11-29 18:45:30 TP0] Init parallel begin.\n", Phase.WEIGHTS, (2, 5)),
    ("\rMulti-thread loading shards: 100% Completed | 5/5 [00:00<00:00, 1890it/s]\n", Phase.WEIGHTS, (5, 5)),
    ("[2026-11-29 18:45:30 TP0] Load weight end. elapsed=0.05 s, type=Llama", Phase.MEMORY, (5, 5)),
    ("ForCausalLM\n[2026-11-29 18:45:31 TP0] Capture cuda graph begin.\n", Phase.GRAPHS, (5, 5)),
    ("[2026-11-29 18:45:31] INFO:     Uvicorn running on http://127.0.0.1:31077\n", Phase.WARMUP, (5, 5)),
    ("[2026-11-29 18:45:33] The server is fired up and ready to roll!\n", Phase.CHECKING, (5, 5)),
)


def test_phases_and_shards_follow_the_log(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"")
    log = LogFollower(path)
    assert log.poll() == []
    assert log.phase is Phase.STARTING
    for text, phase, shards in STEPS:
        with path.open("a", encoding="utf-8", newline="") as handle:
            handle.write(text)
        log.poll()
        now = log.progress()
        assert (now.phase, (now.shards_done, now.shards_total)) == (phase, shards), text


def test_lines_come_whole_and_once(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"one\ntw")
    log = LogFollower(path)
    assert log.poll() == ["one"]
    assert log.poll() == []
    with path.open("ab") as handle:
        handle.write("o\nthree\r\xff\n".encode("latin-1"))
    assert log.poll() == ["two", "three", "\ufffd"]


def test_progress_reads_as_one_line(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(STEPS[3][0])
    log = LogFollower(path)
    log.poll()
    assert str(log.progress()) == "loading weights 2/5 shards (0 s)"


def test_steps_between_two_polls_are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes("".join(text for text, _, _ in STEPS).encode())
    log = LogFollower(path)
    log.poll()
    told = [(step.phase, step.shards_done) for step in log.passed()]
    assert told == [
        (Phase.RANKS, 0),
        *((Phase.WEIGHTS, done) for done in (0, 0, 2, 5)),
        *((phase, 5) for phase in (Phase.MEMORY, Phase.GRAPHS, Phase.WARMUP, Phase.CHECKING)),
    ]
    assert log.passed() == []
