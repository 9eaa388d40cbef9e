"""What an audit is given besides shards and tokenizer: eval set, draft vocabulary, stored rates, template.

Place in the flow: under the rules, beside the thresholds. Imports `contracts.errors` only; what is heavy
inside the functions that read files. Everything here is small plain data that a spawned worker can be handed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Given:
    """What was given; a rule that needs a part which is None stays unchecked."""

    def digests(self) -> dict[str, str]:
        """Return name → SHA-256 (hex) of each part that was given; the contract's fingerprint covers them."""
        return {}
