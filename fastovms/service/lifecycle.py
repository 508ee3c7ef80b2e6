"""The lifecycle of the server process: startup, supervision, signals, shutdown."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, TypeVar

from fastovms.api.admin import DOCS_PATHS, HEALTH_PATHS, ServerPhase, ServerStatus
from fastovms.api.dialect import render_error
from fastovms.api.served import ServedModels
from fastovms.backend import Backend
from fastovms.config import HttpConfig
from fastovms.errors import ConfigurationError, EngineFailed
from fastovms.http.gates import (
    ApiKeys,
    Budgets,
    CorsPolicy,
    HostCheck,
    KeyLimits,
    OriginCheck,
    machine_names,
    read_api_keys,
    tenant_of,
)
from fastovms.http.listeners import Notifier
from fastovms.http.messages import Budget, Caller, Check, Request, Response
from fastovms.http.server import HttpServer
from fastovms.server_config import SecurityConfig, ServiceConfig
from fastovms.service.watch import EngineWatch, ThroughputLog
from fastovms.system.processor_time import ProcessorTime
from fastovms.system.threads import ShutdownWaits, in_daemon_thread

logger = logging.getLogger(__name__)


class KeyCheck:
    """Checks API keys; implements `http.messages.Check`. Health paths and the API description need
    no key. Raises ConfigurationError if the keys cannot be read.

    Args:
        open_paths: further paths that never need a key, such as the page's files.
        new_budgets: creates the usage counters of keys with limits; called only if there are any.
    """

    def __init__(
        self,
        status: ServerStatus,
        config: SecurityConfig,
        environ: Mapping[str, str],
        open_paths: Collection[str] = (),
        new_budgets: Callable[[], Budgets] | None = None,
    ) -> None:
        self._status = status
        self._new_budgets = new_budgets
        self._budgets: Budgets | None = None
        self._config = config
        self._environ = environ
        self._open_paths = frozenset(open_paths)
        self._keys = self._read_keys()

    def __call__(self, request: Request) -> Response | None:
        if request.path in self._open_paths:
            return None
        if self._keys is None:
            request.caller = Caller(tenant="", is_admin=request.is_local)
        else:
            refusal = self._keys(request)
            if refusal is not None:
                return refusal
        return self._status.refusal(request)

    @property
    def needs_key(self) -> bool:
        """Whether requests need an API key."""
        return self._keys is not None

    @property
    def tenants(self) -> frozenset[str]:
        """The tenants of the valid keys; only "" if no key is needed."""
        return frozenset(("",)) if self._keys is None else self._keys.tenants

    def find_budget(self, tenant: str) -> Budget | None:
        """Returns the usage limits of a tenant's key, or None if the key has no limits."""
        return None if self._budgets is None else self._budgets.find(tenant)

    def reload(self) -> None:
        """Reads the keys again. Raises ConfigurationError if the keys cannot be read; the old keys
        stay in use."""
        self._keys = self._read_keys()

    def _read_keys(self) -> ApiKeys | None:
        config = self._config
        usual = KeyLimits(
            config.requests_per_minute, config.tokens_per_minute, config.tokens_per_day
        )
        keys = read_api_keys(config.api_key_file, self._environ, config.api_keys, usual)
        exempt = (*HEALTH_PATHS, *(DOCS_PATHS if config.enable_docs else ()))
        if keys.limits and self._budgets is None and self._new_budgets is not None:
            self._budgets = self._new_budgets()
        if self._budgets is not None:
            limits = {tenant_of(key): limits for key, limits in keys.limits.items()}
            self._budgets.set_limits(limits)
        if not keys.every:
            return None
        return ApiKeys(keys.every, render_error, exempt, keys.admins, self._budgets)


def cors_policy(config: SecurityConfig, *, needs_key: bool) -> CorsPolicy:
    """Returns the CORS policy. Without `--allowed-origins`, all origins are allowed if requests
    need an API key, otherwise none."""
    origins = config.allowed_origins
    if origins is None:
        origins = "*" if needs_key else ""
    return CorsPolicy(
        origins,
        config.allowed_methods,
        config.allowed_headers,
        credentials=config.allow_credentials,
    )


def gates_for(
    config: SecurityConfig,
    cors: CorsPolicy,
    *,
    needs_key: bool,
    tls: bool,
    is_local: Callable[[], bool],
) -> list[Check]:
    """Returns the checks that each request passes before it is routed.

    Args:
        tls: whether this server itself terminates TLS.
        is_local: returns whether only this machine can reach the server; called for each request,
            because it is known only after binding.
    """
    gates: list[Check] = [OriginCheck(cors, render_error, tls=tls)]
    named = None if config.allowed_hosts is None else config.allowed_hosts.split(",")
    if named is None and not needs_key:
        gates.append(HostCheck(_own_names(), render_error, is_local))
    elif named is not None and "*" not in named:
        gates.append(HostCheck({*_own_names(), *named}, render_error))
    return gates


def _own_names() -> set[str]:
    return machine_names(socket.gethostname())


Stamp = tuple[int, int, int] | None


