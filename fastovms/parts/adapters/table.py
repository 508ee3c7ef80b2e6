"""Loads and unloads the LoRA adapters of one model while it is served."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from fastovms.backend import GenerationBackend
from fastovms.backends.paged.backend import BackendExtension, PagedBackend
from fastovms.engine.model.devices import MIB, available_memory, is_cpu, reason_of
from fastovms.engine.model.model import PagedModel
from fastovms.errors import BackendUnavailable, ConfigurationError
from fastovms.params import Adapter, GenerationRequest
from fastovms.parts.adapters.backend import AdapterBackend
from fastovms.parts.adapters.files import AdapterFiles, read_adapter
from fastovms.parts.adapters.graph import (
    AdapterRunner,
    AdapterStack,
    compile_adapters,
    module_shapes,
)
from fastovms.system.memory import find_trim

if TYPE_CHECKING:
    from fastovms.engine.kernels.low_rank import PackedAdapter

logger = logging.getLogger(__name__)

T = TypeVar("T")

_UNLOAD_TIMEOUT: Final = 300.0
"""Seconds that an unload waits for running requests. After that it fails, and the adapter remains
available.
"""


class _Change(NamedTuple):
    """The new stack of adapter weights, and the runner of steps with adapters; None = no adapters
    are left."""

    stack: AdapterStack
    runner: AdapterRunner | None


class AdapterTable(BackendExtension):
    """The LoRA adapters of a model. Methods run on the event loop, except `load_first`.

    Args:
        max_adapters: the maximum number of adapters in memory.
        max_rank: the highest rank of an adapter.
        has_kernels: whether decode kernels may compute steps; adapters are then packed for them,
            too.

    Attributes:
        switch: runs a function on the engine's thread and returns when it has finished; None while
            the engine does not run.
    """

    def __init__(
        self, model: PagedModel, *, max_adapters: int, max_rank: int, has_kernels: bool = False
    ) -> None:
        if not is_cpu(model.device):
            raise ConfigurationError(
                f"adapters are served on the CPU only, not on {model.device}: leave out "
                "--enable-lora and --lora-modules, or set --device CPU"
            )
        self._model = model
        self._max_adapters = max_adapters
        self._max_rank = max_rank
        self._has_kernels = has_kernels
        self._shapes = module_shapes(model.graph.model)
        self._adapters: dict[str, Adapter] = {}
        self._stack = AdapterStack({})
        self._runner: AdapterRunner | None = None
        self._numbers = count(1)
        self._num_uses: Counter[int] = Counter()
        self._leaving: dict[str, asyncio.Event] = {}
        self._changes: set[asyncio.Future[Any]] = set()
        self._changing = asyncio.Lock()
        self._trim = find_trim()
        self.switch: Callable[[Callable[[], None]], Awaitable[None]] | None = None

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """The adapters that requests may name."""
        return self._adapters

    @property
    def num_bytes(self) -> int:
        """The bytes of all adapters' weights."""
        return self._stack.num_bytes

    def load_first(self, modules: Mapping[str, Path]) -> None:
        """Loads adapters before the engine starts; may be called on any thread. Raises
        ConfigurationError if an adapter cannot be served or there are too many.

        Args:
            modules: the directory of each adapter, by its name.
        """
        stack = AdapterStack({})
        for name, path in modules.items():
            self._check_number(name)
            files = self._read(name, path)
            adapter = _named(name, path, files, next(self._numbers))
            stack = stack.with_adapter(adapter.number, files.weights, self._pack(files))
            self._adapters[name] = adapter
        if modules:
            self._stack, self._runner = stack, self._compile(stack)
            self._model.use_for_adapters(self._runner, stack.packed)
            self._log("loaded", ", ".join(modules))

    async def load(self, name: str, path: Path) -> Adapter:
        """Loads an adapter and returns it once requests may name it. The load completes even if the
        caller is cancelled. Raises ConfigurationError if the adapter cannot be served, there are
        too many adapters, or the name is taken; BackendUnavailable if the engine does not run."""
        return await self._finish(self._load(name, path))

    async def _load(self, name: str, path: Path) -> Adapter:
        async with self._changing:
            if name in self._adapters or name in self._leaving:
                state = "loaded already" if name in self._adapters else "being unloaded"
                raise ConfigurationError(f"the adapter {name} is {state}")
            self._check_number(name)
            files = await asyncio.to_thread(self._read, name, path)
            adapter = _named(name, path, files, next(self._numbers))
            await self._use(await asyncio.to_thread(self._with_adapter, adapter.number, files))
            self._adapters[name] = adapter
            self._log("loaded", name)
        return adapter

    async def unload(self, name: str) -> None:
        """Unloads an adapter: refuses new requests with it, waits until its running requests have
        ended, and frees its memory. Continues even if the caller is cancelled.

        Raises:
            KeyError: no adapter has this name.
            BackendUnavailable: the requests do not end in time, and the adapter stays loaded; or
                the engine does not run.
        """
        adapter = self._adapters.pop(name)
        self._leaving[name] = asyncio.Event()
        await self._finish(self._unload(adapter))

    async def _unload(self, adapter: Adapter) -> None:
        name = adapter.name
        left = self._leaving[name]
        try:
            if self._num_uses[adapter.number]:
                try:
                    async with asyncio.timeout(_UNLOAD_TIMEOUT):
                        await left.wait()
                except TimeoutError:
                    self._adapters[name] = adapter
                    raise BackendUnavailable(
                        f"requests with the adapter {name} still run after {_UNLOAD_TIMEOUT:g} s"
                    ) from None
            async with self._changing:
                await self._use(await asyncio.to_thread(self._without, adapter.number))
        finally:
            del self._leaving[name]
        self._log("unloaded", name)

    async def _finish(self, change: Coroutine[Any, Any, T]) -> T:
        """Completes a change even if the caller is cancelled, because a partial change would leave
        requests without their adapter's weights."""
        task = asyncio.ensure_future(change)
        self._changes.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # retrieve the error: the caller may have been cancelled

    def backend_of(self, backend: GenerationBackend, adapter: Adapter) -> GenerationBackend:
        """Returns a backend that computes requests of the model with the adapter."""
        return AdapterBackend(backend, adapter)

    def start(self, backend: PagedBackend) -> None:
        self.switch = backend.call_and_wait

    def close(self) -> None:
        self.switch = None

    def begin_request(self, request: GenerationRequest) -> Callable[[], None] | None:
        """Records a request that uses an adapter, and returns the function that records its end.
        Raises BackendUnavailable if the adapter is being unloaded."""
        adapter = request.adapter
        if adapter is None:
            return None
        number = adapter.number
        if self._adapters.get(adapter.name) is not adapter:
            raise BackendUnavailable(f"the adapter {adapter.name} is being unloaded")
        self._num_uses[number] += 1

        def release() -> None:
            self._num_uses[number] -= 1
            if not self._num_uses[number]:
                del self._num_uses[number]
                if adapter.name in self._leaving:
                    self._leaving[adapter.name].set()

        return release

    def _check_number(self, name: str) -> None:
        if len(self._adapters) + len(self._leaving) >= self._max_adapters:
            raise ConfigurationError(
                f"the adapter {name} cannot be loaded: --max-loras allows "
                f"{self._max_adapters} adapters"
            )

    def _read(self, name: str, path: Path) -> AdapterFiles:
        try:
            return read_adapter(path, self._shapes, max_rank=self._max_rank)
        except ConfigurationError as error:
            raise ConfigurationError(f"the adapter {name} cannot be loaded: {error}") from None

    def _with_adapter(self, number: int, files: AdapterFiles) -> _Change:
        """Returns the stack with one more adapter, and the runner for the new stack."""
        compiles = self._runner is None or not files.weights.keys() <= self._stack.shapes.keys()
        # The stack is copied, and a compilation needs a second copy of the model's weights.
        needed = self._stack.num_bytes + files.num_bytes
        needed += compiles * self._model.graph.weights.stat().st_size
        if needed > (available := available_memory()):
            raise ConfigurationError(
                f"the adapter needs about {needed / MIB:.0f} MiB of memory, but only "
                f"{available / MIB:.0f} MiB are free"
            )
        stack = self._stack.with_adapter(number, files.weights, self._pack(files))
        return _Change(stack, self._compile(stack) if compiles else self._runner)

    def _pack(self, files: AdapterFiles) -> PackedAdapter | None:
        if not self._has_kernels:
            return None
        from fastovms.engine.kernels.low_rank import pack_adapter

        return pack_adapter([files.weights.get(name) for name in self._shapes])

    def _without(self, number: int) -> _Change:
        stack = self._stack.without(number)
        return _Change(stack, self._runner) if stack.members else _Change(AdapterStack({}), None)

    def _compile(self, stack: AdapterStack) -> AdapterRunner:
        start = time.perf_counter()
        try:
            runner = compile_adapters(self._model, stack)
        except RuntimeError as error:
            raise ConfigurationError(
                f"{self._model.device} cannot run the model with adapters: {reason_of(error)}"
            ) from None
        self._model.forget_files()  # free the page cache of the model's files
        logger.info(
            "compiled the model with LoRA adapters on %d weight matrices in %.1f s",
            len(stack.shapes),
            time.perf_counter() - start,
        )
        return runner

    async def _use(self, change: _Change) -> None:
        if self.switch is None:
            raise BackendUnavailable("adapters cannot be changed: the engine does not run")
        stack, runner = change

        def use() -> None:
            if runner is not None and runner is self._runner:
                runner.use(stack)
            self._model.use_for_adapters(runner, stack.packed)

        await self.switch(use)
        self._stack, self._runner = stack, runner
        await asyncio.to_thread(self._trim)

    def _log(self, what: str, names: str) -> None:
        logger.info("adapters: %s %s; %.3g MiB in all", what, names, self.num_bytes / MIB)


def _named(name: str, path: Path, files: AdapterFiles, number: int) -> Adapter:
    return Adapter(name, str(path), files.digest, number, int(time.time()))
