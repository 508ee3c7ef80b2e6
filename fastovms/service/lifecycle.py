"""Runs a server from start to end: listens, loads, serves, obeys signals, feeds systemd's
watchdog, and leaves without dropping what was accepted."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final, TypeVar

from fastovms.api.admin.status import ServerPhase, ServerStatus
from fastovms.api.serving.served import ServedModels
from fastovms.backend import Backend
from fastovms.config.http_config import HttpConfig
from fastovms.config.service_config import ServiceConfig
from fastovms.errors import ConfigurationError, EngineFailed
from fastovms.http.listening.systemd import Notifier
from fastovms.http.server import HttpServer
from fastovms.service.engine_watch import EngineWatch
from fastovms.system.daemon_thread import in_daemon_thread
from fastovms.system.last_waits import LastWaits
from fastovms.system.processor_time import ProcessorTime

logger = logging.getLogger(__name__)

_EXTENSION: Final = 30.0
"""Seconds of patience to ask the service manager for, at a time."""
_ENGINE_STOP_TIMEOUT: Final = 5.0

Result = TypeVar("Result")

Load = Callable[[], ServedModels]
"""Loads the models, which takes seconds or minutes, in a thread. Raises ConfigurationError."""


@dataclass(frozen=True, slots=True)
class LifecycleHooks:
    """What the parts of a server do at the stages of its life.

    Attributes:
        load: loads the models.
        on_loaded: adds the routes of the models.
        announce: called once the models can be asked.
        reloads: each reads a part of the configuration again, and raises ConfigurationError when it
            cannot be used.
        drains: end at shutdown what else may end by itself; each takes the seconds that are left,
            after which it is cancelled.
        ends: called when the time for that is over, before the models are closed.
        trouble: returns what the service manager's status line says besides; "" = nothing.
    """

    load: Load
    on_loaded: Callable[[ServedModels], None]
    announce: Callable[[ServedModels], None]
    reloads: Sequence[Callable[[], None]]
    drains: Sequence[Callable[[float], Coroutine[object, object, None]]]
    ends: Sequence[Callable[[], Awaitable[None]]]
    trouble: Callable[[], str]


class Lifecycle:
    """Runs a server once. SIGTERM and SIGINT end it when running requests are done, a second one at
    once; SIGHUP reloads what can be.

    Args:
        waits: bounds the waits of the shutdown, after what runs has ended.
        listens_early: whether to answer while the model loads. Not with inherited sockets: in
            those, clients wait for the answer that they want, also across a restart.
    """

    def __init__(
        self,
        server: HttpServer,
        status: ServerStatus,
        notifier: Notifier,
        http: HttpConfig,
        config: ServiceConfig,
        hooks: LifecycleHooks,
        waits: LastWaits,
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
        """Returns after a signal has ended the server.

        Raises:
            ConfigurationError: the addresses cannot be had, or the models cannot be loaded.
            EngineFailed: an engine has died or hangs.
        """
        self._server.bind()
        with self._signal_handlers():
            try:
                await self._run()
            finally:
                self._status.phase = ServerPhase.CLOSING  # requests that wait for models end, too
                await self._server.drain(self._http.drain_grace)
                await self._server.close()

    async def _run(self) -> None:
        if self._listens_early:
            await self._server.start()
        self._notifier.status("loading the model")
        models = await self._unless_stopped(in_daemon_thread("load", self._hooks.load))
        if models is None:  # the thread is left to its work
            return
        try:
            if not await self._unless_stopped(asyncio.ensure_future(_warm_up(models))):
                return
            self._hooks.on_loaded(models)
            self._status.open(models)
            if not self._listens_early:
                await self._server.start()
            self._hooks.announce(models)
            await self._serve(models)
        finally:
            # Requests that still run end with an error of their own, which a client can tell from
            # a lost connection; only then are the connections cut.
            for end in self._hooks.ends:
                await self._waits.wait("loading and unloading", end())
            await self._close_all([model.backend for model in models])
            await self._waits.wait("closing the models", in_daemon_thread("close", models.close))

    async def _unless_stopped(self, work: asyncio.Future[Result]) -> Result | None:
        """Returns the outcome of some work of the start, or None if a signal came first."""
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
        )
        watching = asyncio.ensure_future(watch.run())
        stopped = asyncio.ensure_future(self._stop.wait())
        self._notifier.ready(self._activity())
        try:
            await asyncio.wait((watching, stopped), return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                await self._drain()
            else:
                await self._linger_failed(watching.result())
            if self._status.failure is not None:
                raise EngineFailed(self._status.failure)
        finally:
            watching.cancel()
            stopped.cancel()

    async def _linger_failed(self, failure: str) -> None:
        """Waits after an engine has failed: requests have had their errors; health checks and
        balancers get time to notice."""
        logger.critical("the engine has failed: %s", failure)
        self._notifier.status(f"failed: {failure}")
        await _first_of(asyncio.sleep(self._config.failure_grace), self._stop.wait())

    async def _drain(self) -> None:
        config, http = self._config, self._http
        logger.info("shutting down: running requests may end")
        self._notifier.stopping("shutting down: running requests may end")
        patience = config.drain_delay + http.drain_grace + http.close_timeout
        # What may end by itself has as much time as what is closed afterwards.
        self._notifier.extend_timeout(patience + 2 * http.drain_timeout + _EXTENSION)
        self._status.phase = ServerPhase.LEAVING
        await _first_of(asyncio.sleep(config.drain_delay), self._stop_now.wait())
        if not self._stop_now.is_set():
            await _first_of(self._drain_all(http.drain_timeout), self._stop_now.wait())
        self._status.phase = ServerPhase.CLOSING

    async def _close_all(self, backends: Sequence[Backend]) -> None:
        """Closes the backends. An engine that does not stop is left behind."""
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
        """Lets what runs end by itself, the server first: requests that still arrive may give the
        others more to do."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        for drain in (self._server.drain, *self._hooks.drains):
            left = max(0.0, end - loop.time())
            await _first_of(drain(left), asyncio.sleep(left))

    # What the service manager is told

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
            # The process is about to end, and in order: the default action would change its exit
            # code. `loop.remove_signal_handler` restores that one, if only for a moment.
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
            except ConfigurationError as error:
                num_refused += 1
                logger.error("not reloaded: %s", error)
        but = ", but for what could not be" if num_refused else ""
        logger.info("certificates, keys and log files are reloaded%s", but)
        if serving:
            self._notifier.ready(self._activity())


async def _warm_up(models: ServedModels) -> bool:
    """Starts the backends, and returns True once none lets its first request wait.

    Raises:
        EngineFailed: a model cannot compute anything.
    """
    backends = [model.backend for model in models]
    for backend in backends:
        backend.start()
    for backend in backends:
        await backend.warmed_up()
    return True


def _on_loop(
    loop: asyncio.AbstractEventLoop, handler: Callable[[], None]
) -> Callable[[int, FrameType | None], object]:
    """Returns a signal handler that has the loop call `handler`: a signal may come between any two
    instructions, but this runs between two callbacks."""
    return lambda number, frame: loop.call_soon_threadsafe(handler)


async def _first_of(*waits: Coroutine[object, object, object]) -> None:
    """Returns when one of these has returned; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
