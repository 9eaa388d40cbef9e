"""The processor time of a server's HTTP process: where SGLang's parsers run.

Place in the flow: beside the load. Imports the standard library; psutil where it is
installed.

SGLang's main process takes requests, tokenises, parses and writes answers; model and detokeniser are
processes of their own. Its processor time therefore shows what parsing costs even where the throughput does
not, and a machine that is busy with other work changes it little.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from harness.client import is_loopback


def front_clock(base_url: str) -> Callable[[], float] | None:
    """Return a clock of the processor seconds of whatever listens at a URL of this machine.

    None where the server runs elsewhere, where psutil is not installed, and where the process can't be seen.
    """
    if not is_loopback(base_url):
        return None
    try:
        psutil: Any = importlib.import_module("psutil")
    except ImportError:
        return None
    port = urlsplit(base_url).port or 80
    try:
        listening = {
            one.pid
            for one in psutil.net_connections(kind="tcp")
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid
        }
        processes = [psutil.Process(pid) for pid in sorted(listening)]
    except (psutil.Error, OSError):
        return None
    if not processes:
        return None

    def clock() -> float:
        total = 0.0
        for process in processes:
            try:
                times = process.cpu_times()
            except psutil.Error:
                return float("nan")  # it died: what is made of this is no number either
            total += times.user + times.system
        return total

    return clock
