"""Boot progress from a log as SGLang writes it, progress bars and several ranks included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.server import history, progress
from harness.server.history import Durations, boot_key, earlier, note
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


class Clock:
    """The seconds that `progress` reads; moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def test_bytes_and_rate_come_from_the_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    path = tmp_path / "server.log"
    path.write_text("Loading safetensors checkpoint shards:   0% Completed | 0/64 [00:00<?, ?it/s]\n")
    log = LogFollower(path, total_bytes=640_000_000_000)
    log.poll()
    assert log.progress().seconds_left is None, "nothing is known yet"
    clock.now += 100.0
    with path.open("a") as handle:
        handle.write("Loading safetensors checkpoint shards:  25% Completed | 16/64 [01:40<05:00]\n")
    log.poll()
    now = log.progress()
    assert (now.bytes_read, now.total_bytes) == (160_000_000_000, 640_000_000_000)
    assert now.rate_gb_s == pytest.approx(1.6)
    assert now.seconds_left == pytest.approx(300.0)
    assert str(now) == "loading weights 16/64 shards, 160.0/640.0 GB, 1.6 GB/s (100 s, about 300 s left)"


def test_time_left_comes_from_earlier_boots_and_only_falls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    path = tmp_path / "server.log"
    path.write_bytes(b"")
    took = {Phase.STARTING: 10.0, Phase.WEIGHTS: 60.0, Phase.GRAPHS: 30.0, Phase.WARMUP: 5.0}
    log = LogFollower(path, earlier=Durations({phase.value: seconds for phase, seconds in took.items()}))
    seen = []
    for step in range(90):
        clock.now += 1.0
        if step == 12:
            log.advance(Phase.WEIGHTS)
        if step == 50:
            log.advance(Phase.GRAPHS)
        if step == 70:
            log.advance(Phase.WARMUP)
        seen.append(log.progress().seconds_left)
    assert seen[0] == pytest.approx(104.0)
    known = [left for left in seen if left is not None]
    assert known == sorted(known, reverse=True) and min(known) > 0
    assert seen[-1] is None, "it takes longer than ever before: nobody knows"
    log.advance(Phase.READY)
    assert log.progress().seconds_left == 0.0


def test_a_boot_is_remembered_phase_by_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    path = tmp_path / "server.log"
    path.write_bytes(b"")
    log = LogFollower(path)
    for phase, seconds in ((Phase.WEIGHTS, 10.0), (Phase.WARMUP, 40.0), (Phase.READY, 2.0)):
        clock.now += seconds
        log.advance(phase)
    assert log.durations() == {Phase.STARTING: 10.0, Phase.WEIGHTS: 40.0, Phase.WARMUP: 2.0}
    file = tmp_path / "state" / "boots.json"
    note("key", log.durations(), file)
    note("key", {Phase.STARTING: 20.0, Phase.WEIGHTS: 60.0}, file)
    assert earlier("key", file).seconds == {"starting": 15.0, "loading weights": 50.0, "warming up": 1.0}
    assert earlier("another", file).seconds == {}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "\udcff", '{"boots": []}', '{"boots": {"key": 3}}', '{"boots": {"key": [[]]}}'),
        "[" * 200_000,
        '{"boots": {"key": ' + '[{"a":' * 100_000,
        *('{"boots": {"key": [{"starting": "x"}]}}', '{"boots": {"key": [{"starting": -1}]}}'),
    ],
)
def test_a_broken_history_is_none(text: str, tmp_path: Path) -> None:
    file = tmp_path / "boots.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert earlier("key", file).seconds == {}
    note("key", {"starting": 1.0}, file)
    assert earlier("key", file).seconds == {"starting": 1.0}


def test_the_history_stays_small_and_its_folder_clean(tmp_path: Path) -> None:
    file = tmp_path / "boots.json"
    for number in range(history.KEPT_KEYS + 5):
        note(f"key{number}", {"starting": float(number)}, file)
    for number in range(history.KEPT_BOOTS + 5):
        note("last", {"starting": float(number)}, file)
    boots = json.loads(file.read_text())["boots"]
    assert len(boots) == history.KEPT_KEYS and "key0" not in boots
    assert len(boots["last"]) == history.KEPT_BOOTS
    assert list(tmp_path.iterdir()) == [file]


def test_a_history_that_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    note("key", {"starting": 1.0}, tmp_path / "file" / "boots.json")


def test_boots_are_compared_by_model_device_and_costly_flags() -> None:
    one = boot_key("org/model", ("--tp-size", "8", "--random-seed", "1"), "gpu")
    assert one == boot_key("org/model", ("--random-seed=2", "--tp", "8"), "gpu")
    assert one != boot_key("org/model", ("--tp-size", "4"), "gpu")
    assert one != boot_key("org/model", ("--tp-size", "8"), "cpu")
