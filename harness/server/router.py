"""SGLang's own router in front of servers that run: booted, held to a real generation, ended.

Place in the flow: after the servers, before the client. Imports the stage's own modules and the standard
library; the router runs as a process of its own (the package `sglang-router`).

What the router says of itself is not enough: `/health` and `/liveness` answer 200 while no worker is
registered. Ready is: every worker is registered and healthy, and a generation of the asked length came
through. A worker that never registers is named.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.server.failures import (
    BootFailed,
    BootTimeout,
    CannotBoot,
    NotReady,
    ServerDied,
    ServerError,
    Unreachable,
    describe_exit,
)
from harness.server.flags import has
from harness.server.hardware import free_port
from harness.server.http import call
from harness.server.process import GuardedProcess
from harness.server.ready import prove_generation
from harness.server.refusals import refuse_taken_port

PACKAGE = "sglang_router"
MODULE = f"{PACKAGE}.launch_router"
OWN = ("host", "port", "worker_urls", "prefill", "decode", "api_key")
"""What the harness sets itself: it must know where the router answers and whom it asks."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TELLING = re.compile(
    r"^(?!\s+\[).*(?:\bERROR\b|error:|\bError\b|Exception|panicked|address already in use)", re.IGNORECASE
)


def plain_lines(text: str, limit: int = 6) -> tuple[str, ...]:
    """The log lines that tell of a failure, else the last ones; colours taken out."""
    lines = [line.rstrip() for line in _COLOUR.sub("", text).splitlines() if line.strip()]
    chosen = [line for line in lines if _TELLING.search(line)][-limit:]
    return tuple(line[:300] for line in chosen or lines[-limit:])


