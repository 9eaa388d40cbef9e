"""What a replay found: rows, set, thresholds, server; and the record of it that is written beside the shards.

Place in the flow: after the judging, before the command and the certificate. Imports `contracts.records` and
this package's records.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from contracts.records import ServerFacts
from harness.replay.calibrate import VERDICTS, SetTest, Threshold, Verdict
from harness.replay.choose import ShardFile
from harness.replay.identity import Difference, told
from harness.replay.scores import RowScores

SetVerdict = Literal["consistent", "rows-differ", "shifted", "another-model"]

SET_VERDICTS: Mapping[str, str] = {
    "consistent": "every row that was asked about is as likely to this model as its own responses",
    "rows-differ": "some rows are not as likely as the model's own responses",
    "shifted": "no row stands out, and all of them together lie off: other weights, quantisation or kernels",
    "another-model": "more than half of the rows are not this model's under these prompts",
}


@dataclass(frozen=True, slots=True)
class Server:
    """The server that was asked, and where the rows name another one."""

    facts: ServerFacts
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class Reference:
    """The rows that thresholds were learnt from: generated on the `server`, or of `shards` captured there."""

    kind: str
    rows: tuple[RowScores, ...]

    def values(self, score: str) -> list[float]:
        """Return the reference rows' values of a score."""
        return [value for row in self.rows if (value := row.value(score)) is not None]


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row: its verdict, None where it was not replayed (`reason` says why in a word).

    `chance` is how often one of the server's own responses is as far off in any score (conformal, times the
    scores). `beyond` are the scores above their cuts. `cause` is what trying other ids showed, or a detail.
    """

    sample_id: str
    shard: str
    row: int
    verdict: Verdict | None
    reason: str = ""
    cause: str = ""
    chance: float | None = None
    beyond: tuple[str, ...] = ()
    scores: RowScores | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """All of a replay."""

    shards: tuple[ShardFile, ...]
    rows: tuple[RowResult, ...]
    seed: int
    reference: Reference
    thresholds: Mapping[str, Threshold]
    tests: tuple[SetTest, ...]
    verdict: SetVerdict
    server: Server = field(default_factory=lambda: Server(ServerFacts("", "")))
    retries: int = 0
    tokens: int = 0

    @property
    def replayed(self) -> list[RowResult]:
        """Return the rows that have a verdict."""
        return [row for row in self.rows if row.verdict is not None]

    @property
    def wrong(self) -> list[RowResult]:
        """Return the rows that differ."""
        return [row for row in self.replayed if row.verdict != "consistent"]

    @property
    def not_replayed(self) -> Counter[str]:
        """Return how many rows were not replayed, by reason."""
        return Counter(row.reason for row in self.rows if row.verdict is None)

    @property
    def verdicts(self) -> Counter[str]:
        """Return how many rows have each verdict."""
        return Counter(str(row.verdict) for row in self.replayed)

    def record(self, folder: Path) -> dict[str, Any]:
        """Return the JSON object of `replay.json` in `folder`, of finite numbers only."""
        root = folder.resolve()
        return {
            "madeAt": datetime.now(UTC).isoformat(timespec="seconds"),
            "verdict": self.verdict,
            "meaning": SET_VERDICTS[self.verdict],
            "rows": {
                "set": sum(shard.rows for shard in self.shards),
                "sampled": len(self.rows),
                "replayed": len(self.replayed),
                "consistent": len(self.replayed) - len(self.wrong),
                "notReplayed": dict(sorted(self.not_replayed.items())),
            },
            "verdicts": dict(self.verdicts.most_common()),
            "causes": dict(Counter(row.cause for row in self.wrong if row.cause).most_common(20)),
            "seed": self.seed,
            "reference": {"from": self.reference.kind, "rows": len(self.reference.rows)},
            "thresholds": {
                name: {"cut": one.cut, "middle": one.middle, "largest": one.largest, "rows": one.rows}
                for name, one in self.thresholds.items()
            },
            "tests": [asdict(test) for test in self.tests],
            "server": told(self.server.facts),
            "differences": [str(one) for one in self.server.differences],
            "shards": [
                {
                    "name": Path(os.path.relpath(shard.path.resolve(), root)).as_posix(),
                    "sha256": shard.sha256,
                    "rows": shard.rows,
                }
                for shard in self.shards
            ],
            "eachRow": [_row(row) for row in self.rows],
        }


def _row(row: RowResult) -> dict[str, Any]:
    out = {
        "sample_id": row.sample_id,
        "shard": row.shard,
        "row": row.row,
        "verdict": row.verdict,
        "meaning": VERDICTS[row.verdict] if row.verdict else row.reason,
        "cause": row.cause,
        "chance": row.chance,
        "beyond": list(row.beyond),
    }
    return out if row.scores is None else {**out, "scores": asdict(row.scores)}


def set_verdict(rows: Sequence[RowResult], tests: Sequence[SetTest]) -> SetVerdict:
    """Return what rows and tests say of the set; a row whose cause was found is not another model's."""
    judged = [row for row in rows if row.verdict is not None]
    wrong = [row for row in judged if row.verdict != "consistent"]
    foreign = [row for row in wrong if row.verdict in ("another-model", "other-logprobs", "drifted")]
    if 2 * len(foreign) > len(judged):
        return "another-model"
    if wrong:
        return "rows-differ"
    return "shifted" if any(test.shifted for test in tests) else "consistent"
