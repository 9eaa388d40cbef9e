"""How far an audit is: rows, rate, time left, per shard and over all; files that can't be read told at once.

Place in the flow: outermost, between the audit and the progress line. Imports pyarrow inside functions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from harness.commands.progress import Progress

_WINDOW = 20.0
"""Seconds that the rate is measured over: what the machine does now, not what it did at the start."""


class AuditProgress:
    """Called by the audit with (shard, rows read since the last call)."""

    def __init__(self, progress: Progress, shards: Sequence[Path]) -> None:
        """Read every footer first: they give the total, and a file that has none is told before the work."""
        import pyarrow as pa
        import pyarrow.parquet as parquet

        from contracts.run import expand

        self._progress = progress
        self._rows: dict[str, int] = {}
        files = expand(shards)
        for path in files:
            if not path.is_file():
                progress.say(f"can't be read: {path}: not a file")
                continue
            try:
                self._rows[str(path)] = max(int(parquet.read_metadata(path).num_rows), 0)
            except (OSError, ValueError, pa.ArrowException) as error:
                progress.say(f"can't be read: {path}: {' '.join(str(error).split())[:200]}")
        self._read: dict[str, int] = {}
        self._seen: list[tuple[float, int]] = [(time.monotonic(), 0)]

    def __call__(self, shard: str, rows: int) -> None:
        """Tell the rows read so far."""
        self._read[shard] = self._read.get(shard, 0) + rows
        done, total = sum(self._read.values()), sum(self._rows.values())
        now = time.monotonic()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW:
            del self._seen[0]
        since, before = self._seen[0]
        rate = (done - before) / (now - since) if now > since else 0.0
        finished = sum(self._read.get(name, 0) >= count for name, count in self._rows.items())
        words = [f"{finished} of {len(self._rows)} shards"]
        if rate:
            words.append(f"{rate:,.0f} rows/s" if rate >= 10 else f"{rate:.1f} rows/s")
        of = self._rows.get(shard, 0)
        words.append(f"{Path(shard).name} {self._read[shard]:,}/{of:,}")
        # A file that grew since its footer was read must not give a bar beyond its end.
        facts: dict[str, object] = {"message": ", ".join(words), "done": min(done, total), "total": total}
        if rate and total / 20 <= done < total:
            facts["remaining"] = max(total - done, 0) / rate
        self._progress("audit, rows", facts)
