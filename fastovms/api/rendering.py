"""Runs work that renders chat templates: at once, or in a process where it takes more than a chat
needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from fastovms.api import offload
from fastovms.api.body import FairThread
from fastovms.backends.template_renderer import TemplateRenderer
from fastovms.text.sandbox import FULL, Budget, Limits, NeedsProcess

_AT_ONCE: Final = Limits(100_000, 16_000_000)
"""The limits of a request in the server's own process, whose other threads wait for it. Long chats
need a fraction of them."""

Result = TypeVar("Result")


class TemplateRuns:
    """Runs the renderings of one model. All renderings of a request share one budget. Belongs to
    one event loop.

    Args:
        budget: that of the model's template.

    Attributes:
        num_outside: how many runs took the process.
    """

    def __init__(self, budget: Budget) -> None:
        self.num_outside = 0
        self._budget = budget
        self._process = TemplateRenderer()
        self._thread: FairThread[Any] = FairThread("chat templates", per_client=16, total=64)

    async def run(self, client: str, work: Callable[[], Result], cost: int) -> Result:
        """Returns the result of work that renders templates. Work that takes much, or renders a
        template of a client, is begun again in a thread that renders in a process; clients take
        turns. Raises Overloaded if too many wait; and the errors of the work.

        Args:
            client: the sender.
            cost: of the work; see `offload.run`.
        """
        try:
            return await offload.run(partial(self._at_once, work), cost)
        except NeedsProcess:
            self.num_outside += 1
        result: Result = await self._thread.run(client, partial(self._outside, work))
        return result

    def close(self) -> None:
        """Ends the process, and refuses what waits for it."""
        self._thread.close()
        self._process.close()

    def _at_once(self, work: Callable[[], Result]) -> Result:
        with self._budget.of(_AT_ONCE, is_small=True):
            return work()

    def _outside(self, work: Callable[[], Result]) -> Result:
        with self._budget.of(FULL, outside=self._process):
            return work()
