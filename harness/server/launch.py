"""Booting SGLang and ending it: a context manager around one server process and all that it starts.

Place in the flow: the first stage. Imports the stage's own modules only; SGLang runs in a process of its own
and is never imported here.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from contracts.records import ServerFacts
from harness.server.aio import AsyncServer
from harness.server.attach import AttachedServer, attach, server_facts
from harness.server.checkpoint import checkpoint_bytes
from harness.server.cpu import cpu_environment, cpu_flags
from harness.server.failures import ServerDied
from harness.server.flags import text_of
from harness.server.hardware import free_port, needs_cpu_platform
from harness.server.history import boot_key, earlier, note
from harness.server.process import GuardedProcess
from harness.server.progress import BootProgress
from harness.server.refusals import (
    refuse_own_flags,
    refuse_taken_port,
    refuse_too_few_gpus,
    refuse_wrong_path,
    sglang_version,
)
from harness.server.vitals import oom_kills
from harness.server.waiting import Boot, DeathWatch, Waiting, died, log_error, read_log

Device = Literal["auto", "cpu", "gpu"]


class SGLangServer(AsyncServer):
    """One SGLang server, from boot to the end of its last process.

    `with SGLangServer(path, flags=["--reasoning-parser", "kimi_k2"]) as server:` boots, waits until the
    server is ready in the sense of `harness.server.ready`, and ends it on the way out, whatever the way.
    Every flag is passed to SGLang as it is. Without `port` a free one is found. The log goes to `log_path`,
    by default a file in the temporary folder that is kept when the boot fails and removed otherwise.

    The server's processes are a process group of their own. A second process watches over it: when this one
    is gone, by Ctrl-C, SIGTERM or even SIGKILL, the group is ended.

    Errors are `ServerError`s, see `harness.server.failures`.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        flags: Sequence[str] = (),
        host: str = "127.0.0.1",
        port: int | None = None,
        log_path: str | os.PathLike[str] | None = None,
        device: Device = "auto",
        timeout: float | None = None,
        stall_timeout: float | None = None,
        grace: float = 10.0,
        on_progress: Callable[[BootProgress], None] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`timeout` is the seconds until ready: 900 on a CPU and 7200 elsewhere unless given.

        `stall_timeout` is the longest time without a sign of life, which is a line in the log or bytes read:
        180 on a CPU and 600 elsewhere unless given, 0 for no limit.

        `grace` is the seconds between SIGINT and SIGKILL at the end. `on_progress` is called for every
        step of the boot, and once a second. `env` is added to the environment.
        """
        self.model_path = os.fspath(model_path)
        self.host = host
        self.on_cpu = needs_cpu_platform() if device == "auto" else device == "cpu"
        self.flags = tuple(flags) + (cpu_flags(flags) if self.on_cpu else ())
        self.timeout = timeout if timeout is not None else (900.0 if self.on_cpu else 7200.0)
        patience = stall_timeout if stall_timeout is not None else (180.0 if self.on_cpu else 600.0)
        self.stall_timeout = patience or None
        self._grace = grace
        self.asked_port = port
        self._asked_log = None if log_path is None else Path(log_path)
        self._env = dict(env or {})
        self._on_progress = on_progress
        self._api_key = text_of(self.flags, "api_key")
        self._process: GuardedProcess | None = None
        self._kills: int | None = None
        self._death: DeathWatch | None = None
        self._ready = False
        self.port = 0
        self.log_path = self._asked_log or Path()
        self.boot_seconds = 0.0

    @property
    def base_url(self) -> str:
        """`http://host:port`; for a server that listens everywhere, by the loopback address."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of SGLang's main process, which is also its process group."""
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process.pid

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that starts it."""
        own = ("--model-path", self.model_path, "--host", self.host, "--port", str(self.port))
        return (sys.executable, "-m", "sglang.launch_server", *own, *self.flags)

    def environment(self) -> dict[str, str]:
        """The environment that it is started in."""
        given = {**os.environ, **self._env}
        given.pop("PYTHONDONTWRITEBYTECODE", None)
        given["PYTHONUNBUFFERED"] = "1"
        # SGLang warms up by HTTP requests to itself, which a proxy would swallow.
        for name in ("no_proxy", "NO_PROXY"):
            given[name] = ",".join(filter(None, (given.get(name), "127.0.0.1,localhost")))
        if Path(self.model_path).exists():
            given.setdefault("HF_HUB_OFFLINE", "1")
        if self.on_cpu:
            given.update(cpu_environment(self.flags, given))
        return given

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Boot and return when ready. On any error, Ctrl-C included, nothing of the server is left."""
        if self._process is not None:
            raise RuntimeError("the server was started already")
        version = sglang_version()
        self._refuse_early()
        self.port = self.asked_port if self.asked_port is not None else free_port(self.host)
        self._kills = oom_kills()
        name = f"sglang-{self.port}-{uuid.uuid4().hex[:8]}.log"
        self.log_path = self._asked_log or Path(tempfile.gettempdir()) / name
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        try:
            self._process = GuardedProcess(
                self.command, self.log_path, env=self.environment(), grace=self._grace
            )
            self._wait(started, version)
        except BaseException:
            self._end()
            raise
        self.boot_seconds = time.monotonic() - started
        self._ready = True

    def _refuse_early(self) -> None:
        refuse_own_flags(self.flags)
        refuse_wrong_path(self.model_path)
        if self.asked_port is not None:
            refuse_taken_port(self.host, self.asked_port)
        if not self.on_cpu:
            refuse_too_few_gpus(self.flags, {**os.environ, **self._env})

    def _wait(self, started: float, version: str) -> None:
        process = self._process
        assert process is not None
        key = boot_key(self.model_path, self.flags, "cpu" if self.on_cpu else "gpu")
        boot = Boot(
            pid=process.pid,
            base_url=self.base_url,
            api_key=self._api_key,
            model_path=self.model_path,
            flags=self.flags,
            version=version,
            log_path=self.log_path,
            exit_code=process.exit_code,
            started=started,
            timeout=self.timeout,
            stall_timeout=self.stall_timeout,
            total_bytes=checkpoint_bytes(self.model_path),
            earlier=earlier(key),
            on_progress=self._on_progress,
        )
        waiting = Waiting(boot)
        waiting.until_ready()
        self._death = DeathWatch(self.log_path)
        note(key, waiting.durations)

    def log_text(self) -> str:
        """All that the server has logged so far."""
        return read_log(self.log_path)

    @staticmethod
    def attach(url: str, *, api_key: str | None = None, wait: float = 0.0) -> AttachedServer:
        """A running server by URL instead of a boot; see `harness.server.attach`."""
        return attach(url, api_key=api_key, wait=wait)

    def facts(self) -> ServerFacts:
        """What the server reports about itself."""
        return server_facts(self.base_url, api_key=self._api_key)

    def alive(self) -> bool:
        """Whether SGLang's main process runs."""
        return self._process is not None and self._process.exit_code() is None

    def check(self) -> None:
        """Raise `ServerDied`, with the log's telling lines, if the server is gone or about to go."""
        if self._process is None:
            raise RuntimeError("the server was not started")
        code = self._process.exit_code()
        if code is not None:
            raise died(self.log_path, ServerDied, "", code, self._kills)
        if self._death is not None and self._death.is_dying():
            raise log_error(
                self.log_path,
                ServerDied,
                "the server is dying (one of its processes is gone)",
                "its log says no more",
            )

    def stop(self) -> None:
        """End the server and everything that it started. Safe to call again."""
        self._end()
        if self._asked_log is None and self._ready:
            self.log_path.unlink(missing_ok=True)

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
