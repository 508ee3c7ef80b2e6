"""Runs work that takes long in a thread which does not keep the process from ending."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def in_daemon_thread(name: str, work: Callable[[], Result]) -> asyncio.Future[Result]:
    """Runs `work` in a thread that, unlike those of an executor, does not keep the process from
    ending. What it raises is the future's."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(setter: Callable[[], None]) -> None:
        if not future.done():  # else nobody waits any more
            setter()

    def run() -> None:
        setter: Callable[[], None]
        try:
            setter = partial(future.set_result, work())
        except Exception as error:
            setter = partial(future.set_exception, error)
        try:
            loop.call_soon_threadsafe(settle, setter)
        except RuntimeError:
            logger.debug("the thread %s has worked for nothing: the server has ended", name)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
