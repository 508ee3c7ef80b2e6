"""Keeps those who wait for models to be loaded: requests, and orders to load one."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from fastovms.api.serving.residency import Residency
from fastovms.errors import BackendUnavailable


class ModelWaiters:
    """Each waits for a future, which is done once the model is in use on its behalf. All of it runs
    on the event loop.

    Args:
        residency: is told who waits.
        clock: seconds, of a clock that goes on steadily.
    """

    def __init__(self, residency: Residency, clock: Callable[[], float]) -> None:
        self._residency = residency
        self._clock = clock
        self._waiting: defaultdict[str, list[asyncio.Future[None]]] = defaultdict(list)
        self._orders: set[asyncio.Future[None]] = set()

    def num_waiting(self, name: str) -> int:
        return len(self._waiting[name])

    @property
    def names(self) -> list[str]:
        """The models that somebody waits for."""
        return [name for name, waiting in self._waiting.items() if waiting]

    def add(self, name: str, *, is_order: bool = False) -> asyncio.Future[None]:
        """Returns the future of one more who waits.

        Args:
            is_order: whether the model is to be loaded as it is configured now, and not otherwise.
        """
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[name].append(waiting)
        if is_order:
            self._orders.add(waiting)
            waiting.add_done_callback(self._orders.discard)
        self._residency.wait(name, self._clock())
        return waiting

    def remove(self, name: str, waiting: asyncio.Future[None]) -> bool:
        """Ends a wait, and returns whether it had not ended yet."""
        if waiting not in self._waiting[name]:
            return False
        self._waiting[name].remove(waiting)
        self._residency.stop_waiting(name)
        return True

    def hand_over(self, name: str) -> None:
        """Takes the model into use for each of those who wait, so that it cannot leave before they
        have had it."""
        for waiting in self._waiting.pop(name, ()):
            self._residency.stop_waiting(name)
            if not waiting.done():
                self._residency.acquire(name, self._clock())
                waiting.set_result(None)

    def refuse(self, name: str, error: BackendUnavailable) -> None:
        """Ends every wait for a model with an error."""
        self._refuse(name, self._waiting.pop(name, []), error)

    def refuse_orders(self, name: str, error: BackendUnavailable) -> None:
        """Ends the orders with an error; requests wait on."""
        waiting = self._waiting.pop(name, [])
        self._waiting[name] = [future for future in waiting if future not in self._orders]
        self._refuse(name, [future for future in waiting if future in self._orders], error)

    def _refuse(
        self, name: str, refused: list[asyncio.Future[None]], error: BackendUnavailable
    ) -> None:
        for waiting in refused:
            self._residency.stop_waiting(name)
            if not waiting.done():
                waiting.set_exception(error)