class FileWatch:
    """Watches a file for changes of its modification time, size or inode; a check takes
    microseconds.

    Args:
        interval: seconds between two checks; 0 = no checks.
        on_change: called on the loop after a change, but not while the file is missing.
    """

    def __init__(self, path: Path, interval: float, on_change: Callable[[], None]) -> None:
        self._path = path
        self._interval = interval
        self._on_change = on_change
        self._stamp = self._look()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to check the file on an event loop."""
        if self._interval:
            self._timer = loop.call_later(self._interval, self._check, loop)

    def stop(self) -> None:
        """Ends the checks."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self.start(loop)
        stamp = self._look()
        if stamp is not None and stamp != self._stamp:
            self._stamp = stamp
            self._on_change()

    def _look(self) -> Stamp:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


_EXTENSION: Final = 30.0
"""Seconds by which the service manager is asked to extend its timeout, each time."""
_ENGINE_STOP_TIMEOUT: Final = 5.0

Result = TypeVar("Result")

Load = Callable[[], ServedModels]
"""Loads the models, which takes seconds or minutes, in a thread. Raises ConfigurationError."""


@dataclass(frozen=True, slots=True)
class LifecycleHooks:
    """The functions that `Lifecycle` calls at each stage.

    Attributes:
        load: loads the models.
        on_loaded: adds the routes of the models.
        announce: called once the models are ready.
        reloads: each reads a part of the configuration again, and raises ConfigurationError if it
            is invalid.
        drains: wait for other work to end at shutdown; each gets the remaining seconds, after which
            it is cancelled.
        ends: called when that time is over, before the models are closed.
        trouble: returns an addition to the service manager's status line; "" = none.
    """

    load: Load
    on_loaded: Callable[[ServedModels], None]
    announce: Callable[[ServedModels], None]
    reloads: Sequence[Callable[[], None]]
    drains: Sequence[Callable[[float], Coroutine[object, object, None]]]
    ends: Sequence[Callable[[], Awaitable[None]]]
    trouble: Callable[[], str]


