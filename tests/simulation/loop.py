"""The event loop of a simulated process: asyncio's own, over the world's clock."""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import base_events
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from tests.simulation.world import Executor, Process, SimThread, current, running


class Numbered:
    """Sets of such objects have an order that does not depend on addresses."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _Task(Numbered, asyncio.Task):  # type: ignore[type-arg]
    pass


class _Future(Numbered, asyncio.Future):  # type: ignore[type-arg]
    pass


class SimLoop(base_events.BaseEventLoop):
    """Belongs to the simulated thread that creates it."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        thread = running()
        self._process = process
        self._world = process.world
        self._sim_thread: SimThread = thread
        self._selector = self
        self._clock_resolution = 1e-6
        self._is_woken = False
        self._num_made = 0
        self._executor = Executor(8)
        self._readers: dict[Any, Callable[[], object]] = {}
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._process.monotonic()

    # The selector

    def select(self, timeout: float | None) -> tuple[()]:
        world = self._world
        if timeout is not None and timeout <= 0:
            world.pause()
        elif not self._is_woken:
            seconds = float("inf") if timeout is None else timeout / self._process.rate
            world.block(world.now + seconds)
        self._is_woken = False
        return ()

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        self._is_woken = True
        self._world.wake(self._sim_thread)

    # Sockets that stand for listening ones

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        self._readers[fd] = partial(callback, *args)
        self.inject(callback, *args)

    def remove_reader(self, fd: Any) -> bool:  # type: ignore[override]
        return self._readers.pop(fd, None) is not None

    def make_readable(self, fd: Any) -> None:
        """Has the reader of a socket be called."""
        self.inject(lambda: self._readers.get(fd, int)())

    async def connect_accepted_socket(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], Any],
        sock: Any,
        *,
        ssl: Any = None,
        **timeouts: float,
    ) -> None:
        await sock.connect(self, protocol_factory(), ssl, **timeouts)

    # Calls of other threads

    def inject(self, callback: Callable[..., object], *args: Any) -> None:
        """Calls a function in the next pass, as the system does when a socket is ready."""
        if not self.is_closed() and not self._process.is_dead:
            self._ready.append(asyncio.Handle(callback, args, self, contextvars.Context()))
            self._write_to_self()

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        if current() is not None:
            self._world.pause()
        return handle

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()

        def settle(error: BaseException | None, result: object) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def work() -> None:
            if future.cancelled():
                return
            error, result = None, None
            try:
                result = func(*args)
            except Exception as raised:
                error = raised
            with suppress(RuntimeError):  # the loop has closed
                self.call_soon_threadsafe(settle, error, result)

        (executor or self._executor).run(work)
        return future

    def set_default_executor(self, executor: object) -> None:
        pass

    async def shutdown_default_executor(self, *_: object) -> None:
        pass

    # Objects whose order in sets is that of their creation

    def _make_task(self, loop: Any, coro: Any, **options: Any) -> Any:
        return self._made(_Task, coro, loop=loop, **options)

    def create_future(self) -> Any:
        return self._made(_Future, loop=self)

    def _made(self, kind: type[Any], *given: Any, **options: Any) -> Any:
        self._num_made += 1
        made = kind.__new__(kind)
        made.number = self._num_made
        made.__init__(*given, **options)
        return made
