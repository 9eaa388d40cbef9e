"""What a boot on a machine without a GPU takes beside the model (SGLang 0.5.23, measured).

Place in the flow: below the launcher. Imports the stage's own modules only.

- `SGLANG_PLATFORM=shardgate_cpu`, see `harness.cpu_platform`, and with it `--device cpu`: without the
  flag the boot ends with `AttributeError: 'torch.device' object has no attribute 'split'`.
- `--max-total-tokens`: else SGLang sizes the KV cache by the machine's memory.
- `SGLANG_CPU_OMP_THREADS_BIND` (`0|1`) for `--tp-size 2` and more.
- `--sleep-on-idle`: else the scheduler polls, and every idle server keeps a processor busy.
- `OMP_NUM_THREADS=1` where processors are shared: threads that spin for each other cost far more.
- no `PYTHONDONTWRITEBYTECODE`: without `.pyc` files every boot compiles anew and takes twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.server.failures import CannotBoot
from harness.server.flags import has, text_of
from harness.server.hardware import processors

CPU_TOKENS = 8192
"""Tokens that the KV cache of a CPU boot holds unless a flag says otherwise."""


_MOST_RANKS = 1024


def cpu_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """The flags that a boot without a GPU needs and that were not given."""
    wanted = {"device": "cpu", "max_total_tokens": str(CPU_TOKENS)}
    missing = {name: value for name, value in wanted.items() if not has(flags, name)}
    switches = () if has(flags, "sleep_on_idle") else ("--sleep-on-idle",)
    given = (part for name, value in missing.items() for part in ("--" + name.replace("_", "-"), value))
    return (*given, *switches)


def cpu_environment(flags: Sequence[str], present: Mapping[str, str]) -> dict[str, str]:
    """The variables that a boot without a GPU needs and that are not `present`."""
    wanted = {"SGLANG_PLATFORM": "shardgate_cpu", "OMP_NUM_THREADS": "1"}
    given = text_of(flags, "tp_size") or "1"
    if not (given.isascii() and given.isdigit() and 0 < int(given[:20]) <= _MOST_RANKS):
        raise CannotBoot(
            f"--tp-size needs a whole number from 1 to {_MOST_RANKS} on a CPU",
            where=f"--tp-size {given}",
            why="each rank takes processors of its own, by its number",
            remedy="correct the number",
        )
    ranks = int(given)
    if ranks > 1:
        # One set of processors per rank, by turns; with fewer processors than ranks they are shared.
        own = processors()
        shares = [own[rank::ranks] or (own[rank % len(own)],) for rank in range(ranks)]
        wanted["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, share)) for share in shares)
    return {name: value for name, value in wanted.items() if name not in present}
