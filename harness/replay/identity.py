"""Whether the server that is asked is the one that the rows name.

Place in the flow: before anything is asked. Imports `contracts.records`, `contracts.shard` and
`harness.replay.choose`'s names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from contracts.records import ServerFacts
from contracts.shard import NONE, UNKNOWN


@dataclass(frozen=True, slots=True)
class Difference:
    """A provenance column whose value in `rows` rows is not the server's."""

    name: str
    recorded: str
    server: str
    rows: int

    def __str__(self) -> str:
        return f"{self.name}: {self.rows} rows say {self.recorded}, the server {self.server}"


def told(facts: ServerFacts) -> dict[str, str | None]:
    """Return the server's values of the provenance columns; None where it does not tell."""
    return {
        "target_model": facts.model,
        "target_revision": facts.revision,
        "weight_version": facts.weight_version,
        "quantization": facts.quantization,
        "kv_cache_dtype": facts.kv_cache_dtype,
        "lora": facts.lora,
        "speculative": facts.speculative,
        "tokenizer_sha256": facts.tokenizer_sha256,
        "chat_template_sha256": facts.chat_template_sha256,
        "engine": facts.engine,
        "engine_version": facts.engine_version,
    }


def differences(
    provenance: Mapping[str, Mapping[str | None, int]], facts: ServerFacts
) -> tuple[Difference, ...]:
    """Return what the rows say of themselves that the server does not say of itself, column by column.

    What either side does not know is no difference. A model's folder may lie elsewhere on another machine:
    where the last parts agree, the paths count as equal.
    """
    found = []
    for name, mine in told(facts).items():
        for recorded, rows in sorted(provenance.get(name, {}).items(), key=lambda item: str(item[0])):
            if recorded == UNKNOWN or mine == UNKNOWN:
                continue
            # A column that may be null says so by null: the server ran without the part.
            if name in ("target_revision", "tokenizer_sha256", "chat_template_sha256") and mine is None:
                continue
            left, right = recorded if recorded != NONE else None, mine if mine != NONE else None
            if left == right or (name == "target_model" and _same_model(left, right)):
                continue
            found.append(Difference(name, left or "none", right or "none", rows))
    return tuple(found)


def _same_model(left: str | None, right: str | None) -> bool:
    return left is not None and right is not None and PurePath(left).name == PurePath(right).name