class Lifecycle:
    """Runs a server once. SIGTERM and SIGINT stop the server after its running requests; a second
    signal stops it at once. SIGHUP reloads configuration files, keys and certificates.

    Args:
        waits: limits the total time of the waits at shutdown.
        listens_early: whether to answer requests (with 503) while the model loads. False with
            inherited sockets: clients then wait in the socket's queue until the server is ready.
    """

    def __init__(
        self,
        server: HttpServer,
        status: ServerStatus,
        notifier: Notifier,
        http: HttpConfig,
        config: ServiceConfig,
        hooks: LifecycleHooks,
        waits: ShutdownWaits,
        *,
        listens_early: bool,
    ) -> None:
        self._server = server
        self._status = status
        self._notifier = notifier
        self._http = http
        self._config = config
        self._hooks = hooks
        self._waits = waits
        self._listens_early = listens_early
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> None:
        """Runs the server until a signal ends it. Raises ConfigurationError if an address is not
        available or the models cannot be loaded, and EngineFailed if an engine dies or hangs."""
        self._server.bind()
        with self._signal_handlers():
            try:
                await self._run()
            finally:
                # Requests that wait for models end as well.
                self._status.phase = ServerPhase.CLOSING
                await self._server.drain(self._http.drain_grace)
                await self._server.close()

    async def _run(self) -> None:
        if self._listens_early:
            await self._server.start()
        self._notifier.status("loading the model")
        models = await self._unless_stopped(in_daemon_thread("load", self._hooks.load))
        if models is None:  # do not wait for the loading thread
            return
        try:
            if list(models):
                logger.info("warming up: computing the first steps before requests are accepted")
            if not await self._unless_stopped(asyncio.ensure_future(_warm_up(models))):
                return
            self._hooks.on_loaded(models)
            self._status.open(models)
            if not self._listens_early:
                await self._server.start()
            self._hooks.announce(models)
            await self._serve(models)
        finally:
            # Requests that still run end with an error of their own, which a client can distinguish
            # from a lost connection; only then are the connections cut.
            for end in self._hooks.ends:
                await self._waits.wait("loading and unloading", end())
            await self._close_all([model.backend for model in models])
            await self._waits.wait("closing the models", in_daemon_thread("close", models.close))

    async def _unless_stopped(self, work: asyncio.Future[Result]) -> Result | None:
        """Returns the result of a startup task, or None if a signal to stop came first."""
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            while not work.done():
                self._notifier.extend_timeout(_EXTENSION)
                await asyncio.wait(
                    (work, stopped), timeout=_EXTENSION / 2, return_when=asyncio.FIRST_COMPLETED
                )
                if stopped.done():
                    self._notifier.stopping("stopped while loading")
                    return None
            return work.result()
        finally:
            stopped.cancel()
            work.cancel()

    async def _serve(self, models: ServedModels) -> None:
        watch = EngineWatch(
            lambda: [model.backend for model in models],
            timeout=self._config.engine_timeout,
            on_progress=self._on_progress,
            interval=self._notifier.watchdog_interval,
            time=ProcessorTime(time.monotonic),
            on_stats=ThroughputLog(time.monotonic).observe,
        )
        watching = asyncio.ensure_future(watch.run())
        stopped = asyncio.ensure_future(self._stop.wait())
        self._notifier.ready(self._activity())
        try:
            await asyncio.wait((watching, stopped), return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                await self._drain()
            else:
                # Gives health checks and load balancers time to notice.
                failure = watching.result()
                logger.critical("the engine has failed: %s", failure)
                self._notifier.status(f"failed: {failure}")
                await _first_of(asyncio.sleep(self._config.failure_grace), self._stop.wait())
            if self._status.failure is not None:
                raise EngineFailed(self._status.failure)
        finally:
            watching.cancel()
            stopped.cancel()

    async def _drain(self) -> None:
        config, http = self._config, self._http
        logger.info("shutting down: waiting for running requests to finish")
        self._notifier.stopping("shutting down: waiting for running requests to finish")
        patience = config.drain_delay + http.drain_grace + http.close_timeout
        # One timeout to let requests end by themselves, and one to close the rest.
        self._notifier.extend_timeout(patience + 2 * http.drain_timeout + _EXTENSION)
        self._status.phase = ServerPhase.LEAVING
        await _first_of(asyncio.sleep(config.drain_delay), self._stop_now.wait())
        if not self._stop_now.is_set():
            await _first_of(self._drain_all(http.drain_timeout), self._stop_now.wait())
        self._status.phase = ServerPhase.CLOSING

    async def _close_all(self, backends: Sequence[Backend]) -> None:
        """Closes the backends. Does not wait for an engine that hangs."""
        if not backends:
            return
        closing = [asyncio.ensure_future(backend.close()) for backend in backends]
        closed = self._waits.wait("the engines", asyncio.wait(closing), _ENGINE_STOP_TIMEOUT)
        await _first_of(closed, self._stop_now.wait())
        for backend, task in zip(backends, closing, strict=True):
            if not task.done():
                backend.fail("it does not stop")
                task.cancel()
        await asyncio.gather(*closing, return_exceptions=True)

    async def _drain_all(self, seconds: float) -> None:
        """Waits for running work to end: first the server's requests, because they may create more
        background work."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        for drain in (self._server.drain, *self._hooks.drains):
            left = max(0.0, end - loop.time())
            await _first_of(drain(left), asyncio.sleep(left))

    # Status for the service manager

    def _on_progress(self) -> None:
        if self._notifier.watchdog_interval is not None:
            self._notifier.watchdog()
        if self._status.phase is ServerPhase.SERVING:
            self._notifier.status(self._activity())

    def _activity(self) -> str:
        running = waiting = 0
        for model in self._status.models or ():
            stats = model.backend.stats()
            running += stats.num_running
            waiting += stats.num_waiting
        names = ", ".join(model.info.name for model in self._status.models or ()) or "no model yet"
        activity = (
            f"serving {names}: {running} running, {waiting} waiting, "
            f"{self._server.num_connections} connections"
        )
        return "; ".join(filter(None, (activity, self._hooks.trouble())))

    # Signals

    @contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], None]] = {
            signal.SIGTERM: self._on_stop,
            signal.SIGINT: self._on_stop,
            signal.SIGHUP: self._on_reload,
        }
        for number, handler in handlers.items():
            signal.signal(number, _on_loop(loop, handler))
        try:
            yield
        finally:
            # Ignore signals from here on: their default action would change the exit code of a
            # process that ends in order. `loop.remove_signal_handler` would restore that action.
            for number in handlers:
                signal.signal(number, signal.SIG_IGN)

    def _on_stop(self) -> None:
        (self._stop_now if self._stop.is_set() else self._stop).set()

    def _on_reload(self) -> None:
        serving = self._status.phase is ServerPhase.SERVING
        if serving:
            self._notifier.reloading()
        num_refused = 0
        for reload in self._hooks.reloads:
            try:
                reload()
            except (ConfigurationError, OSError, RuntimeError, MemoryError) as error:
                num_refused += 1
                logger.error("cannot reload: %s", error)
        but = ", except those with errors" if num_refused else ""
        logger.info("reloaded certificates, keys and log files%s", but)
        if serving:
            self._notifier.ready(self._activity())


async def _warm_up(models: ServedModels) -> bool:
    """Starts the backends. Returns True once all are ready for requests. Raises EngineFailed if a
    model cannot compute."""
    backends = [model.backend for model in models]
    for backend in backends:
        backend.start()
    for backend in backends:
        await backend.warmed_up()
    return True


def _on_loop(
    loop: asyncio.AbstractEventLoop, handler: Callable[[], None]
) -> Callable[[int, FrameType | None], object]:
    """Returns a signal handler that schedules `handler` on the event loop, so that it does not
    interrupt other code."""
    return lambda number, frame: loop.call_soon_threadsafe(handler)


async def _first_of(*waits: Coroutine[object, object, object]) -> None:
    """Waits until the first of several coroutines returns, and cancels the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
