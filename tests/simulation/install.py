"""Puts the world's clocks, chance and threads in place of the system's.

`install_clocks` must be called before the product is imported, since its functions have clocks as
defaults; `install_threads` afterwards. On threads that are not simulated everything is as ever.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.simulation import world as worlds
from tests.simulation.world import current


def _virtual(real: Callable[[], float], name: str) -> Callable[[], float]:
    def clock() -> float:
        thread = current()
        # A library may look only the first time, as compilers do, which takes no virtual time.
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if thread is None or not caller.startswith("fastovms"):
            return real()
        return getattr(thread.process, name)()  # type: ignore[no-any-return]

    return clock


def install_clocks() -> None:
    time.monotonic = _virtual(time.monotonic, "monotonic")
    time.perf_counter = _virtual(time.perf_counter, "monotonic")
    time.time = _virtual(time.time, "unix_time")
    for name in ("thread_time", "process_time"):
        real = getattr(time, name)
        setattr(time, name, lambda real=real: real() if current() is None else 0.0)
    token_hex, randbits = secrets.token_hex, secrets.randbits

    def virtual_token_hex(nbytes: int | None = None) -> str:
        thread = current()
        if thread is None:
            return token_hex(nbytes)
        return thread.world.secrets.randbytes(nbytes or 32).hex()

    def virtual_randbits(k: int) -> int:
        thread = current()
        return randbits(k) if thread is None else thread.world.secrets.getrandbits(k)

    secrets.token_hex, secrets.randbits = virtual_token_hex, virtual_randbits


_NAMES = ("Lock", "Condition", "Event", "Thread")


def _chosen(name: str, real: Any) -> Callable[..., Any]:
    simulated = getattr(worlds, name)

    def make(*args: Any, **options: Any) -> Any:
        return (real if current() is None else simulated)(*args, **options)

    return make


def install_threads(package: str = "fastovms") -> None:
    """Has the loaded modules of a package make simulated threads, locks and queues."""
    import asyncio
    import queue

    # Coroutines of killed processes make no loop when they are collected, which would keep them.
    asyncio.set_event_loop(None)

    fake_threading = SimpleNamespace(**vars(threading))
    for name in _NAMES:
        setattr(fake_threading, name, _chosen(name, getattr(threading, name)))
    fake_queue = SimpleNamespace(**vars(queue))
    fake_queue.SimpleQueue = _chosen("SimpleQueue", queue.SimpleQueue)
    executor = _chosen("Executor", ThreadPoolExecutor)
    for name, module in list(sys.modules.items()):
        if not name.startswith(f"{package}."):
            continue
        for attribute, value in list(vars(module).items()):
            if value is threading:
                setattr(module, attribute, fake_threading)
            elif value is queue:
                setattr(module, attribute, fake_queue)
            elif value is ThreadPoolExecutor:
                setattr(module, attribute, executor)


class _PlantingFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a module with a part of its text replaced."""

    def __init__(self, name: str, old: str, new: str) -> None:
        self._name, self._old, self._new = name, old, new

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert found is not None
        assert found.origin is not None
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__file__ is not None
        with open(module.__file__, encoding="utf-8") as file:
            text = file.read()
        count = text.count(self._old)
        assert count == 1, f"{self._name} has the text of the fault {count} times"
        text = text.replace(self._old, self._new)
        exec(compile(text, module.__file__, "exec"), module.__dict__)


def plant(module: str, old: str, new: str) -> None:
    """Has a module, which is not imported yet, have a fault: a text in place of another."""
    sys.meta_path.insert(0, _PlantingFinder(module, old, new))
