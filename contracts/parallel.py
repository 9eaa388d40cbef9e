"""Many shards at once: one process per shard, results in the shards' order whatever their number.

Place in the flow: between the audit and the scan. Imports errors, registry and scan of `contracts`.

A worker is a fresh interpreter (a forked one hangs once polars has run) that is told its shards over a pipe.
It runs nothing of the caller's main script. Its answers come over the same pipe, and so does its end: who
was killed closes it.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

from contracts.errors import ShardgateError
from contracts.rules import BUILT_IN, RULES, SET_CHECKS
from contracts.rules.own import load_rules, own_rules
from contracts.rules.registry import SetCheck
from contracts.scan import Scan, ScanOptions, scan_shard

WORTH_IT = 48 << 20
"""Bytes of shards below which starting processes costs more than it saves."""

Progress = Callable[[str, int], None]
Result = tuple[Scan, list[SetCheck]]

_START = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path[:] = {path!r}; "
    "from contracts.parallel import work; work({handle})"
)


class WorkerError(ShardgateError):
    """A process that checked a shard ended or failed."""


class _UnfitError(Exception):
    """The workers can't be handed what they need; one process does it all."""


def scan_all(
    files: Sequence[Path], options: ScanOptions, processes: int | None, on_progress: Progress | None
) -> tuple[list[Scan], list[SetCheck]]:
    """Scan all files, in as many processes (None: as many as there are cores, where that is worth it).

    Returns the scans in the files' order and the data-set rules that have seen all of them.

    Raises:
        WorkerError: a worker was killed, or failed in a way that is no finding.
    """
    count = min(_processes(files, processes), len(files))
    # Rules that a script declared by itself are known to no worker.
    known = {rule for own in own_rules() for rule in own.rules} | BUILT_IN
    mergeable = all(hasattr(check, "merge") for check in SET_CHECKS)
    if count > 1 and mergeable and known >= set(RULES):
        try:
            return _gathered(_in_processes(files, options, count, on_progress))
        except _UnfitError:
            pass
    if not mergeable:
        shared: list[SetCheck] = [check() for check in SET_CHECKS]
        return [_one(path, options, on_progress, shared)[0] for path in files], shared
    return _gathered(_one(path, options, on_progress) for path in files)


def _processes(files: Sequence[Path], asked: int | None) -> int:
    if asked is not None:
        return max(1, asked)
    if len(files) < 2 or sum(path.stat().st_size for path in files if path.is_file()) < WORTH_IT:
        return 1
    return len(os.sched_getaffinity(0))


def _gathered(results: Iterator[Result]) -> tuple[list[Scan], list[SetCheck]]:
    """Merge the data-set rules shard by shard, in order."""
    scans: list[Scan] = []
    whole: list[SetCheck] = []
    for scan, checks in results:
        scans.append(scan)
        if not whole:
            whole = checks
            continue
        for check, other in zip(whole, checks, strict=True):
            check.merge(other)
    return scans, whole


def _one(
    path: Path, options: ScanOptions, on_progress: Progress | None, checks: list[SetCheck] | None = None
) -> Result:
    name = str(path)
    told = None if on_progress is None else (lambda rows: on_progress(name, rows))
    checks = [check() for check in SET_CHECKS] if checks is None else checks
    return scan_shard(path, name, replace(options, on_rows=told), checks), checks


@dataclass(slots=True)
class _Worker:
    """A worker's process, our end of its pipe, and the number of the shard that it is at."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    at: int | None = None
    ready: bool = False


def _in_processes(
    files: Sequence[Path], options: ScanOptions, count: int, on_progress: Progress | None
) -> Iterator[Result]:
    """Yield the results in the files' order."""
    try:
        payload = pickle.dumps(
            (replace(options, on_rows=None), [own.path for own in own_rules()], sorted(RULES))
        )
    except Exception as error:  # a tokenizer with code of its own need not pickle
        raise _UnfitError from error
    workers = [_started(payload, count) for _ in range(count)]
    waiting = iter(range(len(files)))
    done: dict[int, Result] = {}
    turn = 0
    try:
        while turn < len(files):
            for pipe in wait([worker.pipe for worker in workers if not worker.pipe.closed]):
                worker = next(worker for worker in workers if worker.pipe is pipe)
                _hear(worker, files, waiting, done, on_progress)
            while turn in done:
                yield done.pop(turn)
                turn += 1
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
            worker.pipe.close()


def _started(payload: bytes, count: int) -> _Worker:
    ours, theirs = Pipe()
    threads = str(max(1, len(os.sched_getaffinity(0)) // count))
    shared = {"POLARS_MAX_THREADS": threads, "RAYON_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    code = _START.format(path=[entry for entry in sys.path if isinstance(entry, str)], handle=theirs.fileno())
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.DEVNULL,
        env={**os.environ, **shared, "SHARDGATE_THREADS": threads},
    )
    theirs.close()
    ours.send_bytes(payload)
    return _Worker(process, ours)


def _hear(
    worker: _Worker,
    files: Sequence[Path],
    waiting: Iterator[int],
    done: dict[int, Result],
    on_progress: Progress | None,
) -> None:
    """Take one message of a worker, and hand it its next shard when it is free."""
    try:
        kind, value = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        _ended(worker, files)
        return
    if kind == "rows":
        if on_progress is not None and worker.at is not None:
            on_progress(str(files[worker.at]), value)
        return
    if kind == "unfit":
        raise _UnfitError(value)
    if kind == "failed":
        raise WorkerError(
            "a worker failed at a shard",
            where="" if worker.at is None else str(files[worker.at]),
            why=value,
            remedy="this is a fault of shardgate or of a rule of your own: audit this shard alone to see it",
        )
    if kind == "done" and worker.at is not None:
        done[worker.at] = value
    worker.ready = True
    worker.at = next(waiting, None)
    worker.pipe.send(None if worker.at is None else str(files[worker.at]))


def _ended(worker: _Worker, files: Sequence[Path]) -> None:
    worker.pipe.close()
    code = worker.process.wait()
    if worker.at is None and worker.ready:
        return  # sent home, its work done
    if not worker.ready and code >= 0:
        raise _UnfitError(f"a worker ended with {code} before it began")
    how = f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"
    raise WorkerError(
        "a worker ended while it checked a shard",
        where="" if worker.at is None else str(files[worker.at]),
        why=f"{how}; machines that run out of memory do that",
        remedy="audit again with fewer processes",
    )


def work(handle: int) -> None:
    """Be a worker: read what to check from the pipe, answer over it, end when the other end closes."""
    pipe = Connection(handle)
    try:
        _work(pipe)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # whoever wanted to know is gone


def _work(pipe: Connection) -> None:
    try:
        options, own, rules = pickle.loads(pipe.recv_bytes())
        for path in own:
            load_rules(path)
        if sorted(RULES) != rules:
            raise ValueError("the rules are others here")
        import pyarrow as pa

        pa.set_cpu_count(int(os.environ["SHARDGATE_THREADS"]))
    except EOFError:
        raise
    except Exception as error:
        pipe.send(("unfit", repr(error)))
        return
    pipe.send(("ready", None))
    while (path := pipe.recv()) is not None:
        try:
            result = _one(Path(path), options, lambda _, rows: pipe.send(("rows", rows)))
        except BrokenPipeError:
            raise
        except Exception as error:
            pipe.send(("failed", "".join(traceback.format_exception_only(error)).strip()))
            return
        pipe.send(("done", result))