class Router:
    """One router over `workers`, from boot to the end of its last process; a context manager.

    `workers` are base URLs of servers that run. With prefill/decode disaggregation give `prefill` (base URL
    and bootstrap port) and `decode` instead. `flags` go to the router as they are. `api_key` is the workers'
    key: the router sends it to them, and the proof of a generation sends it to the router.
    """

    def __init__(
        self,
        workers: Sequence[str] = (),
        *,
        prefill: Sequence[tuple[str, int | None]] = (),
        decode: Sequence[str] = (),
        flags: Sequence[str] = (),
        host: str = "127.0.0.1",
        port: int | None = None,
        log_path: str | os.PathLike[str] | None = None,
        timeout: float = 300.0,
        grace: float = 10.0,
        api_key: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.workers = tuple(workers)
        self.prefill = tuple(prefill)
        self.decode = tuple(decode)
        self.flags = tuple(flags)
        self.host = host
        self.timeout = timeout
        self._grace = grace
        self._api_key = api_key
        self._env = dict(env or {})
        self._asked_port = port
        self._asked_log = None if log_path is None else Path(log_path)
        self._process: GuardedProcess | None = None
        self._ready = False
        self.port = port or 0
        self._metrics_port = 0
        self.log_path = self._asked_log or Path()
        self.boot_seconds = 0.0

    @property
    def base_url(self) -> str:
        """`http://host:port`; for a router that listens everywhere, by the loopback address."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"

    @property
    def pid(self) -> int:
        """The router's process id, which is also its process group."""
        if self._process is None:
            raise RuntimeError("the router was not started")
        return self._process.pid

    @property
    def urls(self) -> tuple[str, ...]:
        """Every server behind it."""
        return (*self.workers, *(url for url, _ in self.prefill), *self.decode)

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the router's own parser is given; the key is not shown here (see `command`)."""
        out: list[str] = ["--host", self.host, "--port", str(self.port)]
        if self.prefill or self.decode:
            if not has(self.flags, "pd_disaggregation"):
                out.append("--pd-disaggregation")
            for url, bootstrap in self.prefill:
                out += ["--prefill", url, "none" if bootstrap is None else str(bootstrap)]
            for url in self.decode:
                out += ["--decode", url]
        else:
            out += ["--worker-urls", *self.workers]
        # Else every router opens port 29000, and asks a new worker again only after half a minute.
        if not has(self.flags, "prometheus_port"):
            out += ["--prometheus-port", str(self._metrics_port), "--prometheus-host", "127.0.0.1"]
        if not has(self.flags, "worker_startup_check_interval"):
            out += ["--worker-startup-check-interval", "1"]
        return (*out, *self.flags)

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that starts it, the key among it."""
        key = ("--api-key", self._api_key) if self._api_key else ()
        return (sys.executable, "-m", MODULE, *self.arguments, *key)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Boot and return when ready. On any error, Ctrl-C included, nothing of the router is left."""
        if self._process is not None:
            raise RuntimeError("the router was started already")
        self._refuse_early()
        self.choose_ports()
        name = f"router-{self.port}-{uuid.uuid4().hex[:8]}.log"
        self.log_path = self._asked_log or Path(tempfile.gettempdir()) / name
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        try:
            self._process = GuardedProcess(
                self.command, self.log_path, env=self._environment(), grace=self._grace
            )
            self._wait(started + self.timeout)
        except BaseException:
            if self._process is not None:
                self._process.end()
            raise
        self.boot_seconds = time.monotonic() - started
        self._ready = True

    def choose_ports(self) -> None:
        """Find the ports that were not asked for; `command` has them then."""
        self.port = self._asked_port if self._asked_port is not None else free_port(self.host)
        self._metrics_port = free_port("127.0.0.1")

    def _refuse_early(self) -> None:
        if importlib.util.find_spec(PACKAGE) is None:
            raise CannotBoot(
                "SGLang's router is not installed",
                where=sys.prefix,
                why="it comes in a package of its own, sglang-router",
                remedy="install shardgate[cpu], or sglang-router beside SGLang on a GPU box",
            )
        self.refuse_wrong_use()

    def refuse_wrong_use(self) -> None:
        """Raise `CannotBoot` for flags that are ours, workers that don't go together, and a taken port."""
        for setting in OWN:
            if has(self.flags, setting):
                raise CannotBoot(
                    f"--{setting.replace('_', '-')} among the router's flags",
                    why="the harness sets it itself",
                    remedy="leave it out; the workers are those that the group or the caller names",
                )
        if not self.urls:
            raise CannotBoot(
                "the router has no worker",
                why="it only hands requests on",
                remedy="name at least one server",
            )
        if bool(self.prefill) != bool(self.decode) or (self.workers and self.prefill):
            raise CannotBoot(
                "the router's workers don't go together",
                why="disaggregation takes at least one prefill and one decode server, and no other",
                remedy="give each member --disaggregation-mode prefill or decode, or none of them",
            )
        if self._asked_port is not None:
            refuse_taken_port(self.host, self._asked_port)

    def _environment(self) -> dict[str, str]:
        given = {**os.environ, **self._env, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
        given.pop("PYTHONDONTWRITEBYTECODE", None)
        for name in ("no_proxy", "NO_PROXY"):
            given[name] = ",".join(filter(None, (given.get(name), "127.0.0.1,localhost")))
        return given

    def _wait(self, deadline: float) -> None:
        lacking: tuple[str, ...] = self.urls
        while True:
            self._still_there(BootFailed, "the router died while booting")
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._error(
                    BootTimeout,
                    f"the router was not ready after {self.timeout:g} s",
                    f"these workers did not register: {', '.join(lacking)}" if lacking else "no answer came",
                    "check that these servers run and that the router's machine reaches them",
                )
            try:
                lacking = self._lacking()
                if not lacking:
                    # The servers' numbers were looked at one by one; a router may not pass logprobs through.
                    prove_generation(self.base_url, timeout=left, api_key=self._api_key, logprobs=False)
                    return
            except Unreachable:
                pass  # it does not listen yet, or died, which the next turn finds out
            except NotReady as error:
                error.log_lines = plain_lines(self.log_text())
                raise
            time.sleep(0.2)

    def _lacking(self) -> tuple[str, ...]:
        """The servers that the router has not registered as healthy yet."""
        answer = call(self.base_url, "/workers", timeout=5.0, api_key=self._api_key)
        listed = answer.body.get("workers") if isinstance(answer.body, dict) else None
        healthy = {
            str(one.get("url", "")).rstrip("/")
            for one in (listed if isinstance(listed, list) else [])
            if isinstance(one, dict) and one.get("is_healthy") is True
        }
        # With --dp-aware the router counts each rank as a worker: URL@rank.
        healthy |= {url.rpartition("@")[0] for url in healthy if "@" in url}
        return tuple(url for url in self.urls if url.rstrip("/") not in healthy)

    def workers_seen(self) -> tuple[dict[str, Any], ...]:
        """What the router lists as its workers."""
        answer = call(self.base_url, "/workers", timeout=5.0, api_key=self._api_key)
        listed = answer.body.get("workers") if isinstance(answer.body, dict) else None
        return tuple(one for one in listed or () if isinstance(one, dict))

    def _still_there(self, kind: type[ServerError], what: str) -> None:
        code = None if self._process is None else self._process.exit_code()
        if code is not None:
            raise self._error(
                kind,
                f"{what} ({describe_exit(code)})",
                "its log has the reason",
                f"correct what the log's lines name; `python -m {MODULE} --help` lists the flags",
            )

    def _error(self, kind: type[ServerError], what: str, why: str, remedy: str) -> ServerError:
        lines = plain_lines(self.log_text())
        return kind(what, where=f"log {self.log_path}", why=why, remedy=remedy, log_lines=lines)

    def log_text(self) -> str:
        """All that the router has logged so far."""
        try:
            return self.log_path.read_text("utf-8", "replace")
        except OSError:
            return ""

    def alive(self) -> bool:
        """Whether the router's process runs."""
        return self._process is not None and self._process.exit_code() is None

    def check(self) -> None:
        """Raise `ServerDied` if the router is gone."""
        if self._process is None:
            raise RuntimeError("the router was not started")
        self._still_there(ServerDied, "the router died")

    def stop(self) -> None:
        """End the router and everything that it started. Safe to call again."""
        if self._process is not None:
            self._process.end()
        if self._asked_log is None and self._ready:
            self.log_path.unlink(missing_ok=True)
