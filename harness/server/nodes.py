"""One server on several machines: which node a command line is for, and when another than the first is up.

Place in the flow: below the launcher, beside readiness. Imports the stage's own modules only.

SGLang's node 0 serves the API. Every other node (`--node-rank 1` and up) loads its share of the weights,
then opens a port that answers 200 to `/health`, `/health_generate` and `/ping` and 404 to everything else,
whether or not the whole can generate (0.5.23: `launch_dummy_health_check_server`, called once the node's own
schedulers are ready). So such a node is up when that port answers; what the whole can do is asked at node 0.

Half of a prefill/decode pair serves the API but generates nothing by itself; its `/health` runs a request
against a made-up partner, and the pair is asked through its router.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.server.flags import text_of
from harness.server.http import call


def _number(flags: Sequence[str], name: str, otherwise: int) -> int:
    value = text_of(flags, name)
    return int(value) if value is not None and value.isdigit() else otherwise


def node_count(flags: Sequence[str]) -> int:
    """How many machines the server runs on, as its flags say."""
    return _number(flags, "nnodes", 1)


def node_rank(flags: Sequence[str]) -> int:
    """Which of these machines the command line is for; node 0 serves the API."""
    return _number(flags, "node_rank", 0)


def serves_api(flags: Sequence[str]) -> bool:
    """Whether this node answers requests: node 0 of however many."""
    return node_rank(flags) == 0


def generates_alone(flags: Sequence[str]) -> bool:
    """Whether a request to this server alone can be answered: not by half of a prefill/decode pair."""
    return text_of(flags, "disaggregation_mode") in (None, "null")


def follower_is_up(base_url: str) -> bool:
    """Whether a node other than the first has loaded its weights and joined.

    Raises `Unreachable` while nobody listens there.
    """
    return call(base_url, "/ping", timeout=5.0).status == 200
